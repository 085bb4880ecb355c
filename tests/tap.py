# SPDX-License-Identifier: Apache-2.0
"""The few lines of Test Anything Protocol that the Python tests share."""
import os
import signal
import sys
import traceback


class Skip(Exception):
    """Raised by a test that cannot run here; its text says why."""


def patience_s(limit_s):
    """So long a test waits for what takes limit_s at most if each process that wants a processor has one."""
    return limit_s * max(1, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def run(tests, chosen=()):
    """Runs functions named test_*; prints one line each; returns the exit status."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background jobs, and then all that they start
        signal.signal(signal.SIGINT, signal.default_int_handler)
    tests = [test for test in tests if not chosen or test.__name__ in chosen]
    print(f"1..{len(tests)}", flush=True)
    num_failed = 0
    for number, test in enumerate(tests, 1):
        name = test.__name__.replace("test_", "", 1)
        try:
            test()
            print(f"ok {number} - {name}", flush=True)
        except Skip as why:
            print(f"ok {number} - {name} # SKIP {why}", flush=True)
        except Exception: # pylint: disable=broad-except
            num_failed += 1
            for line in traceback.format_exc().splitlines():
                print(f"# {line}")
            print(f"not ok {number} - {name}", flush=True)
    return 1 if num_failed else 0


def tests_of(namespace):
    """The test functions of a module's globals(), in the order of the file."""
    found = [value for name, value in namespace.items() if name.startswith("test_") and callable(value)]
    return sorted(found, key=lambda test: test.__code__.co_firstlineno)


def main(namespace):
    sys.exit(run(tests_of(namespace), sys.argv[1:]))
