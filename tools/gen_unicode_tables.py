#!/usr/bin/env python3
"""Writes src/text/unicode_tables.cc: the character classes of the Kimi pre-tokenisation pattern.

    python3 tools/gen_unicode_tables.py            writes the file
    python3 tools/gen_unicode_tables.py --check    fails if the committed file differs

Unicode 16.0, the version of the regex engine in tiktoken 0.14. Python's own unicodedata is older, so the categories
come from unicodedata2 and the scripts from fontTools, both of exactly that version:
pip install --require-hashes -r tests/oracles/requirements.txt
"""
import argparse
import pathlib
import sys

import fontTools.unicodedata
import fontTools.unicodedata.Scripts
import unicodedata2

UNICODE = "16.0.0"
OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "src/text/unicode_tables.cc"

# The bits of text/unicode_tables.h.
UPPER_LIKE, LOWER_LIKE, LETTER, NUMBER, SPACE, HAN = (1 << i for i in range(6))

HEADER = """\
// Written by tools/gen_unicode_tables.py from Unicode {version}; do not edit.
#include "text/unicode_tables.h"

namespace perigee::text::internal {{

// clang-format off
const ClassRange kClassRanges[] = {{
{rows}
}};
// clang-format on
const size_t kNumClassRanges = sizeof(kClassRanges) / sizeof(kClassRanges[0]);

}}  // namespace perigee::text::internal
"""


def char_class(code):
    if 0xD800 <= code <= 0xDFFF:
        return 0
    c = chr(code)
    category = unicodedata2.category(c)
    bits = 0
    if category[0] == "L":
        bits |= LETTER
    if category[0] == "N":
        bits |= NUMBER
    # White_Space is the separators (Z*), U+0009..U+000D and U+0085.
    if category[0] == "Z" or 0x09 <= code <= 0x0D or code == 0x85:
        bits |= SPACE
    if fontTools.unicodedata.script(c) == "Hani":
        return bits | HAN
    if category in ("Lu", "Lt", "Lm", "Lo") or category[0] == "M":
        bits |= UPPER_LIKE
    if category in ("Ll", "Lm", "Lo") or category[0] == "M":
        bits |= LOWER_LIKE
    return bits


def render():
    ranges, previous = [], None
    for code in range(0x110000):
        bits = char_class(code)
        if bits != previous:
            ranges.append(f"{{0x{code:x}, {bits}}},")
            previous = bits
    rows, row = [], "   "
    for item in ranges:
        if len(row) + 1 + len(item) > 110:
            rows.append(row)
            row = "   "
        row += " " + item
    rows.append(row)
    return HEADER.format(version=UNICODE, rows="\n".join(rows))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    scripts_file = pathlib.Path(fontTools.unicodedata.Scripts.__file__).read_text(encoding="utf-8")
    if unicodedata2.unidata_version != UNICODE or f"# Scripts-{UNICODE}.txt" not in scripts_file:
        sys.exit(f"unicodedata2 and fontTools must both carry Unicode {UNICODE}; see the head of this file")
    text = render()
    if args.check:
        if OUTPUT.read_text(encoding="utf-8") != text:
            sys.exit(f"{OUTPUT} is not what the generator writes")
    else:
        OUTPUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
