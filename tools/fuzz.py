#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""fuzz.py [--seconds N] [--jobs N] [--minimise] [TARGET...]: builds the targets of fuzz/ with clang, libFuzzer,
AddressSanitizer and UndefinedBehaviorSanitizer, and runs each for N seconds (60) from its corpus in the tree,
fuzz/corpus/TARGET.txt, and what earlier runs found (build-fuzz/corpus).

Prints a line a target: executions, executions a second, edges reached of those there are. An input that breaks a
target is kept in fuzz/findings/, and the exit status is 1; build-fuzz/fuzz/fuzz_TARGET FILE runs it again. --minimise
writes the corpus in the tree anew: the seeds of fuzz/seeds.py, and the fewest inputs that reach what all reach.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "fuzz"))
import seeds # pylint: disable=wrong-import-position,import-error

BUILD = os.path.join(ROOT, "build-fuzz")
FINDINGS = os.path.join(ROOT, "fuzz", "findings")
ENV = {**os.environ, "ASAN_OPTIONS": "abort_on_error=1:handle_abort=1:detect_stack_use_after_return=1:strict_string_checks=1",
       "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
# Long enough for programs that get deep, short enough that mutations hit something.
MAX_INPUT_BYTES = 1024


def targets():
    folder = os.path.join(ROOT, "fuzz")
    text = {name: open(os.path.join(folder, name), encoding="utf-8").read() for name in os.listdir(folder)
            if name.endswith(".c")}
    return sorted(name[:-2] for name, code in text.items() if "int LLVMFuzzerTestOneInput(" in code)


def build():
    if not shutil.which("clang"):
        sys.exit("fuzz: clang is not installed; tools/setup fuzz installs it")
    subprocess.run([os.path.join(ROOT, "tools/configure"), BUILD, "--libdir=lib", "-Dfuzzer=true", "-Db_lundef=false",
                    "-Db_sanitize=address,undefined"], check=True, env={**ENV, "CC": "clang"},
                   stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", BUILD, "--quiet", "fuzzers"], check=True)


def program(target):
    return os.path.join(BUILD, "fuzz", f"fuzz_{target}")


def corpus_file(target):
    return os.path.join(ROOT, "fuzz", "corpus", target + ".txt")


def fresh_folder(*path):
    folder = os.path.join(BUILD, *path)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    return folder


def unpack(target):
    """The corpus in the tree and the seeds, a file an input, as libFuzzer wants them."""
    inputs = [data for name, _, data in seeds.seeds() if name == target]
    if os.path.exists(corpus_file(target)):
        with open(corpus_file(target), encoding="ascii") as lines:
            inputs += [bytes.fromhex(line.split()[1]) for line in lines if len(line.split()) == 2 and line[0] != "#"]
    folder = fresh_folder("tree", target)
    for number, data in enumerate(inputs):
        with open(os.path.join(folder, str(number)), "wb") as out:
            out.write(data)
    return folder


def folders(target):
    """Where new inputs go, and what there is besides."""
    work = os.path.join(BUILD, "corpus", target)
    os.makedirs(work, exist_ok=True)
    os.makedirs(FINDINGS, exist_ok=True)
    return [work, unpack(target)]


def run_one(target, seconds):
    """(line to print, is it well)"""
    # Without entropic scheduling: of a stateful target with hundreds of inputs it took three quarters of the time.
    command = [program(target), "-entropic=0", f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", "-print_final_stats=1",
               "-timeout=20", "-handle_abrt=0", "-rss_limit_mb=4096", f"-artifact_prefix={FINDINGS}/{target}-"] + folders(target)
    result = subprocess.run(command, env=ENV, text=True, check=False, errors="replace", stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)
    with open(os.path.join(BUILD, f"{target}.log"), "w", encoding="utf-8") as log:
        log.write(result.stdout)
    executions = int((re.findall(r"number_of_executed_units: (\d+)", result.stdout) or [0])[-1])
    edges = (re.findall(r"cov: (\d+)", result.stdout) or ["?"])[-1]
    total = (re.findall(r"\((\d+) inline 8-bit counters\)|\((\d+) PCs\)", result.stdout) or [("?", "")])[0][0]
    line = f"{target:12} {executions:>12,} executions {executions // max(seconds, 1):>9,}/s {edges:>5} of {total} edges"
    if result.returncode == 0:
        return line, True
    found = re.findall(r"Test unit written to (\S+)", result.stdout)
    reason = re.search(r"does not hold.*|runtime error.*|ERROR: AddressSanitizer.*|error: Failure.*|ERROR:.*",
                       result.stdout)
    return f"{line}\n  FOUND {' '.join(found)}: {reason.group(0) if reason else 'see the log'}", False


def is_named(name):
    return not re.fullmatch(r"[0-9a-f]{40}", name)


def minimise(target):
    """Returns how many inputs besides the seeds were kept."""
    small = fresh_folder("small", target)
    subprocess.run([program(target), "-set_cover_merge=1", "-use_counters=0", f"-max_len={MAX_INPUT_BYTES}", small]
                   + folders(target), env=ENV, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    named = {data: label for name, label, data in seeds.seeds() if name == target}
    found = []
    for name in os.listdir(small):
        with open(os.path.join(small, name), "rb") as data:
            found.append(data.read())
    found = sorted((data for data in found if data not in named), key=lambda data: (len(data), data))
    os.makedirs(os.path.dirname(corpus_file(target)), exist_ok=True)
    with open(corpus_file(target), "w", encoding="ascii") as out:
        out.write("# SPDX-License-Identifier: Apache-2.0\n# Written by tools/fuzz.py --minimise: a name and an input a "
                  "line; names are those of fuzz/seeds.py.\n")
        for data, label in named.items():
            out.write(f"{label} {data.hex()}\n")
        for data in found:
            out.write(f"found {data.hex()}\n")
    return len(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=int, default=60, help="a target")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) - 1), help="targets at a time")
    parser.add_argument("--minimise", action="store_true", help="afterwards, write the corpus in the tree")
    parser.add_argument("targets", nargs="*")
    options = parser.parse_args()
    wanted = options.targets or targets()
    unknown = [target for target in wanted if target not in targets()]
    if unknown:
        sys.exit(f"fuzz: unknown target {unknown}; there are: {' '.join(targets())}")
    build()
    num_bad = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for line, is_well in pool.map(lambda target: run_one(target, options.seconds), wanted):
            print(line, flush=True)
            num_bad += not is_well
    if options.minimise and num_bad == 0:
        for target in wanted:
            print(f"{target:12} the seeds and {minimise(target)} inputs reach all that was reached", flush=True)
    print(f"fuzz: {len(wanted)} targets, {num_bad} with findings" + (f", in {FINDINGS}" if num_bad else ""))
    return 1 if num_bad else 0


if __name__ == "__main__":
    sys.exit(main())
