#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`switchml doctor`: what it finds of aggregators that are well, wrong, of another version, full, behind firewalls and
narrow links; each time the exit status, and that the finding says what to change."""
import concurrent.futures
import contextlib
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading

import e2e
import peer
import tap

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../bench"))
import netbed # pylint: disable=wrong-import-position

CLASSES = dict(zip(["name", "control", "version", "key", "room", "data", "mtu", "sum", "link", "settings", "host"], range(4, 15)))
WARNED = 20
RED, BLUE = bytes(range(16)), bytes(range(1, 17))


def doctor(*arguments, prefix=(), **env):
    """(exit status, output, errors)"""
    process = subprocess.run([*prefix, e2e.SWITCHML, "doctor", *arguments], env=e2e.environment(**env), text=True, check=False,
                             stdin=subprocess.DEVNULL, capture_output=True, timeout=60 * e2e.PATIENCE)
    return process.returncode, process.stdout, process.stderr


def findings(*arguments, prefix=(), **env):
    """(exit status, findings by id, the last of each): the status must be the one that they make."""
    code, out, err = doctor("--json", "--seconds", "0", *arguments, prefix=prefix, **env)
    assert not err, err
    report = json.loads(out)
    found = report["findings"]
    statuses = [CLASSES[one["class"]] + (0 if one["verdict"] == "FAILED" else WARNED) for one in found
                if one["verdict"] in ("FAILED", "WARNING")]
    assert code == report["exit_status"] == min(statuses, default=0), (code, report)
    for one in found:
        assert (one["advice"] is not None) or one["verdict"] in ("OK", "SKIPPED"), one
    return code, {one["id"]: one for one in found}


def expect(status, finding_id, seen, advice, *arguments, prefix=(), **env):
    code, found = findings(*arguments, prefix=prefix, **env)
    one = found.get(finding_id)
    assert one and code == status, (code, found)
    assert re.search(seen, one["seen"]), one
    assert re.search(advice, one["advice"]), one
    return found


class Fake:
    """What looks like a switchmld, and does what a test wants of it: control frames of another version, data ports that
    are closed, deaf or dumb."""

    def __init__(self, version=peer.CTL_VERSION, data="closed", is_mute=False, wire_version=1):
        self.version, self.data, self.is_mute, self.wire_version = version, data, is_mute, wire_version
        self.job_name, self.num_hellos = "", 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.data_port = self.udp.getsockname()[1]
        if data == "closed":
            self.udp.close()
        self.is_over, self.connections = False, []
        threading.Thread(target=self.serve, daemon=True).start()

    def status(self):
        if self.data == "lies":
            lie = {"name": "x\033[2J", "state": "joining", "world_size": 2**62, "ranks": [{"rank": -1, "lanes": 2**62}, 7, None],
                   "refused": [{"rank": 2**62, "text": "\033]0;\007\u00e9", "host": 3}], "health": []}
            return json.dumps({"version": "\033[31m", "jobs": [lie, 5], "lanes": [[], {"slots_used": 2**62}], "links": [3, {"mtu": []}],
                               "limits": {"jobs": -1, "connections": 2**63 - 1, "slots": 2**62}, "connections": -5, "ended": 7})
        jobs = [{"name": self.job_name, "state": "joining", "ranks": [{"rank": 0, "hellos": self.num_hellos}]}]
        return json.dumps({"version": "0.1.0", "wire_version": self.wire_version, "jobs": jobs if self.job_name else [], "lanes": [{"slots_used": 0}],
                           "limits": {"jobs": 4, "connections": 100, "slots": 1024}, "connections": 1, "links": []})

    def answer(self, kind, body):
        if kind == peer.MESSAGES["STATUS"]:
            text = self.status().encode()
            return peer.frame("STATUS_PART", struct.pack(">IIH", len(text), 0, len(text)) + text, version=self.version)
        if kind == peer.MESSAGES["JOIN"]:
            self.job_name = peer.unpack_body("JOIN", body)["job_name"]
            values = {"job": 1, "epoch": 7, "nonce": 9, "lanes": 1, "ports": [self.data_port], "salt0": 0, "salt1": 0,
                      "group0": 0, "group1": 0, "group_port": 0, "secret0": 0, "secret1": 0}
            return peer.frame("WELCOME", peer.pack_body("WELCOME", values), version=self.version)
        return b""

    def talk(self, connection):
        with contextlib.suppress(OSError):
            while not self.is_over:
                head = connection.recv(12, socket.MSG_WAITALL)
                if len(head) < 12:
                    break
                _, kind, num_bytes = struct.unpack(">HHI", head[4:])
                body = connection.recv(num_bytes, socket.MSG_WAITALL) if num_bytes else b""
                if not self.is_mute:
                    connection.sendall(self.answer(kind, body))
        connection.close()

    def hear(self):
        with contextlib.suppress(OSError, ValueError):
            while not self.is_over:
                if select.select([self.udp], [], [], 0.1)[0]:
                    self.udp.recv(65536)
                    self.num_hellos += self.data == "dumb" # heard, but its answers are lost; "deaf": lost on the way here

    def serve(self):
        if self.data != "closed":
            threading.Thread(target=self.hear, daemon=True).start()
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.connections.append(connection)
                threading.Thread(target=self.talk, args=[connection], daemon=True).start()

    def close(self):
        self.is_over = True
        self.listener.close()
        for connection in self.connections:
            connection.close()
        self.udp.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def test_healthy():
    with e2e.Daemon("--lanes", "2") as daemon:
        code, found = findings("--seconds", "0.2", SWITCHML_AGGREGATOR=daemon.address)
        assert code == 0 or code >= CLASSES["host"] + WARNED or code == CLASSES["sum"] + WARNED, (code, found)
        for one in "name", "control", "version", "key", "room", "data", "mtu", "sum", "latency", "rate", "environment":
            assert found[one]["verdict"] == "OK", found[one]
        assert found["mtu"]["values"]["chunk_bytes"] == 8928 and found["data"]["values"]["lanes"] == 2, found
        assert 0 < found["latency"]["values"]["min_us"] <= found["latency"]["values"]["p99_us"], found["latency"]
        _, found = findings("--seconds", "0.2", SWITCHML_AGGREGATOR=daemon.address, SWITCHML_FAULTS="loss=0.05,seed=7")
        loss = found["loss"]["values"]
        assert found["loss"]["verdict"] == "WARNING" and loss["lost_results"] > 0.02 * loss["packets"], found["loss"]
        # What is lost is lost at the receivers of this side; now and then an update is repeated that only looks lost.
        assert loss["retransmissions"] < 0.1 * loss["lost_results"], loss
        e2e.wait_until(lambda: "0 jobs" in subprocess.run([e2e.SWITCHML, "status", daemon.address, "--interval", "0"],
                                                         capture_output=True, text=True, check=True).stdout, "nothing is left")
        code, out, err = doctor(daemon.address, "--seconds", "0")
        assert not err and "\033" not in out and re.search(r"^  OK       sum  ", out, re.MULTILINE), (code, out, err)
        master, slave = pty.openpty()
        subprocess.run([e2e.SWITCHML, "doctor", daemon.address, "--seconds", "0"], env=e2e.environment(TERM="xterm"), stdout=slave,
                       stdin=slave, check=False, timeout=60 * e2e.PATIENCE)
        assert b"\033[32mOK" in os.read(master, 65536)
        os.close(master)
        os.close(slave)


def test_no_aggregator():
    code, found = findings()
    assert "name" not in found and found["sum"]["verdict"] == "OK" and "embedded" in found["sum"]["seen"], (code, found)


def test_wrong_usage():
    for arguments in (["a:1", "b:2"], ["--seconds", "x"], ["--world-size", "1"], ["--timeout", "0"]):
        code, out, err = doctor(*arguments)
        assert code == 2 and not out and err, (code, out, err)
    with open("/dev/full", "wb") as full:
        process = subprocess.run([e2e.SWITCHML, "doctor", "--json", "--seconds", "0"], env=e2e.environment(), stdout=full, stderr=subprocess.PIPE,
                                 check=False, timeout=60 * e2e.PATIENCE)
    assert process.returncode == 1 and b"could not be written" in process.stderr, process


def test_wrong_addresses_and_strangers():
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(6) as pool:
        stranger = socket.create_server(("127.0.0.1", 0))
        stack.callback(stranger.close)
        closed = socket.create_server(("127.0.0.1", 0))
        closed_port = closed.getsockname()[1]
        closed.close()
        other, mute, slow, newer, shut, deaf, dumb = (stack.enter_context(fake) for fake in (
            Fake(version=peer.CTL_VERSION + 1), Fake(is_mute=True), Fake(is_mute=True), Fake(wire_version=2), Fake(), Fake(data="deaf"), Fake(data="dumb")))

        def be_strange():
            connection, _ = stranger.accept() # the look at the port
            connection.close()
            connection, _ = stranger.accept()
            connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=be_strange, daemon=True).start()
        expected = [
            (4, "name", "no port", "HOST:PORT", "127.0.0.1"),
            (4, "name", "cannot resolve", "correct the name", "no_such_host.invalid:1"),
            (5, "control", "Connection refused", "start switchmld", f"127.0.0.1:{closed_port}"),
            (5, "version", "not a switchmld", "another service", f"127.0.0.1:{stranger.getsockname()[1]}"),
            (5, "version", "not answered", "is stopped, or overloaded", mute.address, "--timeout", "1"),
            (5, "name", "no time is left to look", "raise --timeout", f"{slow.address},{other.address}", "--timeout", "1"),
            (6, "version", f"version {peer.CTL_VERSION}, the aggregator {peer.CTL_VERSION + 1}", "install the same switchml version", other.address),
            (6, "version", "of wire version 1, the aggregator's of 2", "install the same", newer.address),
            (9, "data", f"UDP port {shut.data_port} .* is closed", "forward or publish the UDP", shut.address),
            (9, "data", "got none of them: they are lost on the way there", f"let UDP port {deaf.data_port} into", deaf.address),
            (9, "data", r"got \d+ of \d+ and answered: the answers are lost", f"let UDP from port {dumb.data_port}", dumb.address),
        ]
        for future in [pool.submit(expect, *each) for each in expected]:
            future.result()


def test_an_aggregator_that_lies():
    with Fake(data="lies") as fake:
        code, found = findings(fake.address, "--job", "x\033[2J")
        assert code == 9 or code == 13, (code, found)
        code, out, err = doctor(fake.address, "--seconds", "0", "--job", "x\033[2J")
        assert not err and out.isprintable() or not re.search(r"[^\n -~]", out), (code, out, err)


def test_keys():
    with tempfile.TemporaryDirectory() as folder:
        def write(name, key, mode=0o600):
            path = os.path.join(folder, name)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, mode), "w", encoding="ascii") as file:
                file.write(f"red {key.hex()}\n")
            return path

        right, wrong, open_to_all = write("right", RED), write("wrong", BLUE), write("open", RED, 0o666)
        os.chmod(open_to_all, 0o666)
        with e2e.Daemon("--key-file", right) as keyed, e2e.Daemon() as plain:
            code, found = findings(keyed.address, SWITCHML_KEY_FILE=right)
            assert found["sum"]["verdict"] == found["key"]["verdict"] == "OK", (code, found)
            expect(7, "key", "no key 'red', or not the same", "copy the line of that name", keyed.address, SWITCHML_KEY_FILE=wrong)
            expect(7, "key", "takes ranks with a key only", "set SWITCHML_KEY_FILE", keyed.address)
            expect(7, "key", "has a key, but the aggregator has none", "unset SWITCHML_KEY_FILE", plain.address,
                   SWITCHML_KEY_FILE=right)
            expect(7, "key", "open|readable|permission|others", "owner alone", keyed.address, SWITCHML_KEY_FILE=open_to_all)
            expect(7, "key", "has no key 'blue'", "SWITCHML_KEY_NAME must be", keyed.address, SWITCHML_KEY_FILE=right,
                   SWITCHML_KEY_NAME="blue")


def test_full_pool():
    with e2e.Daemon("--max-jobs", "1", "--slots", "64") as daemon, contextlib.ExitStack() as stack:
        members = [peer.Member(daemon.port, rank, 2, job_name="first") for rank in range(2)]
        for member in members:
            stack.callback(member.close)
        peer.join_all(members)
        found = expect(8, "room", "1 of 1 jobs are in use", "restart switchmld with --max-jobs", daemon.address)
        assert found["data"]["verdict"] == "OK" and found["sum"]["verdict"] == "SKIPPED", found
    with e2e.Daemon("--slots", "32") as daemon, contextlib.ExitStack() as stack:
        members = [peer.Member(daemon.port, rank, 2, job_name="first") for rank in range(2)]
        for member in members:
            stack.callback(member.close)
        peer.join_all(members)
        expect(8, "room", "32 of 32 slots of a lane are in use", "--slots", daemon.address)


def test_a_lease_above_the_limit():
    """The advice names what changes it, which then does."""
    advice = "SWITCHML_LEASE on all ranks .* longer --max-lease"
    with e2e.Daemon("--max-lease", "10") as daemon:
        expect(8, "room", "a join was refused: a lease of 30.0 s is longer than the aggregator's limit of 10.0 s", advice, daemon.address)
        for lease in "9", "1": # also one that is shorter than doctor's checks take
            _, found = findings(daemon.address, SWITCHML_LEASE=lease)
            assert found["key"]["verdict"] == found["sum"]["verdict"] == "OK", found
    with e2e.Daemon("--max-lease", "40") as daemon: # as a rank asks for it
        expect(8, "room", "a job of 2 ranks .* a lease of 60.0 s is longer", advice, daemon.address)


def test_jobs_that_do_not_start():
    with e2e.Daemon() as daemon, contextlib.ExitStack() as stack:
        members = [peer.Member(daemon.port, rank, 3, job_name="train", lanes=1 + rank) for rank in range(2)]
        other = peer.Member(daemon.port, 2, 3, job_name="train", slots=64)
        for member in members + [other]:
            stack.callback(member.close)
            member.connect()
            member.say_join()
            member.control.hear()
        code, out, err = doctor(daemon.address, "--seconds", "0", "--job", "train")
        assert code == CLASSES["settings"] and not err, (code, out, err)
        assert re.search(r"rank 2 \(127.0.0.1\) was refused [\d.]+ s ago: rank 2 asks for 64 slots, but rank . of job 'train' "
                         "asked for 32", out), out
        assert "job 'train' waits for rank 2 of 3" in out and "set the same on all ranks" in out, out
        expect(CLASSES["settings"] + WARNED, "job", "knows no job 'nobody'", "check the ranks' SWITCHML_AGGREGATOR",
               daemon.address, "--job", "nobody")


def test_a_limit_of_file_sizes():
    with e2e.Daemon() as daemon:
        prefix = ["bash", "-c", 'ulimit -f 1000; exec "$@"', "-"]
        _, found = findings(daemon.address, prefix=prefix)
        assert found["memory"]["verdict"] == "WARNING", found["memory"]
        assert "limit of file sizes is too low" in found["memory"]["seen"], found["memory"]
        assert "ulimit -f unlimited" in found["memory"]["advice"], found["memory"]


def test_environment():
    expect(33, "environment", "SWITCHML_SLOT is set, but nothing reads it", "did you mean SWITCHML_SLOTS", SWITCHML_SLOT=3)
    expect(13, "environment", "SWITCHML_POLL is 'never'", "correct it", SWITCHML_POLL="never")
    expect(13, "environment", "RANK is 2, but WORLD_SIZE is 2", "correct the launcher", RANK=2, WORLD_SIZE=2)
    expect(13, "environment", "no aggregator whose successor", "unset SWITCHML_RETRY", SWITCHML_RETRY=3)
    # every variable that the sources read is known
    names = set()
    for folder in "src", "integrations":
        for root, _, files in os.walk(os.path.join(HERE, "..", folder)):
            for name in files:
                if name.endswith((".c", ".py")) and not name.endswith("_test.c") and "_test." not in name and \
                        not name.startswith(("doctor_", "test_")):
                    with open(os.path.join(root, name), encoding="utf-8") as file:
                        names.update(re.findall(r'"(SWITCHML_(?!PAPER)[A-Z_]+)"', file.read())) # that is for a benchmark's build
    assert "SWITCHML_SLOTS" in names and len(names) > 15, names
    code, out, err = doctor("--seconds", "0", **{name: "" for name in names})
    assert "nothing reads it" not in out, (code, out, err)


class Hosts:
    """Aggregators in one namespace, each with a data port of its own, and a worker in another."""

    def __init__(self, bed, num_daemons):
        self.bed, self.prefix, self.logs, self.daemons = bed, bed.command(bed.worker(0), []), [], []
        self.addresses = [f"{bed.aggregator_address}:{48001 + i}" for i in range(num_daemons)]
        for i, address in enumerate(self.addresses):
            self.logs.append(tempfile.TemporaryFile("w+"))
            command = [e2e.SWITCHMLD, "--listen", address, "--data-port", str(49001 + i)]
            self.daemons.append(subprocess.Popen(bed.command(bed.aggregator, command), stdout=self.logs[i], stderr=self.logs[i],
                                                 stdin=subprocess.DEVNULL, env=e2e.environment()))
        e2e.wait_until(lambda: all("listening on" in os.pread(log.fileno(), 4096, 0).decode() for log in self.logs) or
                       any(daemon.poll() is not None for daemon in self.daemons), "the daemons listen")
        texts = [os.pread(log.fileno(), 4096, 0).decode() for log in self.logs]
        assert all("listening on" in text for text in texts), texts

    def change(self, *command):
        subprocess.run(["ip", "-n", self.bed.aggregator, *command], check=True, capture_output=True)

    def close(self):
        for daemon in self.daemons:
            daemon.kill()
            daemon.wait()
        for log in self.logs:
            log.close()


def test_networks():
    why = netbed.why_unavailable()
    if why:
        raise tap.Skip(why)
    with netbed.Netbed(1, rate="none") as bed, contextlib.closing(Hosts(bed, 4)) as hosts, \
            concurrent.futures.ThreadPoolExecutor(6) as pool:
        wide, narrow, deaf, dumb = hosts.addresses
        code, found = findings(wide, prefix=hosts.prefix)
        assert found["mtu"]["verdict"] == found["sum"]["verdict"] == "OK" and "6." in found["mtu"]["advice"], (code, found)
        assert found["link"]["verdict"] == "SKIPPED" and "virtual" in found["link"]["seen"], found
        # From here on what is too long is lost without a word, and firewalls drop what comes to a port, and goes from one.
        hosts.change("link", "set", "dev", "eth0", "mtu", "1000")
        hosts.change("rule", "add", "pref", "10", "lookup", "local")
        hosts.change("rule", "del", "pref", "0")
        hosts.change("rule", "add", "pref", "5", "iif", "eth0", "ipproto", "udp", "dport", "49003", "blackhole")
        hosts.change("rule", "add", "pref", "5", "iif", "lo", "ipproto", "udp", "sport", "49004", "blackhole")
        expected = [
            (30, "mtu", "MTU 1500 here, but the path carries 1000 only .datagrams of 972 bytes; a job, which tries", "the aggregator's interface has MTU 1000", narrow, "--seconds", "0.2"),
            (9, "data", "UDP port 49003 .* got none of them", "into the aggregator's host", deaf),
            (9, "data", "UDP port 49004 .* are lost on the way back", "let UDP from port 49004", dumb),
            # nobody has that address; and no way leads there
            (5, "control", "no answer|No route", "is down|no way", f"{netbed.SUBNET}.99:48879", "--timeout", "1"),
            (5, "control", "Network is unreachable", "ip route get", "192.0.2.1:48879"),
        ]
        found = [future.result() for future in [pool.submit(expect, *each, prefix=hosts.prefix) for each in expected]]
        assert found[0]["sum"]["verdict"] == "OK", found[0]
        assert found[0]["rate"]["values"]["chunk_bytes"] == 972 - 32, found[0]
        hosts.change("link", "set", "dev", "eth0", "mtu", "1450")
        _, found = findings(narrow, "--seconds", "0.2", prefix=hosts.prefix)
        assert found["rate"]["values"]["chunk_bytes"] == 1388, found  # 1422 - 32, in whole words


if __name__ == "__main__":
    tap.main(globals())
