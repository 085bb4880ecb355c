#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Seeded bugs, one at a time, by a build flag: meson setup -Dmutant=NAME (mutants/list has the names).

apply.py --file NAME          the source file that the mutant changes, relative to the tree
apply.py NAME INPUT OUTPUT    writes the changed copy
apply.py --check              every mutant's text must stand in its file exactly once, those of the switch programs
                              (mutants/p4, tests/p4/mutants.py) included; TAP

The list is read by blocks:
    [name]
    what = the bug in one sentence
    file = src/...
    written = the test that was written for it, if one was
    tests = names of meson tests that are tried before all others, if there are any
    - text to be found        (one line or several, without the two characters before it)
    + text in its place
A block may have several groups of - and + lines for its file.
"""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIST, P4_LIST = (os.path.join(ROOT, "mutants", name) for name in ("list", "p4"))


class Mutant:
    def __init__(self, name):
        self.name, self.what, self.file, self.written, self.tests = name, "", "", "", ""
        self.edits = [] # [found lines, lines in their place]


def read_list(path=LIST):
    mutants, last = [], ""
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            line = line.rstrip("\n")
            if line.startswith("[") and line.endswith("]"):
                mutants.append(Mutant(line[1:-1]))
            elif line[:1] in "-+" and line[:1] and mutants:
                if line[0] == "-" and last != "-":
                    mutants[-1].edits.append(([], []))
                mutants[-1].edits[-1][line[0] == "+"].append(line[2:])
            elif " = " in line and mutants:
                key, value = line.split(" = ", 1)
                if key not in ("what", "file", "written", "tests"):
                    raise SystemExit(f"{path}:{number}: '{key}' is not what, file, written or tests")
                setattr(mutants[-1], key, value)
            elif line and not line.startswith("#"):
                raise SystemExit(f"{path}:{number}: neither a name, a key, nor a - or + line")
            last = line[:1]
    return mutants


def find(name):
    for mutant in read_list():
        if mutant.name == name:
            return mutant
    raise SystemExit(f"no mutant '{name}': mutants/list has {', '.join(m.name for m in read_list())}")


def mutate(mutant, text):
    """The changed text, or a SystemExit that says which edit does not fit."""
    for found, replaced in mutant.edits:
        old = "\n".join(found) + "\n"
        lines = ("\n" + text).count("\n" + old)
        if lines != 1:
            raise SystemExit(f"mutant {mutant.name}: this stands {lines} times in {mutant.file}:\n{old}")
        at = ("\n" + text).index("\n" + old)
        text = text[:at] + "".join(line + "\n" for line in replaced) + text[at + len(old):]
    return text


def check():
    mutants = read_list() + read_list(P4_LIST)
    print(f"1..{len(mutants)}")
    failures = 0
    for number, mutant in enumerate(mutants, 1):
        try:
            with open(os.path.join(ROOT, mutant.file), encoding="utf-8") as source:
                text = source.read()
            problem = "changes nothing" if mutate(mutant, text) == text else ""
        except (SystemExit, OSError) as error:
            problem = str(error)
        failures += bool(problem)
        print(f"{'not ok' if problem else 'ok'} {number} - mutant {mutant.name} fits its source")
        for line in problem.splitlines():
            print(f"# {line}")
    return 1 if failures else 0


def main(arguments):
    if arguments == ["--check"]:
        return check()
    if len(arguments) == 2 and arguments[0] == "--file":
        print(find(arguments[1]).file)
        return 0
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    with open(arguments[1], encoding="utf-8") as source:
        text = mutate(find(arguments[0]), source.read())
    os.makedirs(os.path.dirname(os.path.abspath(arguments[2])), exist_ok=True)
    with open(arguments[2], "w", encoding="utf-8") as output:
        output.write(f'#line 1 "mutant of {arguments[1]}"\n' + text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
