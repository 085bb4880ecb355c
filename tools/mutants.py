#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""mutants.py [NAME...]: builds each seeded bug of mutants/list behind its build flag (-Dmutant=NAME) and
runs the tests until one finds it. Prints which; exit status 1 if a mutant lived.

Tests run in the order of SUITES, those that the list names for the mutant before all others, then those of the layer
that is changed, and long ones last: so the one named is the first that sees the bug, not the only one. A test that was written for the mutant is marked.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "mutants"))
import apply # noqa: E402  pylint: disable=wrong-import-position

SUITES = ["base", "core", "quant", "ctl", "trace", "fuzz", "host", "engine", "sim", "aggd", "lib", "netio", "dataplane",
          "pipeline", "cli", "mpi"]
TEST_ENV = {"SWITCHML_CHECK": "1", "SWITCHML_SHARED_MEMORY": "0"} # as meson test has it
NUM_BUILDS = min(2, os.cpu_count() or 1)
TIMEOUT_S = 300 # far more than any test takes, on a busy machine too: "did not end" must be the mutant's doing
NOT_OK = re.compile(r"^\s*not ok\s*\d*\s*-?\s*(.*)$", re.MULTILINE)


class Build:
    """One build directory, used for one mutant at a time."""

    def __init__(self, number):
        self.directory = os.path.join(ROOT, "build-mutants", str(number))

    def ninja(self, *targets):
        done = subprocess.run(["ninja", "-C", self.directory, "--quiet", *targets], text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise SystemExit(f"mutants: the build failed:\n{done.stdout[-3000:]}")

    def select(self, mutant):
        is_new = not os.path.exists(os.path.join(self.directory, "build.ninja"))
        verb = ["setup", "--libdir=lib", "-Dwerror=false", self.directory, ROOT] if is_new \
            else ["configure", self.directory]
        done = subprocess.run(["meson", *verb, f"-Dmutant={mutant}"], cwd=ROOT, text=True, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise SystemExit(f"mutants: meson failed:\n{done.stdout[-3000:]}")
        self.ninja("build.ninja")

    def tests(self, layer):
        text = subprocess.run(["meson", "introspect", self.directory, "--tests"], text=True, check=True,
                              stdout=subprocess.PIPE).stdout
        tests = []
        for test in json.loads(text):
            suites = [suite.split(":")[-1] for suite in test["suite"]]
            ranks = [SUITES.index(suite) for suite in suites if suite in SUITES]
            if ranks and "soak" not in suites and "nosan" not in suites and test["protocol"] == "tap":
                order = (layer not in suites, "slow" in suites or not test.get("is_parallel", True), min(ranks))
                tests.append((order, test))
        return [test for _, test in sorted(tests, key=lambda pair: pair[0])]

    def run(self, test):
        """None if the test passed, else what of it failed."""
        words = [os.path.normpath(word) for word in test["cmd"]]
        targets = [os.path.relpath(word, self.directory) for word in words
                   if word.startswith(self.directory + os.sep)]
        self.ninja(*targets)
        try:
            done = subprocess.run(test["cmd"], env={**os.environ, **TEST_ENV, **test["env"]}, text=True, check=False,
                                  cwd=test["workdir"] or self.directory, timeout=TIMEOUT_S, errors="replace",
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            return "did not end"
        failed = NOT_OK.search(done.stdout)
        if failed:
            return failed.group(1)
        return f"ended with {done.returncode}" if done.returncode != 0 else None


class Baseline:
    """The tests without a mutant: one that fails all the same has found nothing."""

    def __init__(self):
        self.lock, self.build, self.results = threading.Lock(), Build("plain"), {}

    def passes(self, name):
        with self.lock:
            if not self.results:
                self.build.select("")
                self.results = {"": True}
            if name not in self.results:
                test = next(test for test in self.build.tests("") if test["name"] == name)
                self.results[name] = self.build.run(test) is None
                if not self.results[name]:
                    print(f"mutants: {name} fails without a mutant, too: it is left out", file=sys.stderr, flush=True)
            return self.results[name]


def kill(build, baseline, mutant):
    started = time.monotonic()
    build.select(mutant.name)
    named = mutant.tests.split()
    tests = build.tests(os.path.basename(os.path.dirname(mutant.file)))
    for test in sorted(tests, key=lambda test: test["name"] not in named):
        failed = build.run(test)
        if failed is not None and baseline.passes(test["name"]):
            is_written = mutant.written and mutant.written in f"{test['name']}: {failed}"
            return f"{test['name']}: {failed}{' (written for it)' if is_written else ''}", started
    return None, started


def main(names):
    mutants = [apply.find(name) for name in names] if names else apply.read_list()
    builds = [Build(number) for number in range(NUM_BUILDS)]
    lock, lived, baseline = threading.Lock(), [], Baseline()

    def work(mutant):
        with lock:
            build = builds.pop()
        try:
            killer, started = kill(build, baseline, mutant)
        finally:
            with lock:
                builds.append(build)
        with lock:
            if killer is None:
                lived.append(mutant.name)
            verdict = f"killed by {killer}" if killer else "LIVED"
            print(f"{mutant.name:34} {verdict}  [{time.monotonic() - started:.0f} s]\n"
                  f"{'':34} {mutant.what}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(NUM_BUILDS) as pool:
        for future in [pool.submit(work, mutant) for mutant in mutants]:
            future.result()
    if lived:
        print(f"mutants: these lived: {shlex.join(lived)}", file=sys.stderr)
    print(f"{len(mutants) - len(lived)} killed, {len(lived)} lived", flush=True)
    return 1 if lived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
