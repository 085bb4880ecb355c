#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""mutants.py [-j N] [--named] [--timeout S] [NAME...]: puts each seeded bug of mutants/list into a copy of the tree and
runs the tests until one finds it. Prints which; exit status 1 if a mutant lived.

-j N         so many at a time (at most 2 unless it is given)
--named      no further than the tests that the list names for the mutant, or those of its layer where it names none
--timeout S  a test that takes longer has found the mutant (300)

Tests that the list names for the mutant come before all others, whatever they test. Then come those of SUITES, in that
order: those of the layer that is changed first, and long ones last. So the one named is the first that sees the bug, not
the only one. A test that was written for the mutant is marked.

The copies lie in build-mutants and stay, so that only what a mutant changes is compiled. -Dmutant=NAME builds one
in a build folder of its own, to look at."""
import argparse
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "mutants"))
import apply # noqa: E402  pylint: disable=wrong-import-position

SUITES = ["base", "core", "quant", "ctl", "trace", "fuzz", "engine", "sim", "aggd", "shm", "lib", "process", "netio",
          "dataplane", "pipeline", "switchd", "cli"]
TEST_ENV = {"SWITCHML_CHECK": "1", "SWITCHML_SHARED_MEMORY": "0"} # as meson test has it
NOT_OK = re.compile(r"^\s*not ok\s*\d*\s*-?\s*(.*)$", re.MULTILINE)


class DoesNotBuild(Exception):
    pass


class Tree:
    """A copy of the tree with its build folder, used for one mutant at a time."""

    def __init__(self, number):
        self.root = os.path.join(ROOT, "build-mutants", str(number))
        self.build = os.path.join(self.root, "build")
        self.changed = None # the file that is a mutant's
        self.update()
        if not os.path.exists(os.path.join(self.build, "build.ninja")):
            subprocess.run(["meson", "setup", "--libdir=lib", "-Dwerror=false", self.build, self.root], check=True,
                           stdout=subprocess.DEVNULL)
        self.ninja("build.ninja")
        self.targets = {target["id"]: target["filename"] for target in self.introspect("--targets")}
        self.tests = self.introspect("--tests")

    def update(self):
        """What has changed since, files of an interrupted run included; with its times, so that nothing else is built."""
        names = subprocess.run(["git", "ls-files", "-zco", "--exclude-standard"], cwd=ROOT, text=True, check=True,
                               stdout=subprocess.PIPE).stdout.split("\0")
        for name in filter(None, names):
            source, copy = os.path.join(ROOT, name), os.path.join(self.root, name)
            if not os.path.exists(source):
                continue
            is_same = os.path.exists(copy) and os.path.getmtime(copy) == os.path.getmtime(source)
            if not is_same:
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                shutil.copy2(source, copy, follow_symlinks=False)

    def introspect(self, what):
        return json.loads(subprocess.run(["meson", "introspect", self.build, what], text=True, check=True,
                                         stdout=subprocess.PIPE).stdout)

    def ninja(self, *targets):
        done = subprocess.run(["ninja", "-C", self.build, "--quiet", *targets], text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise DoesNotBuild(done.stdout[-3000:])

    def put(self, mutant):
        """The mutant, or None: the tree as it is."""
        for name in filter(None, (self.changed, mutant and mutant.file)):
            with open(os.path.join(ROOT, name), encoding="utf-8") as source:
                text = source.read()
            if mutant and name == mutant.file:
                text = apply.mutate(mutant, text)
            with open(os.path.join(self.root, name), "w", encoding="utf-8") as copy:
                copy.write(text)
        self.changed = mutant.file if mutant else None

    def order(self, mutant, is_quick):
        """The tests to run, the most hopeful first."""
        layer, named, ranked = os.path.basename(os.path.dirname(mutant.file)), mutant.tests.split(), []
        for test in self.tests:
            suites = [suite.split(":")[-1] for suite in test["suite"]]
            ranks = [SUITES.index(suite) for suite in suites if suite in SUITES]
            is_named, is_of_layer = test["name"] in named, layer in suites
            is_fit = ranks and "soak" not in suites and "nosan" not in suites and test["protocol"] == "tap"
            if is_named or (is_fit and not is_quick) or (is_fit and is_of_layer and not named):
                is_long = "slow" in suites or not test.get("is_parallel", True)
                ranked.append((not is_named, not is_of_layer, is_long, min(ranks, default=0), test["name"], test))
        unknown = set(named) - {test["name"] for test in self.tests}
        if unknown:
            raise SystemExit(f"mutants: {mutant.name} names tests that there are not: {' '.join(unknown)}")
        return [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:-1])]

    def run(self, test, timeout_s):
        """None if the test passed, else what of it failed."""
        words = [os.path.normpath(word) for word in test["cmd"]]
        files = [word for word in words if word.startswith(self.build + os.sep)]
        files += [file for target in test.get("depends", []) for file in self.targets.get(target, [])]
        self.ninja(*(os.path.relpath(file, self.build) for file in files))
        with subprocess.Popen(test["cmd"], env={**os.environ, **TEST_ENV, **test["env"]}, text=True, errors="replace",
                              cwd=test["workdir"] or self.build, start_new_session=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            try:
                out, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                return "did not end"
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL) # what it left, or all of it
                except ProcessLookupError:
                    pass
        failed = NOT_OK.search(out)
        if failed:
            return failed.group(1)
        return f"ended with {process.returncode}" if process.returncode != 0 else None


class Baseline:
    """The tests without a mutant: one that fails all the same has found nothing."""

    def __init__(self):
        self.results = {}

    def passes(self, tree, test, timeout_s):
        name = test["name"]
        if name not in self.results:
            tree.put(None)
            self.results[name] = tree.run(test, timeout_s) is None
            if not self.results[name]:
                print(f"mutants: {name} fails without a mutant, too: it is left out", file=sys.stderr, flush=True)
        return self.results[name]


def kill(tree, baseline, mutant, options):
    """What found it, or None."""
    for test in tree.order(mutant, options.named):
        tree.put(mutant)
        failed = tree.run(test, options.timeout)
        if failed is not None and baseline.passes(tree, test, options.timeout):
            is_written = mutant.written and mutant.written in f"{test['name']}: {failed}"
            return f"{test['name']}: {failed}{' (written for it)' if is_written else ''}"
    return None


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("-j", type=int, default=min(2, os.cpu_count() or 1), dest="num_trees")
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    mutants = [apply.find(name) for name in options.names] if options.names else apply.read_list()
    trees = [Tree(number) for number in range(options.num_trees)]
    lock, lived, baseline = threading.Lock(), [], Baseline()

    def work(mutant):
        started = time.monotonic()
        with lock:
            tree = trees.pop()
        try:
            killer = kill(tree, baseline, mutant, options)
            verdict = f"killed by {killer}" if killer else "LIVED"
        except DoesNotBuild as problem:
            killer, verdict = None, f"DOES NOT BUILD:\n{problem}"
        finally:
            tree.put(None)
            with lock:
                trees.append(tree)
        with lock:
            if killer is None:
                lived.append(mutant.name)
            print(f"{mutant.name:34} {verdict}  [{time.monotonic() - started:.0f} s]\n"
                  f"{'':34} {mutant.what}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.num_trees) as pool:
        for future in [pool.submit(work, mutant) for mutant in mutants]:
            future.result()
    if lived:
        print(f"mutants: these lived: {shlex.join(lived)}", file=sys.stderr)
    print(f"{len(mutants) - len(lived)} killed, {len(lived)} lived", flush=True)
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main())
