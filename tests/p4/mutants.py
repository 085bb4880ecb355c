#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""mutants.py [--jobs N] [--build FOLDER] [NAME...]: says of each seeded bug of mutants/p4 who finds it; exit status 1 if
one lived. Those of tna.p4 are made C, and played by FOLDER's p4_differential_test (default: build), which needs no
tools. The others are compiled for BMv2: do the conformance vectors find it (packet files, 32 lanes, no root), or else
the steps of behaviour.py? That needs p4c-bm2-ss and simple_switch, as check.py does. Without a bug everything has to
pass, which is tried first."""
import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile

import check

sys.path.insert(0, os.path.join(check.ROOT, "mutants"))
import apply # noqa: E402  pylint: disable=wrong-import-position

LANES = 32
NUM_PACKETS, SEED = 20000, "1"


def copy_source(folder, mutant):
    """A copy of p4/ with the bug in it."""
    source = os.path.join(folder, "p4")
    shutil.copytree(check.P4, source)
    if mutant:
        path = os.path.join(folder, mutant.file)
        with open(path, encoding="utf-8") as file:
            text = apply.mutate(mutant, file.read())
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return source


def is_of_tofino(mutant):
    return mutant.file.startswith("p4/tna")


def differential_finder(mutant, program):
    """Who finds a bug of tna.p4 with 64 lanes, and its first words; None: nobody."""
    with tempfile.TemporaryDirectory(prefix="switchml-p4-mutant-") as folder:
        source, text, library = copy_source(folder, mutant), os.path.join(folder, "p4.c"), os.path.join(folder, "p4.so")
        subprocess.run([sys.executable, os.path.join(check.HERE, "translate.py"), os.path.join(source, "tna.p4"), "tna64",
                        text, "-DLANES=64"], check=True)
        subprocess.run([os.environ.get("CC", "cc"), "-O1", "-w", "-shared", "-fPIC", "-I", check.HERE, "-o", library, text],
                       check=True)
        done = subprocess.run([program, str(NUM_PACKETS), SEED, library], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False)
    lines = done.stdout.splitlines()
    return None if done.returncode == 0 else f"differential: {lines[0][:100] if lines else done.returncode}"


def build(folder, mutant):
    """The program with the bug in it, compiled for BMv2. Returns it, and why there is none."""
    source, program = copy_source(folder, mutant), os.path.join(folder, "switchml.json")
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
    parser.add_argument("--build", default="build")
    parser.add_argument("names", metavar="NAME", nargs="*")
    options = parser.parse_args()
    mutants = [mutant for mutant in apply.read_list(apply.P4_LIST) if not options.names or mutant.name in options.names]
    differential = os.path.join(os.path.abspath(options.build), "tests", "p4", "p4_differential_test")
    has_tools = check.tool("p4c-bm2-ss", "P4C_BM2_SS") and check.tool("simple_switch", "SIMPLE_SWITCH")
    if not has_tools or not os.path.exists(differential):
        print(f"mutants: {f'no {differential}' if has_tools else 'no p4c-bm2-ss or no simple_switch'}: not all is tried")
    of_tofino = [mutant for mutant in mutants if is_of_tofino(mutant) and os.path.exists(differential)]
    mutants = of_tofino + [mutant for mutant in mutants if not is_of_tofino(mutant) and has_tools]
    found = (of_tofino and differential_finder(None, differential)) or (len(mutants) > len(of_tofino) and finder(None))
    if found:
        raise SystemExit(f"without a bug: {found}")
    num_lived = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        def find(mutant):
            return differential_finder(mutant, differential) if is_of_tofino(mutant) else finder(mutant)
        for mutant, found in zip(mutants, pool.map(find, mutants)):
            num_lived += found is None
            print(f"{mutant.name:28} {found or 'LIVED'}\n{'':28} {mutant.what}", flush=True)
    print(f"{len(mutants) - num_lived} found, {num_lived} lived", flush=True)
    return 1 if num_lived else 0


if __name__ == "__main__":
    sys.exit(main())
