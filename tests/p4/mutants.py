#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""mutants.py [--jobs N] [NAME...]: compiles each seeded bug of mutants/p4 and says whether the conformance vectors find
it over BMv2 (packet files, 32 lanes, no root), else whether the steps of behaviour.py do. Exit status 1 if one lived.
Needs p4c-bm2-ss and simple_switch, as check.py does. Without a bug everything has to pass, which is tried first."""
import argparse
import concurrent.futures
import os
import shutil
import sys
import tempfile

import check

sys.path.insert(0, os.path.join(check.ROOT, "mutants"))
import apply # noqa: E402  pylint: disable=wrong-import-position

LANES = 32


def build(folder, mutant):
    """A copy of p4/ with the bug in it, compiled. Returns the switch's program, and why there is none."""
    source, program = os.path.join(folder, "p4"), os.path.join(folder, "switchml.json")
    shutil.copytree(check.P4, source)
    if mutant:
        path = os.path.join(folder, mutant.file)
        with open(path, encoding="utf-8") as file:
            text = apply.mutate(mutant, file.read())
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    problems = list(check.compile_p4(check.tool("p4c-bm2-ss", "P4C_BM2_SS"), "v1model.p4", LANES, program,
                                     folder=source))
    return program, "" if os.path.exists(program) else problems[0] # a bug may well be worth a warning


def finder(mutant):
    """Who finds the bug, and its first words; None: nobody."""
    with tempfile.TemporaryDirectory(prefix="switchml-p4-mutant-") as folder:
        program, wrong = build(folder, mutant)
        if wrong:
            raise SystemExit(f"{mutant.name if mutant else 'without a bug'}: {wrong}")
        switch = check.tool("simple_switch", "SIMPLE_SWITCH")
        for name, run in (("vectors", lambda: check.run_vectors(os.path.join(folder, "vectors"), LANES,
                                                                check.play_vectors, switch, program)),
                          ("steps", lambda: check.run_steps(switch, program, folder, LANES))):
            for problem in run():
                lines = problem.splitlines()
                return f"{name}: {next((line for line in lines if line.startswith('not ok')), lines[0])[:100]}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("names", metavar="NAME", nargs="*")
    options = parser.parse_args()
    if not check.tool("p4c-bm2-ss", "P4C_BM2_SS") or not check.tool("simple_switch", "SIMPLE_SWITCH"):
        print("mutants: no p4c-bm2-ss or no simple_switch")
        return 0
    mutants = [mutant for mutant in apply.read_list(apply.P4_LIST) if not options.names or mutant.name in options.names]
    found = finder(None)
    if found:
        raise SystemExit(f"without a bug: {found}")
    num_lived = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for mutant, found in zip(mutants, pool.map(finder, mutants)):
            num_lived += found is None
            print(f"{mutant.name:28} {found or 'LIVED'}\n{'':28} {mutant.what}", flush=True)
    print(f"{len(mutants) - num_lived} found, {num_lived} lived", flush=True)
    return 1 if num_lived else 0


if __name__ == "__main__":
    sys.exit(main())
