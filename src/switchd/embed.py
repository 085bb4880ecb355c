#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""embed.py FILE OUTPUT [HEADER NAME]: the file's bytes as C, for the header that declares NAME and NAME_bytes."""
import sys

header, name = sys.argv[3:5] or ("switchd/page.h", "sml_page")
with open(sys.argv[1], "rb") as source:
    data = source.read()
with open(sys.argv[2], "w", encoding="ascii") as out:
    out.write(f'#include "{header}"\nconst unsigned char {name}[] = {{\n')
    for start in range(0, len(data), 20):
        out.write(",".join(map(str, data[start:start + 20])) + ",\n")
    out.write(f"}};\nconst size_t {name}_bytes = {len(data)};\n")
