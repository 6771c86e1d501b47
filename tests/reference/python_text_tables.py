#!/usr/bin/env python3
"""python_text_tables.py > src/text/jinja/values/python_tables.h: what Python's str knows of characters, as tables.

Chat templates are written for Python, whose repr(), upper() and lower() depend on its Unicode tables: Python 3.11 has Unicode 14. Run it
with the Python whose text is to be matched, then format the result with clang-format.
"""
import sys, unicodedata

LAST = 0x10FFFF


def ranges(belongs):
    found, first = [], None
    for code in range(LAST + 2):
        inside = code <= LAST and belongs(code)
        if inside and first is None:
            first = code
        elif not inside and first is not None:
            found.append((first, code - 1))
            first = None
    return found


def case_runs(change):
    """Runs (first, last, stride, difference) of characters whose change is one character at one distance."""
    runs = []
    for code in range(0x80, LAST + 1):
        if 0xD800 <= code < 0xE000:
            continue
        changed = change(chr(code))
        if changed == chr(code) or len(changed) != 1:
            continue
        difference = ord(changed) - code
        if runs:
            first, last, stride, before = runs[-1]
            step = code - last
            if difference == before and step <= 2 and (first == last or step == stride):
                runs[-1] = (first, code, step, before)
                continue
        runs.append((code, code, 1, difference))
    return runs


def several(change):
    return [(code, change(chr(code))) for code in range(0x80, LAST + 1) if len(change(chr(code))) > 1]


def is_cased(code):  # and not passed over
    return (chr(code) + "\u03a3").lower().endswith("\u03c2")


def is_ignorable(code):
    return not is_cased(code) and ("A" + chr(code) + "\u03a3").lower().endswith("\u03c2")


def rows(values, form):
    return ", ".join("{" + ", ".join(map(form, value)) + "}" for value in values)


def number(value):
    return hex(value) if value > 0 else f"-{hex(-value)}" if value < 0 else "0"


def main():
    # title() of a character is upper() of it but for these.
    titled = [code for code in range(0x80, LAST + 1) if chr(code).title() != chr(code).upper()]
    print(f"""// What Python's str knows of characters beyond ASCII, by Unicode {unicodedata.unidata_version}. Made by
// tests/reference/python_text_tables.py; not to be edited by hand.
#pragma once

namespace lfm2::jinja {{

struct CharacterRange {{
  char32_t first, last;
}};
// The characters from `first` to `last`, every one or every second one, become the one at this distance.
struct CaseRun {{
  char32_t first, last, stride;
  int difference;
}};
struct CaseExpansion {{
  char32_t character;
  const char* text;  // UTF-8
}};

// Characters that repr() escapes.
inline constexpr CharacterRange kNotPrintable[] = {{{rows(ranges(lambda code: not chr(code).isprintable()), number)}}};

inline constexpr CaseRun kUpper[] = {{{rows(case_runs(str.upper), number)}}};

inline constexpr CaseRun kLower[] = {{{rows(case_runs(str.lower), number)}}};

inline constexpr CaseExpansion kUpperExpansions[] = {{{", ".join(f'{{{number(code)}, "{"".join(chr(92) + "x" + format(b, "02x") for b in text.encode())}"}}' for code, text in several(str.upper))}}};

inline constexpr CaseExpansion kLowerExpansions[] = {{{", ".join(f'{{{number(code)}, "{"".join(chr(92) + "x" + format(b, "02x") for b in text.encode())}"}}' for code, text in several(str.lower))}}};

// Before Σ and behind it: letters that have cases, which make it the end of a word, and what is passed over.
inline constexpr CharacterRange kCased[] = {{{rows(ranges(is_cased), number)}}};
inline constexpr CharacterRange kCaseIgnorable[] = {{{rows(ranges(is_ignorable), number)}}};

// Characters whose title case is not their upper case.
inline constexpr char32_t kTitleDiffers[] = {{{", ".join(map(number, titled))}}};

}}  // namespace lfm2::jinja""")


if __name__ == "__main__":
    sys.exit(main())
