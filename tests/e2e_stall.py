#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""switchmld whose standard error nobody reads, is closed, or may not grow: jobs go on, signals are heeded, and what was
left out is said."""
import contextlib
import fcntl
import os
import pty
import re
import resource
import signal
import subprocess
import tempfile
import termios
import time

import e2e
import peer
import real
import tap

PAGE_BYTES = 4096
NUM_REFUSED = 800


class Daemon:
    """A switchmld whose standard error is given."""

    def __init__(self, stderr, *arguments, prepare=None):
        self.directory = tempfile.TemporaryDirectory(prefix="switchml-e2e-")
        self.port_file = os.path.join(self.directory.name, "port")
        self.process = subprocess.Popen(
            [e2e.SWITCHMLD, "--listen", "127.0.0.1:0", "--port-file", self.port_file, *arguments], env=e2e.environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, preexec_fn=prepare)
        e2e.wait_until(lambda: os.path.exists(self.port_file), "switchmld wrote its address")
        with open(self.port_file, encoding="utf-8") as file:
            self.address = file.read().strip()
        self.port = int(self.address.rsplit(":", 1)[1])

    def status(self):
        return e2e.status(self.address)

    def expect_heeds(self, number):
        self.process.send_signal(number)
        assert self.process.wait(10 * e2e.PATIENCE) == 0

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.process.kill()
        self.process.wait()
        self.directory.cleanup()


@contextlib.contextmanager
def small_pipe():
    """(read end, write end) of a pipe with little room."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PAGE_BYTES)
    try:
        yield reader, writer
    finally:
        os.close(reader)
        with contextlib.suppress(OSError):
            os.close(writer)


def fill(writer):
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.set_blocking(writer, True)


def refuse_joins(port, number):
    """So many joins of a job that has started, from 200 addresses: each is a line of the log, if there is room."""
    for i in range(number):
        control = peer.Control(port, f"127.0.{1 + i % 200}.2")
        control.say("JOIN", **{**peer.Member.JOIN, "rank": 0, "world_size": 3, "job_name": "taken"})
        with contextlib.suppress(peer.Closed, AssertionError):
            control.hear(5 * e2e.PATIENCE)
        control.close()


def working_job(daemon):
    return real.job(daemon.address, 2, MEMBER_JOB="taken", MEMBER_PAUSE_US=1000, MEMBER_ELEMENTS=1000)


def read_until(reader, word, between=lambda: None, seconds=20):
    """What is read until it has the word; `between` is done every 0.3 s."""
    text, end = b"", time.monotonic() + seconds * e2e.PATIENCE
    os.set_blocking(reader, False)
    while word not in text and time.monotonic() < end:
        try:
            text += os.read(reader, 65536)
        except BlockingIOError:
            between()
            time.sleep(0.3)
    return text.decode(errors="replace")


def test_a_stranger_fills_a_pipe_that_nobody_reads():
    with small_pipe() as (reader, writer), Daemon(writer) as daemon, working_job(daemon) as members:
        os.close(writer)
        for member in members:
            member.wait_for("working")
        refuse_joins(daemon.port, NUM_REFUSED)
        status = daemon.status()
        assert status["events"]["join_refused"] >= NUM_REFUSED, status["events"]
        assert [job["state"] for job in status["jobs"]] == ["running"], status["jobs"]
        assert status["log_lines_left_out"] > 0, status
        assert not any(member.has_said("error") for member in members), [member.text() for member in members]
        # Those beyond 200 a second are counted at the first line of a later one.
        text = read_until(reader, b"log_lines_left_out", lambda: refuse_joins(daemon.port, 1))
        assert re.search(r" warning log_lines_left_out count=\d+", text), text[-2000:]
        daemon.expect_heeds(signal.SIGTERM)


def test_sigterm_is_heeded_while_the_reader_stands_still():
    with small_pipe() as (reader, writer):
        fill(writer)
        with Daemon(writer) as daemon, working_job(daemon) as members:
            for member in members:
                member.wait_for("working")
            refuse_joins(daemon.port, NUM_REFUSED)
            assert not any(member.has_said("error") for member in members)
            daemon.expect_heeds(signal.SIGTERM)


def test_a_terminal_after_ctrl_s():
    controller, terminal = pty.openpty()
    try:
        with Daemon(terminal) as daemon, working_job(daemon) as members:
            for member in members:
                member.wait_for("working")
            termios.tcflow(terminal, termios.TCOOFF)
            refuse_joins(daemon.port, 300)
            assert daemon.status()["events"]["join_refused"] >= 300
            assert not any(member.has_said("error") for member in members)
            daemon.expect_heeds(signal.SIGTERM)
    finally:
        termios.tcflow(terminal, termios.TCOON)
        os.close(controller)
        os.close(terminal)


def close_standard():
    for number in range(3):
        os.close(number)


def test_closed_descriptors_stay_nobodys():
    with Daemon(subprocess.DEVNULL, prepare=close_standard) as daemon:
        links = [os.readlink(f"/proc/{daemon.process.pid}/fd/{number}") for number in range(3)]
        assert links == ["/dev/null"] * 3, links
        with real.job(daemon.address, 2, MEMBER_JOB="taken", MEMBER_OPERATIONS=200, MEMBER_ELEMENTS=5000) as members:
            members[0].wait_for("working")
            refuse_joins(daemon.port, 20)
            for member in members:
                member.expect_done()
        daemon.expect_heeds(signal.SIGTERM)


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))


def test_a_limit_of_file_sizes_ends_no_daemon():
    with tempfile.TemporaryDirectory(prefix="switchml-e2e-") as folder:
        reader, writer = os.pipe()
        arguments = ["--trace-dir", folder, "--trace", "all", "--pcap", os.path.join(folder, "x.pcapng")]
        with Daemon(writer, *arguments, prepare=limit_files) as daemon:
            os.close(writer)
            with real.job(daemon.address, 2, MEMBER_OPERATIONS=50, MEMBER_ELEMENTS=5000) as members:
                for member in members:
                    member.expect_done()
            daemon.process.send_signal(signal.SIGUSR1)
            text = read_until(reader, b"trace_failed")
            assert re.search(r"warning trace_failed .*File too large", text), text
            assert re.search(r"warning capture_ended .*File too large", text), text
            daemon.expect_heeds(signal.SIGTERM)
        os.close(reader)


if __name__ == "__main__":
    tap.main(globals())
