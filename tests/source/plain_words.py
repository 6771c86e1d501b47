#!/usr/bin/env python3
"""Plain words (docs/style.md): retired idioms, sentences above 40 words, document lines above 120 columns.

Documents, launch scripts, comments, help and messages must have none. Afterwards the same checks run over planted sentences, each of
which must be found, or must pass.

    plain_words.py [--list [FOLDER]]    # --list: only the findings in the sources, or in those below FOLDER
"""
import pathlib, re, sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_WORDS = 40
MAX_COLUMNS = 120
MAX_ROW_COLUMNS = 240  # a row of a table: Markdown cannot break it

IDIOMS = {
    r"behind": "after, past, following; of memory: beyond",
    r"in front": "before, preceding",
    r"hand(?:s|ed|ing)? out": "write, emit, pass, return",
    r"(?:so|as) many": "up to N, at most N, the same number of",
    r"anew": "again",
    r"as ever": "as before, as usual",
    r"for ever": "forever, without end",
    r"perhaps": "optionally, possibly",
    r"(?:go|goes|going|gone|went) on": "continue",
    r"likeliest": "top-1, most probable, greedy token",
    r"multiprocessors?": "SM",
    r"texts? that (?:is|are) continued": "prompt, generation request",
    r"(?:in|whatever) (?:the )?company|company of": "other samples of the batch",
    r"says? what": "reports, describes, names",
    r"since then|as (?:it|they) always (?:did|had)|of before": "the present only: no history",
}
# A finding whose file and text match is none.
EXCEPTIONS = [
    ("src/kernels/cuda/ptx/", r"multiprocessor", "NVIDIA's word, where its own manual is quoted"),
    ("src/stage/io/scores.cpp", r"^likeliest$", "a key in the JSON of --report"),
]

