#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""coverage.py [--missing] [--no-run]: line and branch coverage of the pure protocol, src/core and src/ctl, by their
own tests, those of the engines and the fuzz corpora. Exit status 1 if a test fails or less than 95 % of the branches
of either folder are taken.

Built in build-coverage without optimization, so that branches are those of the source. Read from `gcov
--json-format`: a branch counts as taken if any object took it (inline functions of headers are in several). Not
counted are the branches of SML_ASSERT statements, which trap and never return; nothing else is left out.
--missing lists each line with a branch that was never taken; --no-run takes what an earlier run left.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build-coverage")
FOLDERS = ["src/core", "src/ctl"]
SUITES = ["core", "ctl", "engine", "fuzz"]
MIN_PERCENT = 95.0
TEST_FILE = re.compile(r"_test\.c$|_world\.h$")


def build_and_test():
    subprocess.run([os.path.join(ROOT, "tools/configure"), BUILD, "--libdir=lib", "-Db_coverage=true",
                    "--buildtype=debug"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", BUILD, "--quiet"], check=True)
    for path in glob.glob(os.path.join(BUILD, "**/*.gcda"), recursive=True):
        os.unlink(path) # of earlier runs
    command = ["meson", "test", "-C", BUILD, "--no-rebuild", "--quiet", "--timeout-multiplier", "10"]
    for suite in SUITES:
        command += ["--suite", suite]
    return subprocess.run(command, check=False).returncode == 0


def assert_lines(path):
    """Numbers of the lines of SML_ASSERT statements."""
    numbers, is_within = set(), False
    with open(os.path.join(ROOT, path), encoding="utf-8") as text:
        for number, line in enumerate(text, 1):
            is_within = is_within or re.match(r"\s*SML_ASSERT\(", line) is not None
            if is_within:
                numbers.add(number)
                is_within = not line.rstrip().endswith(");")
    return numbers


def read_counts():
    """{path: {line: [executions, {(function, branch): times taken}]}} over all objects."""
    counts = {}
    notes = sorted(glob.glob(os.path.join(BUILD, "**/*.gcda"), recursive=True))
    for at in range(0, len(notes), 50):
        output = subprocess.run(["gcov", "--json-format", "--stdout", "--branch-probabilities"] + notes[at:at + 50],
                                cwd=BUILD, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for document in output.stdout.splitlines():
            for file in json.loads(document)["files"] if document.strip() else []:
                path = os.path.relpath(os.path.normpath(os.path.join(BUILD, file["file"])), ROOT)
                if os.path.dirname(path) not in FOLDERS or TEST_FILE.search(path):
                    continue
                lines = counts.setdefault(path, {})
                for line in file["lines"]:
                    entry = lines.setdefault(line["line_number"], [0, {}])
                    entry[0] += line["count"]
                    for index, branch in enumerate(line["branches"]):
                        key = (line.get("function_name"), index)
                        entry[1][key] = entry[1].get(key, 0) + branch["count"]
    return counts


class Sum:
    def __init__(self):
        self.lines = self.lines_run = self.branches = self.branches_taken = 0

    def add(self, lines, skipped):
        """Returns the numbers of the lines with a branch that was never taken."""
        missing = []
        for number, (executions, branches) in sorted(lines.items()):
            self.lines += 1
            self.lines_run += executions > 0
            if number in skipped:
                continue
            taken = sum(count > 0 for count in branches.values())
            self.branches += len(branches)
            self.branches_taken += taken
            if taken < len(branches) or executions == 0:
                missing.append(number)
        return missing

    def percent(self):
        return 100.0 * self.branches_taken / self.branches if self.branches else 100.0

    def line(self, name):
        lines = 100.0 * self.lines_run / self.lines if self.lines else 100.0
        return (f"{name:34} lines {self.lines_run:>5} of {self.lines:>5} {lines:6.1f} %   "
                f"branches {self.branches_taken:>5} of {self.branches:>5} {self.percent():6.1f} %")


def show_missing(path, numbers):
    with open(os.path.join(ROOT, path), encoding="utf-8") as text:
        lines = text.read().splitlines()
    for number in numbers:
        print(f"  {path}:{number}: {lines[number - 1].strip()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--missing", action="store_true", help="list lines with a branch that was never taken")
    parser.add_argument("--no-run", action="store_true", help="read what an earlier run left")
    options = parser.parse_args()
    is_well = options.no_run or build_and_test()
    counts = read_counts()
    for folder in FOLDERS:
        total = Sum()
        for path in sorted(path for path in counts if os.path.dirname(path) == folder):
            skipped, one = assert_lines(path), Sum()
            missing = one.add(counts[path], skipped)
            total.add(counts[path], skipped)
            print(one.line(path))
            if options.missing:
                show_missing(path, missing)
        print(total.line(folder))
        if total.branches == 0 or total.percent() < MIN_PERCENT:
            print(f"coverage: {folder} has less than {MIN_PERCENT:.0f} % of its branches")
            is_well = False
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
