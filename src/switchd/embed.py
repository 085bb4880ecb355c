#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""embed.py FILE OUTPUT [HEADER NAME]: the file's bytes as C, for the header that declares NAME and NAME_bytes; of a page also
NAME_policy, the Content-Security-Policy under which its own style and script run, and nothing else."""
import base64
import hashlib
import re
import sys


def sources(page, tag):
    digests = (hashlib.sha256(text).digest() for text in re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), page, re.DOTALL))
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


header, name = sys.argv[3:5] or ("switchd/page.h", "sml_page")
with open(sys.argv[1], "rb") as source:
    data = source.read()
with open(sys.argv[2], "w", encoding="ascii") as out:
    out.write(f'#include "{header}"\nconst unsigned char {name}[] = {{\n')
    for start in range(0, len(data), 20):
        out.write(",".join(map(str, data[start:start + 20])) + ",\n")
    out.write(f"}};\nconst size_t {name}_bytes = {len(data)};\n")
    if sys.argv[1].endswith(".html"):
        out.write(f"const char {name}_policy[] = \"default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                  f"connect-src 'self'; img-src data:; style-src {sources(data, 'style')}; script-src {sources(data, 'script')}\";\n")
