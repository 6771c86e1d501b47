#!/usr/bin/env python3
"""lower_case_table.py > src/text/jinja/builtins/lower_case.h: what Python's str.lower() makes of single characters, as a table.

Chat templates are written for Python, whose lower() depends on its Unicode tables: Python 3.11 has Unicode 14. Run it with the Python whose
text is to be matched, then format the result with clang-format.
"""
import unicodedata


def runs():
    """Runs (first, last, stride, difference) of characters whose lower case is one character at one distance."""
    found = []
    for code in range(0x80, 0x110000):
        changed = chr(code).lower()
        if changed == chr(code) or len(changed) != 1:
            continue
        difference = ord(changed) - code
        if found:
            first, last, stride, before = found[-1]
            step = code - last
            if difference == before and step <= 2 and (first == last or step == stride):
                found[-1] = (first, code, step, before)
                continue
        found.append((code, code, 1, difference))
    return found


print(f"""// What Python's str.lower() makes of single characters beyond ASCII, by Unicode {unicodedata.unidata_version}. Made by
// tests/reference/lower_case_table.py; not to be edited by hand.
#pragma once

namespace lfm2::jinja {{

// The characters from `first` to `last`, every one or every second one, become the one at this distance.
struct CaseRun {{
  char32_t first, last, stride;
  int difference;
}};

inline constexpr CaseRun kLower[] = {{{", ".join("{" + ", ".join(map(hex, run)) + "}" for run in runs())}}};

}}  // namespace lfm2::jinja""")
