#!/usr/bin/env python3
"""unicode_categories.py [--check]: writes src/text/unicode/unicode_categories.cpp, the general category of every code point as the regular expressions of
`tokenizers` see it; with --check says only whether the file is the one that it would write.

The categories are measured, one \\p{…} after the other over every code point, because the Unicode version that `tokenizers` was built with decides
which ids a text gets. Also checks what src/text says in words: which code points are whitespace (\\s), which make up words (\\w of the added tokens'
`single_word`), and which match an ASCII letter whose case does not matter. Needs `pip install tokenizers==0.23.3`; takes some minutes.
"""
import pathlib, string, sys, textwrap
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

FILE = pathlib.Path(__file__).resolve().parents[2] / "src/text/unicode/unicode_categories.cpp"
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
SURROGATES = range(0xD800, 0xE000)
POINTS = [point for point in range(0x110000) if point not in SURROGATES]

HEAD = """\
// Written by tests/reference/unicode_categories.py, which measures the tables of tokenizers {version}. Not to be edited.
#include "text/unicode/unicode_categories.h"

namespace lfm2 {{

namespace {{

// Code points from 0 on: a run of n with the category c is n * 32 + c. A run of kAlternating is Lu, Ll, Lu, Ll, …
// clang-format would put them into columns, on twice the number of lines.
// clang-format off
constexpr uint32_t kRuns[] = {{
"""
TAIL = """
};
// clang-format on

}  // namespace

std::span<const uint32_t> unicode_category_runs() { return kRuns; }

}  // namespace lfm2
"""


def members(expression):
    """The code points that the expression matches, each alone."""
    splitter, left = pre_tokenizers.Split(Regex(expression), "removed"), set()
    for first in range(0, len(POINTS), 4096):
        points = POINTS[first:first + 4096]
        for _, (begin, end) in splitter.pre_tokenize_str("".join(map(chr, points))):
            left.update(points[begin:end])
    return set(POINTS) - left


def added_token_eats(before, **flags):
    """The code points before an added token that change what is found."""
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[], unk_token="a"))
    tokenizer.add_tokens([AddedToken("QQ", normalized=False, **flags)])
    expected = [tokenizer.token_to_id("QQ")] if before else [0, tokenizer.token_to_id("QQ")]
    return {point for point in POINTS if (tokenizer.encode(chr(point) + "QQ").ids == expected) == before}


def check_words(category):
    spaces = {point for point in POINTS if category[point] in ("Zs", "Zl", "Zp")} | set(range(9, 14)) | {0x85}
    assert members(r"\s") == spaces == added_token_eats(True, lstrip=True), "whitespace"
    assert members(r"\d") == {point for point in POINTS if category[point] == "Nd"}, "digits"
    circled = [*range(0x24B6, 0x24EA), *range(0x1F130, 0x1F14A), *range(0x1F150, 0x1F16A), *range(0x1F170, 0x1F18A)]
    words = {point for point in POINTS if category[point][0] in "LM" or category[point] in ("Nd", "Nl", "Pc")}
    assert words | {0x200C, 0x200D, *circled} == added_token_eats(False, single_word=True), "words"
    folds = {"k": {0x212A}, "s": {0x17F}}
    for letter in string.ascii_lowercase:
        both = {ord(letter), ord(letter.upper())} | folds.get(letter, set())
        assert members(f"(?i:{letter})") == members(f"(?i:[{letter}])") == both, letter
        for second in string.ascii_lowercase:
            more = members(f"(?i:{letter}{second})") - set(range(128))
            assert bool(more) == (letter + second in ("ff", "fi", "fl", "ss", "st")), letter + second


def runs(category):
    """(length, category) of all runs, alternating ones as one."""
    plain = []
    for point in range(0x110000):
        name = category.get(point, "Cs")
        if plain and plain[-1][1] == name:
            plain[-1][0] += 1
        else:
            plain.append([1, name])
    numbers, i = [], 0
    while i < len(plain):
        pairs = 0
        while plain[i + 2 * pairs:i + 2 * pairs + 2] == [[1, "Lu"], [1, "Ll"]]:
            pairs += 1
        length, kind = (2 * pairs, len(CATEGORIES)) if pairs > 1 else (plain[i][0], CATEGORIES.index(plain[i][1]))
        numbers.append(length * 32 + kind)
        i += 2 * pairs if pairs > 1 else 1
    return numbers


def main():
    category = {}
    for name in CATEGORIES:
        for point in members(rf"\p{{{name}}}"):
            assert point not in category, hex(point)
            category[point] = name
    assert len(category) == len(POINTS)
    for major in "LMNPSZC":
        assert members(rf"\p{{{major}}}") == {point for point in POINTS if category[point][0] == major}, major
    check_words(category)
    numbers = textwrap.fill(", ".join(map(str, runs(category))), 120, initial_indent="    ", subsequent_indent="    ")
    text = HEAD.format(version=tokenizers.__version__) + numbers + TAIL
    if "--check" in sys.argv:
        sys.exit(None if FILE.read_text() == text else f"{FILE} is not what {sys.argv[0]} writes")
    FILE.write_text(text)


if __name__ == "__main__":
    main()
