#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""check.py [--once] SUITE... [-- MESON TEST ARGUMENTS]: builds and runs the tests of each suite in its own build
directory, and closes with one line: `N passed, M failed, K skipped`.

Suites: plain, asan-all (AddressSanitizer and UndefinedBehaviorSanitizer; built by clang where there is one, which warns
of other things than gcc), asan (of these what make check has), tsan (ThreadSanitizer, the tests of threaded code),
valgrind (memcheck over the C tests of single layers and the library), neon (cross-built for AArch64, the tests of numbers under qemu), armhf and
s390x (the pure layers, cross-built for 32 bits and for a big-endian processor, under qemu), soak (the long randomized
tests). What is counted are the single tests inside each program, as its TAP output names them.

Most tests wait more than they compute: while those of a suite run, the suites that follow are built with the time that
they leave, and what needs no clock of theirs is tested. Programs run side by side, more of them than there are processors. Where at most three fail, each by a test's own
word (not by a sanitizer's report, a crash or the time limit), they are run again, one at a time: that tells a fault
from a machine too busy for some test. What fails again has failed; what passes is counted as passed and listed, with
the reason of its first failure, above the closing line. --once leaves the second run out.
"""
import argparse
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SANITIZER_ENV = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:die_after_fork=0",
}
MEMCHECK = ("valgrind --quiet --error-exitcode=99 --leak-check=full --fair-sched=try "
            f"--suppressions={ROOT}/tools/memcheck.supp")
# -g1 and -O1: half as much to build, and reports name lines as well
ASAN = ("build-asan", ["--optimization=1", "-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dc_args=-g1"], "clang",
        ["--no-suite", "soak", "--no-suite", "nosan", "--timeout-multiplier", "4"])
# name: (directory, meson options, compiler if CC does not name one and it is there, arguments of meson test)
SUITES = {
    # timeouts end what hangs; a machine may be slow, and busy with the next build
    "plain": ("build", [], None, ["--no-suite", "soak", "--timeout-multiplier", "4"]),
    "asan-all": ASAN,
    "asan": (*ASAN[:3], [*ASAN[3], "--no-suite", "check-asan"]), # what waits long is in `make check-asan` alone
    "tsan": ("build-tsan", ["-Db_sanitize=thread", "-Db_lundef=false", "-Dc_args=-g1"], None,
             ["--no-suite", "nosan", "--no-suite", "notsan", "--suite", "netio", "--suite", "aggd", "--suite", "lib",
              "--timeout-multiplier", "6"]),
    "valgrind": ("build", [], None,
                 ["--no-suite", "nosan", "--no-suite", "notsan", "--no-suite", "slow", "--timeout-multiplier", "20",
                  "--wrap", MEMCHECK]
                 + [f"--suite={layer}" for layer in ["base", "core", "quant", "ctl", "netio", "engine", "lib"]]),
    "neon": ("build-neon", ["--cross-file", "tools/aarch64.ini"], None,
             ["--suite", "base", "--suite", "quant", "--no-suite", "native", "--timeout-multiplier", "4"]),
    **{architecture: (f"build-{architecture}", ["--cross-file", f"build-{architecture}-root/cross.ini"], None,
                      ["--no-suite", "slow", "--no-suite", "native", "--timeout-multiplier", "4"]
                      + [f"--suite={layer}" for layer in ["base", "core", "trace", "quant", "ctl", "engine"]])
       for architecture in ("armhf", "s390x")},
    "soak": ("build", [], None, ["--suite", "soak", "--timeout-multiplier", "0"]),
}
TOOLS = {"valgrind": ["valgrind"], "neon": ["aarch64-linux-gnu-gcc", "qemu-aarch64"]} # what a suite needs besides
TESTS_ONLY = ("tsan", "armhf", "s390x") # of these only what their tests need is built
SANITIZER_REPORT = re.compile(r"(ERROR|WARNING): \w+Sanitizer|: runtime error: ")
MAX_AGAIN = 3
NO_CLOCK = ("base", "core", "quant", "ctl", "engine", "sim", "fuzz") # of these tests none fails for want of a processor
SKIPPED = re.compile(r"^\s*# skipped: (.*)$") # as src/base/test_skip.h has it
TAP_LINE = re.compile(r"^\s*(not )?ok\b\s*(\d*)(.*)$")


class Count:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, 0, 0
        self.failures, self.skips, self.passed_alone = [], [], []

    def add(self, test, number, rest, is_ok, notes=()):
        name = f"{test}: {rest.strip(' -') or number}"
        directive = re.search(r"#\s*(skip|todo)\b", rest, re.IGNORECASE)
        if directive:
            self.skipped += 1
            self.skips.append(name)
        elif is_ok:
            self.passed += 1
        else:
            self.failed += 1
            self.failures.append("\n    ".join([name, *notes]))


def notes_about(lines, at):
    """What a program said of the failure in line `at`: comments in front of it, as our own TAP writes them, or behind
    it, as cmocka does."""
    before, behind = [], []
    for line in reversed(lines[:at]):
        if not line.lstrip().startswith("#"):
            break
        before.insert(0, line)
    for line in lines[at + 1:]:
        if not line.lstrip().startswith("#"):
            break
        behind.append(line)
    return [line.strip()[:1000] for line in before[-3:] + behind[:3]]


def count_program(entry, label, count):
    """Counts one program of meson's testlog.json: its TAP lines, and its own end if that went wrong."""
    test = f"{label} {entry['name']}"
    failed_before, num_results = count.failed, 0
    lines = entry.get("stdout", "").splitlines()
    errors = [line[:1000] for line in entry.get("stderr", "").splitlines() if line.startswith("ERROR: ")][:3] # cmocka's
    for at, line in enumerate(lines):
        match = TAP_LINE.match(line)
        if match:
            num_results += 1
            skipped = SKIPPED.match(lines[at - 1]) if at > 0 else None
            rest = f"{match.group(3)} # skip {skipped.group(1)}" if skipped else match.group(3)
            count.add(test, match.group(2), rest, not match.group(1), notes_about(lines, at) + errors)
    plan = re.search(r"^1\.\.0\b.*#\s*skip(.*)$", entry.get("stdout", ""), re.IGNORECASE | re.MULTILINE)
    is_bad = entry["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")
    if is_bad and count.failed == failed_before:
        count.add(test, "", f"{entry['result']} (exit status {entry.get('returncode')})", False,
                  [line[:1000] for line in entry.get("stderr", "").splitlines()[-5:]])
    elif num_results == 0 and not is_bad:
        is_skip = plan is not None or entry["result"] == "SKIP"
        count.add(test, "", f"# skip {plan.group(1) if plan else ''}" if is_skip else "program", True)


def may_run_again(entry):
    """Whether a program of the log failed by a test's own word."""
    output = entry.get("stdout", "") + entry.get("stderr", "")
    said_so = re.search(r"^\s*not ok\b", entry.get("stdout", ""), re.MULTILINE)
    ended_itself = entry["result"] in ("FAIL", "ERROR") and 0 <= entry.get("returncode", -1) < 128
    return said_so and ended_itself and not SANITIZER_REPORT.search(output)


def meson_test(directory, arguments, env, log="testlog"):
    """Runs `meson test`; returns its exit status and an entry for each program."""
    drop_logs(directory, log)
    status = run(["meson", "test", "-C", directory, "--print-errorlogs", "--logbase", log] + arguments, env)
    return status, read_logs(directory, log)


def logs_of(directory, log):
    return glob.glob(os.path.join(ROOT, directory, f"meson-logs/{log}*.json")) # with a wrapper, its name is there too


def drop_logs(directory, log):
    for path in logs_of(directory, log):
        os.unlink(path)


def read_logs(directory, log):
    entries = []
    for path in logs_of(directory, log):
        with open(path, encoding="utf-8") as lines:
            entries += [json.loads(line) for line in lines if line.strip()]
    return entries


def run_failed_again(label, entries, test_arguments, env, count):
    """Programs of `entries` that failed as they may on a busy machine run again, alone; returns the entries to count."""
    failed = [entry for entry in entries if entry["result"] not in ("OK", "SKIP", "EXPECTEDFAIL")]
    if not 0 < len(failed) <= MAX_AGAIN or not all(may_run_again(entry) for entry in failed):
        return entries
    names = [entry["name"].split(" / ")[-1] for entry in failed]
    print(f"check: {label}: again, alone: {' '.join(names)}", flush=True)
    _, again = meson_test(SUITES[label][0], ["--no-rebuild", "--num-processes", "1"] + test_arguments + names, env,
                          "second")
    second = {entry["name"]: entry for entry in again}
    for entry in failed:
        if second.get(entry["name"], entry)["result"] == "OK":
            first = Count()
            count_program(entry, label, first)
            count.passed_alone += first.failures
    return [second.get(entry["name"], entry) for entry in entries]


def run(command, env=None, quiet=False):
    result = subprocess.run(command, cwd=ROOT, env=env, text=True, check=False,
                            stdout=subprocess.PIPE if quiet else None,
                            stderr=subprocess.STDOUT if quiet else None)
    if quiet and result.returncode != 0:
        sys.stdout.write(result.stdout)
    return result.returncode


def configure(label):
    directory, options, compiler, _ = SUITES[label]
    env = {"CC": compiler, **os.environ} if compiler and sanitizer_works("address", compiler) else None
    return run([os.path.join(ROOT, "tools/configure"), directory, "--libdir=lib"] + options, env, quiet=True) == 0


def tests_of(label):
    """The tests of a suite, as `meson introspect` has them."""
    directory, _, _, arguments = SUITES[label]
    parser = argparse.ArgumentParser()
    for option in ("--suite", "--no-suite"):
        parser.add_argument(option, action="append", default=[])
    wanted = parser.parse_known_args(arguments)[0]
    listed = subprocess.run(["meson", "introspect", "--tests", directory], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    for test in json.loads(listed.stdout):
        suites = {suite.split(":")[-1] for suite in test["suite"]}
        if (not wanted.suite or suites & set(wanted.suite)) and not suites & set(wanted.no_suite):
            yield test


def targets(label):
    """What ninja has to build for a suite; nothing: all."""
    if label not in TESTS_ONLY:
        return []
    prefix = os.path.join(ROOT, SUITES[label][0], "")
    return sorted({test["cmd"][0].removeprefix(prefix) for test in tests_of(label) if test["cmd"][0].startswith(prefix)})


class Ahead:
    """Builds the directories of the suites that follow while the tests of another run, one after the other, when no other
    program wants a processor. What is not built at the end, or does not build, is left to build(), which says so. Then
    tests of NO_CLOCK run likewise; `tested` gets the entries of those that ended, by label."""

    def __init__(self, labels, env, tested):
        self.labels, self.env, self.tested = labels, env, tested
        self.process, self.is_over, self.lock = None, False, threading.Lock()
        self.thread = threading.Thread(target=self.run)

    def carry_out(self, command):
        """Whether it ended well before the other tests did."""
        with self.lock:
            if self.is_over:
                return False
            self.process = subprocess.Popen(command, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self.process.wait() == 0

    def run(self):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)) # this thread, and what it starts
        built = [label for label in self.labels if not self.is_over and not why_skipped(label) and configure(label) and
                 self.carry_out(["ninja", "-C", SUITES[label][0], *targets(label)])]
        for label in built:
            directory, _, _, arguments = SUITES[label]
            if label in self.tested or any(argument.startswith("--suite") for argument in arguments): # it has its own
                continue
            drop_logs(directory, "ahead")
            self.carry_out(["meson", "test", "-C", directory, "--no-rebuild", "--logbase", "ahead", *arguments,
                            *(f"--suite={suite}" for suite in NO_CLOCK)])
            self.tested[label] = [entry for entry in read_logs(directory, "ahead")
                                  if entry["result"] not in ("INTERRUPT", "TIMEOUT", "SKIP")]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        with self.lock:
            self.is_over = True
            if self.process and self.process.poll() is None:
                # ninja ends its compilers, and removes what they have not finished; meson ends its tests
                self.process.send_signal(signal.SIGINT if self.process.args[0] == "ninja" else signal.SIGTERM)
        self.thread.join()


def build(label, directory):
    """Sets a build directory up and builds what the suite needs of it."""
    if not configure(label):
        return False
    print(f"check: building {label} in {directory}/", flush=True)
    watched = sys.stdout.isatty() # by someone who wants to see how far it is
    if run(["ninja", "-C", directory, *targets(label)] + ([] if watched else ["--quiet"]), quiet=not watched) != 0:
        return False
    return label in TESTS_ONLY or run([os.path.join(ROOT, "tools/stage"), directory]) == 0


def sanitizer_works(name, compiler="cc"):
    """Old runtimes do not start on kernels with more address space randomization than they know; clang's is a package of
    its own."""
    probe = f"echo 'int main(void){{return 0;}}' > $d/a.c && {compiler} -fsanitize={name} $d/a.c -o $d/a && $d/a"
    return run(["sh", "-c", f'd=$(mktemp -d) && {{ {probe}; }} > /dev/null 2>&1; s=$?; rm -rf "$d"; exit $s']) == 0


def why_skipped(label):
    """What is missing for a suite; None if nothing is."""
    for tool in TOOLS.get(label, []):
        if not shutil.which(tool):
            return f"{tool} is not installed"
    if label == "tsan" and not sanitizer_works("thread"):
        return "ThreadSanitizer does not start on this kernel"
    if label in ("armhf", "s390x"):
        made = subprocess.run(["tools/sysroot", label], cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False)
        return made.stdout.strip() if made.returncode else None
    return None


def run_suite(label, following, extra, is_once, count, tested):
    directory, _, _, test_arguments = SUITES[label]
    why = why_skipped(label)
    if why:
        count.add(label, "", f"build and run # skip {why}", True)
        return
    if not build(label, directory):
        count.add(label, "", "build failed", False)
        return
    env = {**os.environ, **SANITIZER_ENV}
    started, passed_before, failed_before = time.monotonic(), count.passed, count.failed
    # Many tests wait more than they work, with sanitizers fewer, under valgrind none: leases run out. One more has the
    # simulator's seeds, which let others go first.
    num_more = {"asan": 2, "asan-all": 2, "tsan": 1, "valgrind": 0}.get(label, 3)
    ahead = [] if extra else tested.get(label, [])
    names = {entry["name"].split(" / ")[-1] for entry in ahead}
    rest = sorted({test["name"] for test in tests_of(label)} - names) if ahead else []
    with Ahead(following, env, tested):
        status, entries = meson_test(directory, ["--num-processes", str((os.cpu_count() or 1) + num_more)]
                                     + ["--no-rebuild"] + test_arguments + extra + rest, env)
    names |= {entry["name"].split(" / ")[-1] for entry in entries}
    if not set(rest) <= names:
        count.add(label, "", f"not run: {' '.join(sorted(set(rest) - names))}", False)
    entries += ahead
    first_entries = entries
    if not is_once:
        entries = run_failed_again(label, entries, test_arguments, env, count)
    for entry in entries:
        count_program(entry, label, count)
    if (status != 0 and count.failed == failed_before and entries == first_entries) or not entries:
        count.add(label, "", f"meson test ended with {status} and {len(entries)} programs", False)
    print(f"check: {label}: {count.passed - passed_before} passed, {count.failed - failed_before} failed, "
          f"{time.monotonic() - started:.0f} s", flush=True)


def main(arguments):
    extra = arguments[arguments.index("--") + 1:] if "--" in arguments else []
    labels = arguments[:arguments.index("--")] if "--" in arguments else arguments
    is_once = "--once" in labels
    labels = [label for label in labels if label != "--once"]
    unknown = [label for label in labels if label not in SUITES]
    if unknown or not labels:
        print(f"check: unknown suite {unknown}; there are: {' '.join(SUITES)}", file=sys.stderr)
        return 2
    count, tested = Count(), {}
    for number, label in enumerate(labels, 1):
        run_suite(label, labels[number:], extra, is_once, count, tested)
    for name in count.skips:
        print(f"skipped: {name}")
    for name in count.passed_alone:
        print(f"failed beside others, passed alone: {name}")
    for name in count.failures:
        print(f"FAILED: {name}")
    print(f"{count.passed} passed, {count.failed} failed, {count.skipped} skipped", flush=True)
    return 1 if count.failed or not count.passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