WHOLE_IDIOM = re.compile(r"(?<![\w-])(" + "|".join(IDIOMS) + r")(?![\w-])", re.IGNORECASE)
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]*]*\s+(?=[A-Z`\"'(\[*\d-])")


def advice(word):
    return next(better for idiom, better in IDIOMS.items() if re.fullmatch(idiom, word, re.IGNORECASE))


def faults(text):
    """What is wrong with a paragraph, a cell or a comment."""
    text = re.sub(r"`+[^`]+`+", "CODE", text)
    text = re.sub(r"\]\([^)]*\)|https?://\S+", "", text)
    found = [f'"{match[0]}": {advice(re.sub(r"[ ]+", " ", match[0]))}' for match in WHOLE_IDIOM.finditer(re.sub(r"\s+", " ", text))]
    for sentence in SENTENCE_END.split(text):
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > MAX_WORDS:
            found.append(f"a sentence of {len(words)} words: {' '.join(words[:8])} ...")
    return found


def blocks_of_markdown(text):
    """Yields (line, text) of paragraphs, items of lists, headings and cells of tables; code is left out."""
    start, lines, fenced, in_item = 0, [], False, False
    for number, line in enumerate(text.splitlines() + [""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            continue
        code = fenced or (line.startswith("    ") and not in_item)
        row = line.lstrip().startswith("|")
        new_item = re.match(r"\s*(?:[-*]|\d+\.) ", line) is not None
        if lines and (not line.strip() or code or row or new_item or line.startswith("#")):
            yield start, " ".join(lines)
            lines = []
        if new_item:
            in_item = True
        elif line.strip() and not line.startswith(" "):
            in_item = False
        if not line.strip() or code:
            continue
        if row:
            for cell in line.split("|"):
                for part in cell.split("; "):  # a cell lists things
                    yield number, part
        else:
            start = number if not lines else start
            lines.append(re.sub(r"^\s*(?:#+|[-*]|\d+\.) ", "", line).strip())


def blocks_of_script(text):
    """Yields (line, text) of comments, those of lines that follow one another joined, and of texts in quotes."""
    start, lines = 0, []
    for number, line in enumerate(text.splitlines() + [""], 1):
        comment = re.match(r"\s*#(?!!|SBATCH|PBS|BSUB)\s?(.*)", line)
        if comment and comment[1].strip() and not comment[1].startswith("  "):
            start = number if not lines else start
            lines.append(comment[1].strip())
            continue
        if lines:
            yield start, " ".join(lines)
            lines = []
        if not comment:
            yield from ((number, quoted[1]) for quoted in re.finditer(r'"([^"$`]*)"', line))
            if trailing := re.search(r"\s#\s(.*)", line):
                yield number, trailing[1]


TOKENS = re.compile(r'//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/|R"\((?P<raw>.*?)\)"|"(?P<text>(?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)


def blocks_of_source(text):
    """Yields (line, text) of comments and string literals of C, C++ and CUDA; neighbours are joined."""
    kind, start, parts, end = "", 0, [], 0
    for token in TOKENS.finditer(text):
        name = "line" if token["line"] is not None else "text" if token["text"] is not None else "block" if token["block"] else ""
        if not name:
            continue
        content = token[name]
        between = text[end:token.start()]
        drawing = name == "line" and (not content.strip() or content.startswith("   "))
        joins = kind == name and not between.strip() and (name == "text" or between.count("\n") == 1)
        if not joins or drawing:
            if parts:
                yield start, "".join(parts) if kind == "text" else " ".join(parts)
            parts = []
        kind, end = name, token.end()
        if not drawing and not (name == "text" and re.search(r"#\s*include\s*$", text[max(0, token.start() - 20):token.start()])):
            start = start if parts else text.count("\n", 0, token.start()) + 1
            parts.append(content.replace("\\n", "\n") if name == "text" else content.strip())
    if parts:
        yield start, " ".join(parts)


def excused(where, text):
    return any(where.startswith(path) and re.search(pattern, text) for path, pattern, _ in EXCEPTIONS)


def findings(where, text):
    suffix = pathlib.PurePath(where).suffix
    scripts = suffix in (".sh", ".py", ".sbatch", ".pbs", ".lsf") or text.startswith("#!")
    blocks = blocks_of_markdown if suffix == ".md" else blocks_of_script if scripts else blocks_of_source
    found = [(line, fault) for line, block in blocks(text) if not excused(where, block) for fault in faults(block)]
    if suffix == ".md":
        for number, line in enumerate(text.splitlines(), 1):
            limit = MAX_ROW_COLUMNS if line.lstrip().startswith("|") else MAX_COLUMNS
            if len(line) > limit:
                found.append((number, f"{len(line)} columns, {limit} at most"))
    return [f"{where}:{line}: {fault}" for line, fault in sorted(found)]


def read(paths):
    return [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8", errors="replace")) for path in sorted(paths)]


def strict_files():
    paths = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *(path for path in ROOT.glob("launch/**/*") if path.is_file())]
    paths += [ROOT / "operators/README.md", ROOT / "weights-tools/FORMAT.md", *ROOT.glob("tests/**/README.md")]
    return read(paths)


def source_findings():
    found = []
    for top in ("src", "operators", "weights-tools", "include", "examples", "python"):
        paths = [path for path in (ROOT / top).rglob("*") if path.suffix in (".h", ".c", ".cpp", ".cu", ".cuh", ".py")]
        found += [line for where, text in read(paths) for line in findings(where, text)]
    return found


LONG = " ".join(["word"] * 41)
WRONG = {
    "a.md": "The tail stands behind the norm.",
    "b.md": "The product in front\nof it waits.",
    "c.md": "- The last rank hands out results.",
    "d.md": "| key | As many as ranks |",
    "e.md": f"One. {LONG[:100]}\n{LONG[100:]}. Two.",
    "f.md": "x" * 121,
    "g.md": f"| {LONG} |",
    "h.md": "It goes on as ever.",
    "i.sh": "# The table is made anew.",
    "j.sh": 'echo "perhaps it waits"',
    "k.h": "// The likeliest\n// token, drawn.",
    "l.cpp": 'fail("a rank waits for ever"\n     " and ends");',
    "m.cu": f"// {LONG[:100]}\n// {LONG[100:]}",
    "n.cpp": "/* It has the bits of before. */",
    "o.py": "# Since then it is faster.",
    "p.md": "- an item\n  whose text stands behind another",
    "q.md": "| " + "x" * 240 + " |",
    "r.md": "A multiprocessor waits.",
    "s.md": "Texts that are continued wait.",
    "t.md": "It has the same bits in company of others.",
    "u.md": "The table says what is wrong.",
    "v.md": "As it always did, it waits.",
    "w.sbatch": "#!/bin/bash\n#SBATCH --signal=B:USR1@120\n# The job is begun anew.",
}
RIGHT = {
    "a.md": "A behind-the-scenes `behind` word.\n\n    code behind it\n\nOne sentence. Another one.",
    "b.md": "\n".join(["| " + " ".join(["word"] * 30) + "; " + " ".join(["word"] * 12) + " |", "", "x" * 120]),
    "c.cpp": f"// {LONG[:100]}\n\n// {LONG[100:]}\nint x;  // alone\n",
    "d.sh": "# One sentence.\n#\n# Another.\n",
}


def planted():
    missed = [f"planted, but not found: {name}" for name, text in WRONG.items() if not findings(name, text)]
    return missed + [f"found, where nothing is wrong: {line}" for name, text in RIGHT.items() for line in findings(name, text)]


def main():
    sources = source_findings()
    if "--list" in sys.argv:
        below = sys.argv[sys.argv.index("--list") + 1] if len(sys.argv) > sys.argv.index("--list") + 1 else ""
        print("\n".join(line for line in sources if line.startswith(below)))
        return 0
    wrong = [line for where, text in strict_files() for line in findings(where, text)] + sources + planted()
    print("\n".join(wrong) or "plain words in every document and source")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
