#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""`switchml conform` at switchmld, and at aggregators that are wrong in one thing: a proxy between the two changes it,
which must be found by the vectors that are about it."""
import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import e2e
import peer
import tap

KEY = "00112233445566778899aabbccddeeff"
NO_SUMS = ["nothing_came", "jump_from_an_unused_slot", "tags_differ", "lengths_differ_from_a_shorter"]
RESULT, PENDING, UPDATE = (peer.PACKETS[name] for name in ("RESULT", "PENDING", "UPDATE"))


def conform(*arguments, env=None):
    """Exit status, standard output, standard error."""
    done = subprocess.run([e2e.SWITCHML, "conform", *arguments], env=env or e2e.environment(), text=True, check=False,
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=120 * e2e.PATIENCE)
    return done.returncode, done.stdout, done.stderr


def report(address, *arguments, expected=0, env=None):
    patience = () if "--timeout" in arguments else ("--timeout", "20")  # a busy machine is no wrong aggregator
    status, out, err = conform(address, "--json", *patience, *arguments, env=env)
    assert status == expected, f"exit status {status}\n{out}{err}"
    return json.loads(out)


def results(found, result):
    return {vector["name"]: vector for vector in found["vectors"] if vector["result"] == result}


class Proxy:
    """Between conform and a switchmld: changes datagrams up and down, and control frames down, by functions that give
    what goes on instead of one: a list."""

    masks = {}  # of checksums, by epoch

    def __init__(self, daemon, up=None, down=None, control=None):
        self.daemon, self.change_up, self.change_down, self.change_control = daemon, up, down, control
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.data = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.data.bind(("127.0.0.1", 0))
        self.aggregator = None  # its data address
        self.pairs, self.buffers, self.clients = {}, {}, {}
        self.stop_reader, self.stop_writer = socket.socketpair()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop_writer.close()
        self.thread.join()
        for each in [self.listener, self.data, self.stop_reader, *self.pairs, *self.clients.values()]:
            each.close()

    def run(self):
        upstream = {}
        while True:
            ready = select.select([self.stop_reader, self.listener, self.data, *self.pairs, *upstream], [], [])[0]
            if self.stop_reader in ready:
                return
            for each in ready:
                if each is self.listener:
                    self.accept()
                elif each is self.data:
                    self.take_up(upstream)
                elif each in upstream:
                    for datagram in apply(self.change_down, each.recv(65536)):
                        self.data.sendto(datagram, upstream[each])
                elif each in self.pairs:
                    self.take_control(each)

    def accept(self):
        near, _ = self.listener.accept()
        far = socket.create_connection(("127.0.0.1", self.daemon.port))
        self.pairs.update({near: far, far: near})
        self.buffers[far] = b""

    def take_up(self, upstream):
        datagram, client = self.data.recvfrom(65536)
        if client not in self.clients:
            self.clients[client] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            upstream[self.clients[client]] = client
        for each in apply(self.change_up, datagram):
            self.clients[client].sendto(each, self.aggregator)

    def take_control(self, near):
        other = self.pairs[near]
        try:
            data = near.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            del self.pairs[near], self.pairs[other]
            near.close()
            other.close()
            return
        if near in self.buffers:
            data = self.frames_down(near, data)
        other.sendall(data)

    def frames_down(self, far, data):
        """Whole frames only; the data port of a WELCOME is ours."""
        self.buffers[far] += data
        out = b""
        while len(self.buffers[far]) >= 12:
            _, number, body_bytes = struct.unpack(">HHI", self.buffers[far][4:12])
            if len(self.buffers[far]) < 12 + body_bytes:
                break
            frame, self.buffers[far] = self.buffers[far][:12 + body_bytes], self.buffers[far][12 + body_bytes:]
            kind = next(name for name, value in peer.MESSAGES.items() if value == number)
            if kind in ("WELCOME", "START"):
                values = peer.unpack_body(kind, frame[12:])
                Proxy.masks[struct.pack(">I", values["epoch"])] = values["secret0"] >> 32
            if kind == "WELCOME":
                values = peer.unpack_body(kind, frame[12:])
                self.aggregator = ("127.0.0.1", values["ports"][0])
                values["ports"] = [self.data.getsockname()[1]] * values["lanes"]
                frame = peer.frame(kind, peer.pack_body(kind, values))
            out += b"".join(apply(self.change_control, kind, frame))
        return out


def apply(change, *what):
    return [what[-1]] if change is None else change(*what)


def of_type(number, change):
    """Datagrams of a type, well-formed ones, are changed: (fields, payload) -> list of them."""
    def changed(datagram):
        if len(datagram) < 32 or datagram[0] != 0x10 | number:
            return [datagram]
        mask = peer.mask_of(datagram)
        fields, payload = peer.unpack_datagram(datagram, mask=mask)
        return [peer.pack_datagram(*each, mask=mask) for each in change(fields, payload)]
    return changed


def expect_found(wanted, spared, env=None, **changes):
    """The wrong aggregator fails the vectors that are wanted, and not those spared."""
    with e2e.Daemon() as daemon, Proxy(daemon, **changes) as proxy:
        found = report(proxy.address, "--tries", "1", "--timeout", str(tap.patience_s(0.5 * e2e.PATIENCE)), "--only",
                       ",".join([*wanted, *spared]), expected=1, env=env)
    assert len(found["vectors"]) == len(wanted) + len(spared), found
    failed = results(found, "failed")
    assert set(wanted) <= set(failed), f"not found: {set(wanted) - set(failed)}"
    assert not set(spared) & set(failed), f"found, too: {set(spared) & set(failed)}"
    for vector in failed.values():
        assert vector["expected"] or vector["seen"], vector
    return failed


def test_switchmld_passes():
    with e2e.Daemon() as daemon:
        found = report(daemon.address)
        assert found["failed"] == 0 and found["passed"] > 60 and found["family"] == "ordinary", found
        assert all(vector["tries"] == 1 for vector in results(found, "passed").values()), found
        assert set(results(found, "skipped")) == {"phases_up_to_the_last", "phases_across_the_sign", "keyed_sum", "macs"}
        jumbo = report(daemon.address, "--chunk", "8192")
        assert jumbo["failed"] == 0 and jumbo["passed"] == found["passed"], jumbo
        status, out, _ = conform(daemon.address, "--only", "loss", "--quiet")
        assert status == 0 and out.count("\n") == 1 and "6 passed, 0 failed, 0 skipped" in out, out


def test_switchmld_with_keys_passes():
    with tempfile.NamedTemporaryFile("w", prefix="switchml-keys-") as keys:
        keys.write(f"blue {KEY}\n")
        keys.flush()
        with e2e.Daemon("--key-file", keys.name) as daemon:
            found = report(daemon.address, env=e2e.environment(SWITCHML_KEY_FILE=keys.name))
            assert found["failed"] == 0 and found["keyed"] and {"keyed_sum", "macs"} <= set(results(found, "passed")), found
            status, _, err = conform(daemon.address)
            assert status == 3 and "key" in err, err


def test_switchmld_in_switch_format_passes():
    for lanes, chunk in (("32", "256"), ("64", "256"), ("256", "1024")):
        with e2e.Daemon("--switch-format", lanes) as daemon:
            found = report(daemon.address, "--chunk", chunk)
            assert found["failed"] == 0 and found["passed"] > 60 and found["family"] == "switch", found
            assert set(results(found, "skipped")) == {"phases_up_to_the_last", "phases_across_the_sign"}, found


def test_lost_packets_are_tried_again():
    # Some 2,000 datagrams, so some twenty are lost; the longest vector passes about each fifth time.
    with e2e.Daemon(env=e2e.environment(SWITCHML_FAULTS="loss=0.01,seed=5")) as daemon:
        found = report(daemon.address, "--tries", "100", "--timeout", str(0.25 * e2e.PATIENCE))
        assert found["failed"] == 0 and max(vector["tries"] for vector in found["vectors"]) > 1, found


def test_a_wrong_lane_is_found():
    add_one = lambda fields, payload: [(fields, payload[:-1] + bytes([payload[-1] + 1 & 255]))]
    failed = expect_found(["sum_of_2", "checked_sums", "two_jobs", "lossy_world_1"], NO_SUMS, down=of_type(RESULT, add_one))
    assert "element" in failed["sum_of_2"]["seen"] and failed["sum_of_2"]["step"] == 2, failed["sum_of_2"]


def test_a_wrong_checksum_is_found():
    spoil = lambda datagram: [datagram[:28] + bytes([datagram[28] ^ 1]) + datagram[29:]] if datagram[0] == 0x12 else [datagram]
    failed = expect_found(["sum_of_2"], NO_SUMS, down=spoil)
    assert "checksum" in failed["sum_of_2"]["seen"], failed["sum_of_2"]


def test_wrong_grants_are_found():
    failed = expect_found(["sum_of_2", "grants_follow_completion"], NO_SUMS,
                          down=of_type(RESULT, lambda fields, payload: [({**fields, "chunk": fields["chunk"] + 1}, payload)]))
    assert "chunk" in failed["sum_of_2"]["seen"], failed["sum_of_2"]


def test_repeats_that_do_not_say_so_are_found():
    expect_found(["result_lost", "duplicates_of_what_is_complete"], ["sum_of_2", "slots_in_any_order", "flags", "grants_follow_completion"],
                 down=of_type(RESULT, lambda fields, payload: [({**fields, "flags": fields["flags"] & ~1}, payload)]))


def test_an_answer_too_many_is_found():
    failed = expect_found(["sum_of_2"], NO_SUMS, down=of_type(RESULT, lambda *packet: [packet, packet]))
    assert "nothing" in failed["sum_of_2"]["expected"], failed["sum_of_2"]


def test_missing_answers_are_found():
    failed = expect_found(["update_lost", "nothing_came", "duplicate_updates"], ["sum_of_2", "result_lost", "types", "tags_differ"],
                          down=of_type(PENDING, lambda *packet: []))
    assert failed["update_lost"]["seen"] == "nothing" and "missing=0x2" in failed["update_lost"]["expected"]


def test_bits_in_the_wrong_order_are_found():
    turn = lambda fields, payload: [(fields, bytes(int(f"{byte:08b}"[::-1], 2) for byte in payload))]
    expect_found(["update_lost", "pending_of_many_ranks"], ["sum_of_2", "result_lost"], down=of_type(PENDING, turn))


def test_garbage_that_counts_is_found():
    def mend(datagram):
        if len(datagram) < 32 or datagram[0] != 0x11:
            return [datagram]
        body, mask = datagram[:28] + bytes(4) + datagram[32:], Proxy.masks.get(datagram[4:8], 0)
        return [datagram[:28] + struct.pack(">I", peer.crc32c(body) ^ mask) + datagram[32:]]
    expect_found(["checksums"], ["sum_of_2", "flags", "update_lost", "truncated", "lossy_world_1"], up=mend)


def test_phases_of_one_bit_are_found():
    """A late copy that is taken for the phase of the same version: what a version bit alone would do."""
    latest = {}
    def renumber(fields, payload):
        place = fields["job"], fields["epoch"], fields["slot"], fields["phase"] & 1
        latest[place] = max(latest.get(place, 0), fields["phase"])
        return [({**fields, "phase": latest[place]}, payload)]
    expect_found(["late_copies", "late_copy_of_the_same_version", "stale_phases"], ["sum_of_2", "update_lost", "slots_in_any_order"],
                 up=of_type_unsealed(UPDATE, renumber))


def of_type_unsealed(number, change):
    """As of_type, for what conform sends, which is spoilt at times: then it goes on as it is."""
    inner = of_type(number, change)
    def changed(datagram):
        try:
            return inner(datagram)
        except AssertionError:
            return [datagram]
    return changed


def test_missing_reports_are_found():
    failed = expect_found(["tags_differ", "jump_by_two"], ["sum_of_2", "update_lost", "flags", "lossy_world_1"],
                          control=lambda kind, frame: [] if kind == "ABORT" else [frame])
    assert "MISMATCH" in failed["tags_differ"]["expected"] and "nothing" in failed["tags_differ"]["seen"], failed


def test_what_cannot_be_done_is_said():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for arguments, expected, text in [([f"127.0.0.1:{port}"], 3, "switchmld running"),
                                      (["--tries", "0"], 2, "--tries"), (["--chunk", "258"], 2, "--chunk"),
                                      (["--timeout", "x"], 2, "--timeout"), (["a:1", "b:1"], 2, "one HOST:PORT"),
                                      ([], 2, "SWITCHML_AGGREGATOR"),
                                      (["--vectors", "/nonexistent", "127.0.0.1:1"], 3, "/nonexistent")]:
        status, out, err = conform(*arguments)
        assert status == expected and text in err, f"{arguments}: {status}\n{out}{err}"
    status, out, _ = conform("--list", "--only", "hellos")
    assert status == 0 and out.count("\n") == 2, out
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for line, why in [('{"vector":1}', "vector"), ('{"from":0}', "before any vector"), ("{", "line 1"),
                          ('{"vector":"x","family":"ordinary","jobs":[{"ranks":1}]}', "ranks"),
                          ('{"vector":"x","family":"ordinary","jobs":[{"ranks":2}]}\n{"from":0,"send":{"typ":1}}', "line 2")]:
            file.seek(0)
            file.truncate()
            file.write(line + "\n")
            file.flush()
            status, _, err = conform("--vectors", file.name, "127.0.0.1:1")
            assert status == 3 and why in err, f"{line}: {status} {err}"
    with e2e.Daemon() as daemon:
        status, _, err = conform(daemon.address, "--only", "nonsense")
        assert status == 3 and "no such vector" in err, err


if __name__ == "__main__":
    tap.main(globals())
