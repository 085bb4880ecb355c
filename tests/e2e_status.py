#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`switchml status` and `switchml top` of real daemons: what they show of jobs at work, of late and lost ranks, to whom
they show it, and how they end."""
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import tempfile
import termios
import threading
import time

import e2e
import peer
import real
import tap

LEASE_S = 0.5
KEYS = {"red": bytes(range(16)), "blue": bytes(range(1, 17))}


def run(command, *arguments, **env):
    process = subprocess.run([e2e.SWITCHML, command, *arguments], env=e2e.environment(**env), text=True, check=False,
                             stdin=subprocess.DEVNULL, capture_output=True, timeout=30 * e2e.PATIENCE)
    return process.returncode, process.stdout, process.stderr


def status_json(address, *arguments, expected=0, **env):
    code, out, err = run("status", address, "--json", "--interval", "0", *arguments, **env)
    assert code == expected, (code, out, err)
    return json.loads(out)


@contextlib.contextmanager
def scripted_job(port, name, world_size, lease_s=LEASE_S, **join):
    """Ranks whose heartbeats are the test's."""
    members = [peer.Member(port, rank, world_size, job_name=name, lease_ns=int(lease_s * 1e9), **join)
               for rank in range(world_size)]
    try:
        peer.join_all(members)
        yield members
    finally:
        for member in members:
            member.close()


def undocumented(value, text):
    """Names of members of a status that docs/operating.md does not have."""
    if isinstance(value, list):
        return {name for item in value for name in undocumented(item, text)}
    if not isinstance(value, dict):
        return set()
    return {name for name in value if not re.search(rf"`{name}(\[\])?`", text)} | {
        name for key, item in value.items() if key != "drops" for name in undocumented(item, text)}


