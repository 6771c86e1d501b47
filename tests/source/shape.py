#!/usr/bin/env python3
"""The shape of the source: no folder over 30 files, no function or kernel over 80 lines, no class with behaviour over 12 data members, no test left out of the build.

    shape.py [--largest N]

Lines are those from the first of the declaration to the closing brace. A class has behaviour where it is declared as `class` or has a
private part; what every member of is open to all is a plain struct, of any size. There are no exceptions. Ends with 1 where something is too large.
"""
import argparse, bisect, collections, pathlib, re, sys

MOST_FILES, MOST_LINES, MOST_MEMBERS = 30, 80, 12
ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = ("src", "operators", "weights-tools", "include", "tests", "examples")
FOLDERS = ("src", "operators", "weights-tools", "tests/unit", "tests/cuda")  # these and the folders below them
SUFFIXES = {".h", ".c", ".cpp", ".cu", ".cuh"}


def blanked(text):
    """The text with spaces in place of comments, literals and the preprocessor's lines, so that offsets and lines stay."""
    def spaces(match):
        return re.sub(r"[^\n]", " ", match[0])
    text = re.sub(r'//[^\n]*|/\*.*?\*/|\bu?8?R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'', spaces, text,
                  flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", spaces, text, flags=re.M)


def without_nested(text, opening="<", closing=">"):
    """The text without these brackets and everything inside them."""
    kept, depth = [], 0
    for i, letter in enumerate(text):
        if letter == opening:
            depth += 1
        elif letter == closing and depth and text[i - 1] != "-":
            depth -= 1
        elif not depth:
            kept.append(letter)
    return "".join(kept)


def bare(declaration):
    """A declaration without attributes, template arguments and access labels, on one line."""
    text = re.sub(r"\b(alignas|__launch_bounds__|__attribute__|__align__|decltype|noexcept|explicit|requires)\s*(\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))",
                  " ", declaration)
    text = re.sub(r"\[\[.*?\]\]", " ", text, flags=re.S)
    text = re.sub(r"\b(public|private|protected)\s*:(?!:)", " ", text)
    text = re.sub(r"\boperator\s*(\(\)|[^\s\w(]+)", "operator", text)
    return " ".join(re.sub(r"\btemplate\b", " ", without_nested(text)).split())


def kind_of(declaration):
    """The kind of a declaration before an opening brace: scope, class, function or other."""
    text = bare(declaration)
    if re.match(r"(inline )?namespace\b|extern$", text):
        return "scope"
    if re.match(r"(typedef |static |const |constexpr |inline )*(class|struct|union)\b[^=(]*$", text):
        return "class"
    if re.match(r"(typedef )?enum\b", text) or text.count("(") != text.count(")"):
        return "other"
    outside = without_nested(text, "(", ")")
    if "=" in outside:
        # A lambda with a name, or a value.
        return "function" if re.search(r"=\s*\[[^]]*\]", outside) else "other"
    return "function" if "(" in text else "other"


def name_of(declaration):
    text = re.sub(r"^TEST(_[FP])? ?\(\s*(\w+),\s*(\w+)\s*\).*", r"\2.\3(", bare(declaration))
    match = re.search(r"([\w:~.]+) ?\(", text) or re.search(r"(\w+) ?=", text)
    return match[1] if match else text


class Source:
    """Finds the functions and classes of one file."""

    def __init__(self, path):
        self.path = path
        self.text = blanked(path.read_text(encoding="utf-8"))
        self.starts = [0] + [match.end() for match in re.finditer("\n", self.text)]
        # Functions are (name, lines); classes are (name, members, whether it has behaviour)
        self.functions, self.classes = [], []
        self.read_scope(0, None)

    def line(self, offset):
        return bisect.bisect_right(self.starts, offset)

    def closing(self, opening):
        depth = 0
        for match in re.compile(r"[{}]").finditer(self.text, opening):
            depth += 1 if match[0] == "{" else -1
            if not depth:
                return match.start()
        sys.exit(f"{self.path}:{self.line(opening)}: a brace that nothing closes")

    def read_scope(self, at, members):
        """From behind an opening brace (or the file's beginning) to behind the closing one; the statements of a class go into `members`."""
        begin = at  # of the current statement
        pattern = re.compile(r"[{};]")
        while match := pattern.search(self.text, at):
            at = match.end()
            if match[0] == "}":
                return at
            if match[0] == ";":
                if members is not None:
                    members.append(self.text[begin:at - 1])
                begin = at
                continue
            declaration = self.text[begin:at - 1]
            kind = kind_of(declaration)
            if kind == "function" and re.search(r"\)[^(){}?]*[^:]:[^:].*[\w>]\s*$", declaration, flags=re.S):
                kind = "other"  # the braces of a member in a constructor's list
            if kind == "scope":
                at = begin = self.read_scope(at, None)
            elif kind == "class":
                at = begin = self.read_class(declaration, at)
                # A struct that is declared together with a variable: struct { … } name;
                rest = re.compile(r"[^;{}]*;").match(self.text, at)
                if rest and members is not None and rest[0].strip(" \n;"):
                    members.append("struct " + rest[0][:-1])
                at = begin = rest.end() if rest else at
            elif kind == "function":
                first = begin + re.match(r"(\s|\b(public|private|protected)\s*:(?!:))*", declaration).end()
                at = self.closing(at - 1) + 1
                self.functions.append((name_of(declaration), self.line(at) - self.line(first) + 1))
                if members is not None:
                    members.append(declaration + "()")
                begin = at
            else:
                at = self.closing(at - 1) + 1
        if self.text[begin:].strip():
            sys.exit(f"{self.path}:{self.line(begin)}: no end of what begins here")
        return at

    def read_class(self, declaration, at):
        statements = []
        end = self.read_scope(at, statements)
        text = bare(declaration)
        data = sum(map(data_members, statements))
        private = any(re.search(r"\b(private|protected)\s*:(?!:)", statement) for statement in statements)
        head = re.search(r"\b(class|struct|union)\b *((?:\w|::)*)", text)
        self.classes.append((head[2] or "(no name)", data, private or head[1] == "class"))
        return end


def data_members(statement):
    """How many data members a statement of a class declares."""
    text = without_nested(without_nested(re.sub(r"\(\s*\*\s*(\w+)\s*\)\s*\(.*\)", r" \1", bare(statement)), "{", "}"), "[", "]")
    text = re.sub(r"=(?!=)[^,]*", "", without_nested(text, "(", ")") if "=" in text.split("(")[0] else text)
    if "(" in text or re.match(r"(static|using|friend|typedef|constexpr|inline|enum|extern)\b", text) or len(text.split()) < 2:
        return 0
    return 0 if re.fullmatch(r"(class|struct|union) \w+", text) and not statement.startswith("struct ") else text.count(",") + 1


def judge(what, most, found):
    """Prints what is too large. True where there is nothing."""
    large = [(key, size) for key, size in sorted(found.items()) if size > most]
    for key, size in large:
        print(f"{key if isinstance(key, str) else ': '.join(key)}: {size} {what}, at most {most}")
    return not large


def forgotten_tests():
    """The files of tests that no CMakeLists.txt names, so that they are never built."""
    named = "".join(path.read_text() for folder in ("tests", "operators") for path in (ROOT / folder).rglob("CMakeLists.txt"))
    tests = [path for folder in ("tests", "operators") for path in sorted((ROOT / folder).rglob("*_test.cpp"))]
    if len(tests) < 200:
        sys.exit(f"Only {len(tests)} files of tests found: this script no longer finds them")
    return [path for path in tests if f"/{path.name}" not in named and f" {path.name}" not in named]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=0, metavar="N", help="shows the N largest of each kind, too")
    args = parser.parse_args()
    functions, classes, plain, folders = (collections.Counter() for _ in range(4))
    for path in sorted(path for folder in CODE for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES):
        source = Source(path)
        for name, lines in source.functions:
            functions[path.name, name] = max(lines, functions[path.name, name])
        for name, data, behaviour in source.classes:
            found = classes if behaviour else plain
            found[path.name, name] = max(data, found[path.name, name])
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                folders[str(path.parent.relative_to(ROOT))] += 1
    kinds = ("lines", functions), ("data members", classes), ("data members, plain", plain), ("files", folders)
    for what, found in kinds:
        for key, size in found.most_common(args.largest):
            print(f"{size:4} {what}: {key if isinstance(key, str) else ': '.join(key)}")
    if len(functions) < 1000 or len(classes) < 100:
        sys.exit(f"Only {len(functions)} functions and {len(classes)} classes found: this script no longer reads the source")
    well = [judge("lines", MOST_LINES, functions), judge("data members", MOST_MEMBERS, classes), judge("files", MOST_FILES, folders)]
    forgotten = forgotten_tests()
    for path in forgotten:
        print(f"{path.relative_to(ROOT)}: no CMakeLists.txt names this test, so that it is never built: add it there")
    if not all(well) or forgotten:
        return 1
    print(f"{len(functions)} functions, {len(classes)} classes and {len(plain)} plain structs: none is too large")
    return 0


if __name__ == "__main__":
    sys.exit(main())
