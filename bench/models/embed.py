#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""embed.py OUTPUT TABLE...: the layer tables as C, so that `switchml bench training` has them wherever it is installed."""
import os
import sys


def main():
    lines = ["/* Made by bench/models/embed.py. */", '#include "cli/training/training.h"', ""]
    names = []
    for path in sys.argv[2:]:
        name = os.path.basename(path)[:-len(".txt")]
        names.append(name)
        lines.append(f"static const char table_{name}[] =")
        with open(path, encoding="ascii") as file:
            lines += ['    "' + line.rstrip("\n").replace("\\", "\\\\").replace('"', '\\"') + '\\n"' for line in file]
        lines[-1] += ";"
    lines.append("const struct sml_training_builtin sml_training_builtins[] = {")
    lines += [f'    {{"{name}", table_{name}}},' for name in names]
    lines += ["    {0}};", ""]
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.write("\n".join(lines))


if __name__ == "__main__":
    main()
