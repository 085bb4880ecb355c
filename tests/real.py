# SPDX-License-Identifier: Apache-2.0
"""Real workers (tests/tools/member.c) that say what happened to them and when, and what a test asks of a whole
job of them. Times are CLOCK_MONOTONIC, the same in all processes of a machine."""
import contextlib
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time

import e2e

MEMBER = os.environ.get("SWITCHML_MEMBER", "member")
RANK_LOST, AGGREGATOR_LOST = -11, -12


class Member:
    """One rank, a process. stderr: where the library's log goes instead of to what text() reads. With MEMBER_WAIT it sums
    nothing before go()."""

    def __init__(self, address, rank, world_size, stderr=None, **env):
        self.rank = rank
        self.output = tempfile.TemporaryFile("w+", prefix="switchml-member-")
        variables = {"RANK": rank, "WORLD_SIZE": world_size, "SWITCHML_AGGREGATOR": address, **env}
        self.process = subprocess.Popen([MEMBER], env=e2e.environment(**variables), stdout=self.output,
                                        stdin=subprocess.PIPE if "MEMBER_WAIT" in env else subprocess.DEVNULL,
                                        stderr=stderr or self.output)

    def go(self):
        self.process.stdin.write(b"\n")
        self.process.stdin.close()

    def text(self):
        # not seek and read: the file position is the process's as well
        return os.pread(self.output.fileno(), 1 << 20, 0).decode(errors="replace")

    def has_said(self, word):
        return re.search(rf"^\d+ {word}\b", self.text(), re.MULTILINE) is not None

    def wait_for(self, word, seconds=20):
        e2e.wait_until(lambda: self.has_said(word) or self.process.poll() is not None, f"rank {self.rank}: {word}", seconds)
        assert self.has_said(word), f"rank {self.rank} ended without '{word}':\n{self.text()}"

    def finish(self, seconds=20):
        """Exit status."""
        try:
            return self.process.wait(seconds * e2e.PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {self.rank} did not end within {seconds} s:\n{self.text()}") from None

    def error(self, seconds=20):
        """(seconds on the clock, status, ranks, detail) of the error that it must end with."""
        status = self.finish(seconds)
        match = re.search(r'^(\d+) error (-\d+) (\S+) \d+ "(.*)"$', self.text(), re.MULTILINE)
        assert status == 3 and match, f"rank {self.rank} ended with {status}:\n{self.text()}"
        ranks = [] if match.group(3) == "-" else [int(rank) for rank in match.group(3).split(",")]
        return int(match.group(1)) / 1e9, int(match.group(2)), ranks, match.group(4)

    def expect_done(self, seconds=60):
        status = self.finish(seconds)
        assert status == 0 and self.has_said("done"), f"rank {self.rank} ended with {status}:\n{self.text()}"

    def when(self, word):
        return int(re.search(rf"^(\d+) {word}\b", self.text(), re.MULTILINE).group(1)) / 1e9

    def joined_s(self):
        """Seconds that its join took."""
        return int(re.search(r"^\d+ joined (\d+)", self.text(), re.MULTILINE).group(1)) / 1e9

    def send_signal(self, number):
        self.process.send_signal(number)

    def close(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if self.process.stdin:
            self.process.stdin.close()
        self.output.close()


@contextlib.contextmanager
def job(address, world_size, **env):
    """All ranks of one job; whatever is left of them is killed at the end."""
    members = [Member(address, rank, world_size, **env) for rank in range(world_size)]
    try:
        yield members
    finally:
        for member in members:
            member.close()


def join_seconds(address, world_size=2, patience_s=20, **env):
    """Seconds until a new job of two has joined and summed once, from the first attempt that succeeds or not: an
    aggregator without room refuses, then it is tried again."""
    start = time.monotonic()
    while True:
        with job(address, world_size, **{"MEMBER_OPERATIONS": 1, "MEMBER_ELEMENTS": 1000, **env}) as members:
            if all([member.finish(patience_s) == 0 for member in members]):
                return time.monotonic() - start
            text = members[0].text()
        assert time.monotonic() - start < patience_s * e2e.PATIENCE, f"no job joins: {text}"


def summary(seconds):
    """"p50 0.012 p99 0.034 max 0.040 s of 50", as far as there are values."""
    ordered = sorted(seconds)
    if not ordered:
        return "none"
    p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return f"p50 {statistics.median(ordered):.3f} p99 {p99:.3f} max {ordered[-1]:.3f} s of {len(ordered)}"
