#!/usr/bin/env python3
"""tokenizer_golden.py [--train]: writes tests/golden/text/cases.json, what `tokenizers` makes of many strings with the small tokenizer beside it; with
--train first that tokenizer itself, from the documents of this repository.

The tokenizer has the form of LFM2's: the same pre-tokenizer, post-processor and kinds of added tokens, and some that LFM2 has not. Variants of it
are JSON merge patches (RFC 7386). Needs `pip install tokenizers==0.23.3`.
"""
import json, pathlib, random, sys
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tokenizer_check import LFM2_PATTERN, random_texts

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/golden/text"
SPECIAL = ["<|pad|>", "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def train():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LFM2_PATTERN), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel()])
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=SPECIAL, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False)
    greetings = ["你好世界，你好。日本語と한국어 привет мир Ελλάδα مرحبا हिन्दी éèñüß 🌍👩‍👩‍👧‍👦"] * 40
    texts = [path.read_text(encoding="utf-8") for path in sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")])]
    tokenizer.train_from_iterator(texts + greetings, trainer)
    begin = tokenizer.token_to_id("<|startoftext|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|startoftext|> $A", pair="<|startoftext|> $A <|startoftext|> $B", special_tokens=[("<|startoftext|>", begin)])])
    tokenizer.add_tokens([AddedToken("python", normalized=True), AddedToken("Mathias", normalized=True),
                          AddedToken("<mask>", lstrip=True, normalized=False, special=True), AddedToken("<sep>", rstrip=True, normalized=True),
                          AddedToken("tensor", single_word=True, normalized=False), AddedToken("aab", normalized=False),
                          AddedToken("aabaac", normalized=False), AddedToken("日本", normalized=True), AddedToken("  \n", normalized=False)])
    (FOLDER / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def split(pattern):
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def cutting(*patterns):
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*(split({"Regex": pattern}) for pattern in patterns), BYTES]}}


def template(*pieces):
    tokens = {"<|im_start|>": [3], "<|im_end|>": [4, 2]}
    return {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}} if piece == "A" else {"SpecialToken": {"id": piece, "type_id": 0}}
                                                     for piece in pieces],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {name: {"id": name, "ids": ids, "tokens": [name] * len(ids)} for name, ids in tokens.items()}}


def variants(base):
    merges = base["model"]["merges"]
    yield "as it is", {}, 1500
    yield "merges as strings", {"model": {"merges": [" ".join(merge) for merge in merges]}}, 20
    # Tokens whose merges are gone are reached only as whole pieces.
    yield "ignore_merges", {"model": {"ignore_merges": True, "merges": merges[:200]}}, 200
    yield "merges that are gone", {"model": {"merges": merges[:200]}}, 100
    # Merges in another order make tokens whose parts come later in the list.
    yield "merges in another order", {"model": {"merges": random.Random(5).sample(merges, len(merges))}}, 300
    yield "merges twice", {"model": {"merges": merges + merges[:400:3]}}, 100
    yield "ByteLevel's own pattern", {"pre_tokenizer": {**BYTES, "use_regex": True, "pretokenizers": None}}, 200
    yield "LFM2.5's pattern", cutting(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s"), 200
    yield "several patterns", cutting(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                                      r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), 200
    yield "categories", cutting(r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?"
                                r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
                                r"|\s*[\r\n]+|\s+(?!\S)|\s+"), 200
    yield "lazy, possessive, counted", cutting(r"\p{L}{2,4}?|\d++|(?:[^\s\d]|\P{L}{2})(?=\S)|(a|b)c*?"), 200
    yield "a text", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split({"String": "a.b"}), split({"String": "日"}), BYTES]}}, 30
    yield "templates", {"post_processor": {"type": "Sequence", "processors": [template("<|im_start|>", "A", "<|im_end|>"), {**BYTES}]}}, 20
    yield "no template", {"post_processor": None}, 20
    yield "settings of a call", {"truncation": {"direction": "Right", "max_length": 100000, "strategy": "LongestFirst", "stride": 0}}, 5


def merged(value, patch):
    if not isinstance(patch, dict):
        return patch
    value = dict(value) if isinstance(value, dict) else {}
    for key, inner in patch.items():
        if inner is None:
            value.pop(key, None)
        else:
            value[key] = merged(value.get(key), inner)
    return value


def points_text(point):
    letter = chr(point)
    return f"a{letter}b {letter} 1{letter}'{letter}\n{letter}{letter}  {letter}"


def points_hashes(tokenizer):
    """FNV-1a over the ids of every code point's text, for each 4096 code points."""
    hashes = []
    for first in range(0, 0x110000, 4096):
        points = [point for point in range(first, first + 4096) if not 0xD800 <= point < 0xE000]
        value = 0xCBF29CE484222325
        for encoding in tokenizer.encode_batch_fast([points_text(point) for point in points], add_special_tokens=False):
            for token in encoding.ids:
                value = (value ^ token) * 0x100000001B3 % 2**64
        hashes.append(f"{value:016x}")
    return hashes


def main():
    if "--train" in sys.argv:
        train()
    base = json.loads((FOLDER / "tokenizer.json").read_text(encoding="utf-8"))
    added = [token["content"] for token in base["added_tokens"]]
    fixed = ["", " ", "Hello, my name is", "pythonic python", " <mask> <mask>  <sep> \n x", "tensor tensors a-tensor_ tensor", "aabaab aabaac aabaaca", "1234567 it's IT'S\r\n\n  x  \t\n",
             "你好 日本語", "<|im_start|>user\nhi<|im_end|>\n", "<|im_<|im_start|>", "a" * 300, "日" * 120, "ab" * 200, " " * 300 + "x", "\U0010ffff" * 70]
    result = {"variants": []}
    for number, (name, patch, count) in enumerate(variants(base)):
        # A patch cannot set a field to null: it removes it, which is the same here.
        tokenizer = Tokenizer.from_str(json.dumps({"post_processor": None, **merged(base, patch)}))
        texts = fixed + list(random_texts(count, random.Random(number), added))
        cases = [[text, encoding.ids] for text, encoding in zip(texts, tokenizer.encode_batch_fast(texts))]
        result["variants"].append({"name": name, "patch": patch, "cases": cases})
        if not number:
            result["points"] = points_hashes(tokenizer)
            source = random.Random(7)
            lists = [[source.randrange(tokenizer.get_vocab_size() + 5) for _ in range(source.randrange(12))] for _ in range(300)]
            result["texts"] = [[ids, tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids, skip_special_tokens=True)] for ids in lists]
    (FOLDER / "cases.json").write_text(json.dumps(result, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
