#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""embed.py OUTPUT TABLE...: the layer tables as C, so that `switchml bench training` has them wherever it is installed.
embed.py --text NAME OUTPUT FILE: a whole file as C, as the char array NAME."""
import os
import sys


def as_c(path):
    """The file's lines as string literals, the last one with the semicolon."""
    with open(path, encoding="ascii") as file:
        lines = ['    "' + line.rstrip("\n").replace("\\", "\\\\").replace('"', '\\"') + '\\n"' for line in file]
    return lines[:-1] + [lines[-1] + ";"]


def main():
    if sys.argv[1] == "--text":
        name, output, path = sys.argv[2:]
        with open(output, "w", encoding="ascii") as file:
            file.write("\n".join(["/* Made by bench/models/embed.py. */", f"extern const char {name}[];",
                                  f"const char {name}[] =", *as_c(path), ""]))
        return
    lines = ["/* Made by bench/models/embed.py. */", '#include "cli/training/training.h"', ""]
    names = []
    for path in sys.argv[2:]:
        name = os.path.basename(path)[:-len(".txt")]
        names.append(name)
        lines.append(f"static const char table_{name}[] =")
        lines += as_c(path)
    lines.append("const struct sml_training_builtin sml_training_builtins[] = {")
    lines += [f'    {{"{name}", table_{name}}},' for name in names]
    lines += ["    {0}};", ""]
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write("\n".join(lines))


if __name__ == "__main__":
    main()
