#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""embed.py FILE OUTPUT: the file's bytes as C, for page.h."""
import sys

with open(sys.argv[1], "rb") as source:
    data = source.read()
with open(sys.argv[2], "w", encoding="ascii") as out:
    out.write('#include "switchd/page.h"\nconst unsigned char sml_page[] = {\n')
    for start in range(0, len(data), 20):
        out.write(",".join(map(str, data[start:start + 20])) + ",\n")
    out.write(f"}};\nconst size_t sml_page_bytes = {len(data)};\n")