def beat(members, submitted, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for member, number in zip(members, submitted):
            member.control.say("HEARTBEAT", submitted=number, completed=0, called=0)
        time.sleep(LEASE_S / 10)


@contextlib.contextmanager
def beating(members, submitted):
    """Heartbeats go on while the test asks something, however long it takes."""
    is_over = threading.Event()

    def go_on():
        while not is_over.is_set():
            beat(members, submitted, LEASE_S / 10)
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_exit_statuses():
    with e2e.Daemon() as daemon:
        code, out, err = run("status", daemon.address)
        assert code == 0 and "0 jobs" in out and not err, (code, out, err)
        code, out, err = run("status", SWITCHML_AGGREGATOR=daemon.address)
        assert code == 0 and "0 jobs" in out, (code, out, err)
        code, out, err = run("status", daemon.address, "--job", "nobody")
        assert code == 4 and "no job 'nobody'" in err, (code, out, err)
        address = daemon.address
    for command in "status", "top":
        code, out, err = run(command, address)
        assert code == 1 and "is switchmld running there?" in err and not out, (code, out, err)
        code, out, err = run(command)
        assert code == 2 and "SWITCHML_AGGREGATOR" in err, (code, out, err)
        code, out, err = run(command, "a:1", "b:2")
        assert code == 2 and "one HOST:PORT only" in err, (code, out, err)
    code, out, err = run("status", address, "--interval", "0.1")
    assert code == 2 and "0.3 to 60" in err, (code, out, err)
    code, out, err = run("top", address, "--interval", "0")
    assert code == 2 and "0.3 to 3600" in err, (code, out, err)
    code, out, err = run("statu", address)
    assert code == 2 and "do you mean 'status'?" in err, (code, out, err)


def test_strangers_are_no_aggregators():
    with e2e.Daemon() as daemon, tempfile.TemporaryFile() as nothing:
        for answer in [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"", peer.frame("START", b""),
                       peer.frame("STATUS_PART", struct.pack(">IIH", 10, 0, 5) + b"{\"a\""),
                       peer.frame("STATUS_PART", struct.pack(">IIH", 5, 0, 5) + b"hello"),
                       peer.frame("STATUS_PART", struct.pack(">IIH", 2**32 - 1, 0, 1) + b"{"),
                       peer.frame("STATUS_PART", struct.pack(">IIH", 9, 3, 1) + b"{"),
                       peer.frame("STATUS_PART", struct.pack(">IIH", 9, 0, 0)), peer.frame("CHALLENGE", bytes(16))]:
            listener = socket.create_server(("127.0.0.1", 0))
            process = subprocess.Popen([e2e.SWITCHML, "status", "127.0.0.1:%d" % listener.getsockname()[1]],
                                       env=e2e.environment(), stdout=nothing, stderr=subprocess.PIPE, text=True)
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.sendall(answer)
            connection.close()
            err = process.communicate(timeout=20 * e2e.PATIENCE)[1]
            assert process.returncode == 1 and err.startswith("switchml: status: "), (answer, process.returncode, err)
            listener.close()
        assert daemon.is_alive()


def test_a_job_at_work():
    with e2e.Daemon("--lanes", "2") as daemon, contextlib.ExitStack() as stack:
        env = {"MEMBER_ELEMENTS": 100_000, "SWITCHML_THREADS": 2, "MEMBER_JOB": "busy"}
        members = [real.Member(daemon.address, rank, 3, **env) for rank in range(3)]
        stack.callback(lambda: [member.process.kill() for member in members])
        for member in members:
            member.wait_for("working")
        e2e.wait_until(lambda: all(rank["operations_called"] > 0 for job in status_json(daemon.address)["jobs"]
                                   for rank in job["ranks"]), "all heartbeats tell of operations")
        status = status_json(daemon.address, "--interval", "0.3")
        job, = status["jobs"]
        assert job["state"] == "running" and job["health"] == "healthy" and job["present"] == job["world_size"] == 3, job
        assert job["lanes"] == 2 and len(job["map"]) == min(256, 2 * job["slots"]), job
        assert job["rates"]["bytes"] > 0 and job["rates"]["sums"] > 0 and job["sums"] > 0, job
        assert [rank["rank"] for rank in job["ranks"]] == [0, 1, 2], job["ranks"]
        for rank in job["ranks"]:
            assert rank["host"] == "127.0.0.1" and rank["state"] == "joined" and rank["packets"] > 0, rank
        assert [lane["slots_used"] for lane in status["lanes"]] == [5 * job["slots"]] * 2, status["lanes"]  # four for what goes one way
        assert status["events"]["job_started"] == 1 and "epoch" not in json.dumps(status), status
        with open(os.path.join(os.path.dirname(__file__), "..", "docs", "operating.md"), encoding="utf-8") as file:
            assert not undocumented(status, file.read())
        code, out, err = run("status", daemon.address, "--job", job["name"])
        assert code == 0 and re.search(r"^rank +host", out, re.MULTILINE) and out.count("127.0.0.1") == 3, (code, out, err)
        members[1].process.send_signal(signal.SIGKILL)
        for rank in 0, 2:
            members[rank].error()
        e2e.wait_until(lambda: status_json(daemon.address)["ended"], "the job has ended")
        ended = status_json(daemon.address)["ended"]
        assert ended[0]["failed"] and "rank 1 (127.0.0.1) was lost" in ended[0]["text"], ended


def test_late_and_lost_ranks():
    with e2e.Daemon() as daemon:
        with scripted_job(daemon.port, "slow", 3) as members:
            with beating(members, [4, 4, 4]):
                assert status_json(daemon.address)["jobs"][0]["health"] == "healthy"
            for slot in range(5): # two of three contribute
                for member in members[:2]:
                    member.send({"slot": member.start["slot_base"][0] + slot, "phase": 2, "tag": 7, "chunk": slot}, bytes(64))
            beat(members, [5, 5, 4], 2.2 * LEASE_S)
            with beating(members, [5, 5, 4]):
                status = status_json(daemon.address, expected=3)
                code, out, err = run("status", daemon.address)
            job, = status["jobs"]
            assert job["health"] == "late" and job["late"] == 1, job
            late = job["ranks"][2]
            assert late["state"] == "late" and 0.4 < late["since_s"] < 1.5 + e2e.PATIENCE, late
            assert job["slots_waiting"] == 5 and job["least_contributions"] == 2 and late["slots_missing"] == 5, job
            assert job["map"].startswith("55555."), job["map"]
            assert code == 3 and not err, (code, out, err)
            assert re.search(r"^job slow: rank 2 \(127.0.0.1\) is late for [\d.]+ s: it has called 4 operations, others 5; "
                             r"5 slots wait with 2 to 2 of 3 contributions$", out, re.MULTILINE), out
        with scripted_job(daemon.port, "thin", 3) as members:
            with beating([members[0], members[2]], [0, 0]):
                members[1].control.close()
                e2e.wait_until(lambda: re.search(r"^job thin: rank 1 \(127.0.0.1\) was lost [\d.]+ s ago$",
                                                 run("status", daemon.address)[1], re.MULTILINE), "rank 1 is lost")


def test_slow_jobs():
    """Everybody has called the operation, and rank 1 has no processor to send with."""
    with e2e.Daemon() as daemon, scripted_job(daemon.port, "tired", 2) as members:
        with beating(members, [1, 1]):
            for slot in range(5):
                members[0].send({"slot": members[0].start["slot_base"][0] + slot, "phase": 2, "tag": 7, "chunk": slot},
                                bytes(64))
            e2e.wait_until(lambda: status_json(daemon.address)["jobs"][0]["health"] == "slow", "the job is slow")
            job, = status_json(daemon.address)["jobs"]
            assert re.fullmatch(r"nothing was summed for [\d.]+ s: 5 of 5 slots that wait lack rank 1 \(127.0.0.1\)",
                                job["why"]), job
            code, out, err = run("status", daemon.address, "--interval", "0")
            assert code == 0 and "job tired is slow: nothing was summed" in out, (code, out, err)
            for slot in range(5):
                members[1].send({"slot": members[1].start["slot_base"][0] + slot, "phase": 2, "tag": 7, "chunk": slot},
                                bytes(64))
            e2e.wait_until(lambda: status_json(daemon.address)["jobs"][0]["health"] == "healthy", "it goes on")
            assert status_json(daemon.address)["jobs"][0]["why"] == ""


def test_silent_ranks():
    """Nothing is heard of a rank, and its lease is long: late, and said to be silent, in the log, too."""
    with e2e.Daemon() as daemon, scripted_job(daemon.port, "mute", 2, lease_s=60) as members:
        with beating([members[0]], [0]):
            e2e.wait_until(lambda: run("status", daemon.address, "--interval", "0")[0] == 3, "a rank is late")
            code, out, err = run("status", daemon.address, "--interval", "0")
            rank = status_json(daemon.address, expected=3)["jobs"][0]["ranks"][1]
            e2e.wait_until(lambda: "rank 1 (127.0.0.1) has been silent for" in daemon.text(), "the log says it")
        assert rank["state"] == "late" and rank["silent"] and rank["heard_s"] >= 2 and rank["since_s"] >= 2, rank
        assert re.search(r"^job mute: rank 1 \(127.0.0.1\) is late for [\d.]+ s: it is silent \(stopped, or cut off\); it has "
                         r"called 0 operations, others 0$", out, re.MULTILINE), (code, out, err)
        assert "rank_late" in daemon.text(), daemon.text()
        with beating(members, [0, 0]):
            e2e.wait_until(lambda: run("status", daemon.address, "--interval", "0")[0] == 0, "nobody is late")
            e2e.wait_until(lambda: "rank 1 (127.0.0.1) is heard again after" in daemon.text(), "it is heard")


def test_tenants_see_their_own():
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, names in {"all": ["red", "blue"], "red": ["red"], "blue": ["blue"]}.items():
            files[name] = os.path.join(folder, name)
            with open(os.open(files[name], os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
                file.write("".join(f"{each} {KEYS[each].hex()}\n" for each in names))
        files["wrong"] = os.path.join(folder, "wrong")
        with open(os.open(files["wrong"], os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write(f"red {KEYS['blue'].hex()}\n")
        with e2e.Daemon("--key-file", files["all"]) as daemon, \
                scripted_job(daemon.port, "secret", 2, lease_s=60, key=KEYS["red"], key_name="red", nonce0=5):
            everything = status_json(daemon.address) # the daemon's own machine
            assert [job["name"] for job in everything["jobs"]] == ["secret"] and everything["keyed"], everything
            assert [job["key"] for job in everything["jobs"]] == ["red"], everything
            own = status_json(daemon.address, SWITCHML_KEY_FILE=files["red"])
            assert [job["name"] for job in own["jobs"]] == ["secret"] and "events" not in own, own
            others = status_json(daemon.address, SWITCHML_KEY_FILE=files["blue"])
            assert not others["jobs"] and "secret" not in json.dumps(others), others
            code, out, err = run("status", daemon.address, SWITCHML_KEY_FILE=files["wrong"])
            assert code == 1 and "has no key 'red', or not the same one" in err and not out, (code, out, err)
            remote = peer.Control(daemon.port) # from loopback without a key: all. Its second question is one too many
            remote.say("STATUS", key_name="", nonce0=0, nonce1=0, offset_bytes=2**31)
            assert remote.hear()[0] == "REFUSE"
            remote.close()


class Terminal:
    """`switchml top` on a terminal of its own."""

    def __init__(self, address, rows=30, columns=120):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP, signal.SIGINT])  # as some who start programs leave it
            os.execve(e2e.SWITCHML, ["switchml", "top", address, "--interval", "0.3"], e2e.environment(TERM="xterm"))
        self.resize(rows, columns)
        self.text = ""

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_until(self, pattern, seconds=15):
        """What was written until the pattern is in it; it is then forgotten."""
        end = time.monotonic() + seconds * e2e.PATIENCE
        while not re.search(pattern, self.text):
            assert time.monotonic() < end, f"no {pattern!r} in {self.text!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    assert re.search(pattern, self.text), f"top ended: {self.text!r}"
        text, self.text = self.text, ""
        return text

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def finish(self):
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def test_top_on_a_terminal():
    with e2e.Daemon() as daemon, scripted_job(daemon.port, "shown", 2, lease_s=60):
        top = Terminal(daemon.address)
        screen = top.read_until(r"(?s)shown.*q: end")
        assert "\033[?1049h" in screen and "127.0.0.1" in screen, screen # one job: with its ranks
        for rows, columns in (3, 40), (2, 5), (1, 1), (0, 0): # 0: it does not say how large it is
            top.resize(rows, columns)
            rows, columns = rows or 24, columns or 80
            top.read_until(r"\033\[H(\033\[K[^\n\033]{0,%d}\n){%d}\033\[K%s[^\n\033]*\033\[J" % (
                columns + 1, rows - 1, re.escape("q: end"[:columns])))  # and a carriage return
        os.kill(top.pid, signal.SIGTSTP)
        top.read_until(r"\033\[\?1049l") # the shell gets its screen
        os.waitid(os.P_PID, top.pid, os.WSTOPPED)
        os.kill(top.pid, signal.SIGCONT)
        top.read_until(r"(?s)\033\[\?1049h.*q: end")
        top.type("q")
        assert "\033[?1049l" in top.read_until(r"\033\[\?1049l")
        assert top.finish() == 0
        top = Terminal(daemon.address)
        top.read_until("q: end")
        os.kill(top.pid, signal.SIGINT)
        top.read_until(r"\033\[\?1049l") # the screen is given back
        assert top.finish() == 0


def read_screen(top, is_wanted):
    """The lines of the next screen of that kind, without the last one."""
    end = time.monotonic() + 15 * e2e.PATIENCE
    while time.monotonic() < end:
        drawn = top.read_until(r"(?s)\033\[H(.*?)\033\[J")
        for screen in re.findall(r"(?s)\033\[H(.*?)\033\[J", drawn):
            lines = [line.strip("\r") for line in screen.replace("\033[K", "").split("\n")[:-1]]
            if is_wanted(lines):
                return lines
    raise AssertionError(f"never shown, but {drawn!r}")


def test_top_on_a_narrow_terminal():
    """Reasons go on in further lines; rows of tables are cut with a mark, and arrows show the rest below its head."""
    name = "narrow-" + 30 * "x"
    with e2e.Daemon() as daemon, scripted_job(daemon.port, name, 2, lease_s=60) as members, beating([members[0]], [0]):
        e2e.wait_until(lambda: run("status", daemon.address, "--interval", "0")[0] == 3, "a rank is late")
        for columns in 80, 40:
            top = Terminal(daemon.address, rows=40, columns=columns)
            lines = read_screen(top, lambda lines, columns=columns: max(map(len, lines)) == columns)
            assert re.search(rf"job {name}: rank 1 \(127.0.0.1\) is late for [\d.]+ s: it is silent \(stopped, or cut off\); "
                             rf"it has called 0 operations, others 0 job narrow-", " ".join(" ".join(lines).split())), lines
            number = next(number for number, line in enumerate(lines) if line.startswith("job "))
            assert lines[number].endswith(">") and lines[number + 1].endswith(">"), lines
            for _ in range(12): # to the last columns
                top.type("\033[C")
            lines = read_screen(top, lambda lines: any(re.match("<.*retrans dropped$", line) for line in lines))
            number = next(number for number, line in enumerate(lines) if line.endswith("dropped"))
            ends = [[match.end() for match in re.finditer(r"\S+", line)] for line in lines[number:number + 2]]
            assert lines[number + 1].startswith("<") and ends[0][-2:] == ends[1][-2:], lines # below its heads
            top.type("q")
            top.read_until(r"\033\[\?1049l")
            assert top.finish() == 0


def test_top_shows_what_is_below():
    with e2e.Daemon() as daemon, scripted_job(daemon.port, "long", 2, lease_s=60):
        top = Terminal(daemon.address, rows=4, columns=120)
        lines = read_screen(top, lambda lines: len(lines) == 3)
        assert lines[0].startswith("switchmld"), lines
        top.read_until("q: end; arrows: [0-9]+ more lines")
        top.type("\033[B" * 20)
        lines = read_screen(top, lambda lines: not lines[0].startswith("switchmld"))
        assert re.match(r"1 +127.0.0.1 ", lines[-1]), lines
        top.type("\033[A" * 20)
        read_screen(top, lambda lines: lines[0].startswith("switchmld"))
        top.type("q")
        top.read_until(r"\033\[\?1049l")
        assert top.finish() == 0


def test_top_on_a_pipe():
    with e2e.Daemon() as daemon, scripted_job(daemon.port, "idle", 2, lease_s=60):
        code, out, err = run("top", daemon.address, "--count", "2", "--interval", "0.3")
        assert code == 0 and not err and out.count("switchmld") == 2 and "\033" not in out, (code, out, err)
        process = subprocess.Popen([e2e.SWITCHML, "top", daemon.address, "--interval", "0.3"], env=e2e.environment(),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        daemon.process.terminate()
        err = process.communicate(timeout=20 * e2e.PATIENCE)[1]
        assert process.returncode == 1 and "switchml: top: " in err, (process.returncode, err)


if __name__ == "__main__":
    tap.main(globals())
