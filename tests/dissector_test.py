#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The Wireshark dissector (tools/dissector/switchml.lua) held against the C headers, and run by tshark on what the
capture hook wrote of real ranks with loss, keys and check words, and on control messages made by hand."""
import collections
import os
import re
import shutil
import struct
import subprocess
import tempfile

import e2e
import peer
import real
import tap

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LUA = os.path.join(ROOT, "tools/dissector/switchml.lua")
UPDATE, RESULT, PENDING, HELLO, PROBE = 1, 2, 3, 5, 7


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def lua_table(name):
    body = re.search(rf"^local {name} = {{(.*?)}}", read("tools/dissector/switchml.lua"), re.M | re.S).group(1)
    return {text: int(number) for number, text in re.findall(r'\[(\d+)\] = "(\w+)"', body)}


def lua_number(name):
    return int(re.search(rf"^local {name} = (\w+)", read("tools/dissector/switchml.lua"), re.M).group(1), 0)


def test_constants_are_those_of_the_headers():
    wire, message = read("src/core/wire.h"), read("src/ctl/message.h")
    types = {name: int(number) for name, number in re.findall(r"SML_PACKET_(\w+) = (\d+)", wire)}
    assert types and lua_table("packet_types") == types, types
    reducers = {name: int(number) for name, number in re.findall(r"SML_REDUCE_(\w+) = (\d+)", wire)}
    assert len(reducers) >= 4 and lua_table("reducers") == reducers, reducers
    for name in ("WIRE_VERSION", "HEADER_BYTES", "KEYED_BYTES", "CHECK_BYTES"):
        assert lua_number(name) == int(re.search(rf"#define SML_{name} (\d+)", wire).group(1)), name
    flags = {name: 1 << int(shift) for name, shift in re.findall(r"SML_FLAG_(\w+) = 1u << (\d+)", wire)}
    in_lua = {}
    lua_text = read("tools/dissector/switchml.lua")
    for names, values in re.findall(r"^local (FLAG_\w+(?:, FLAG_\w+)*) = ([\d, ]+)$", lua_text, re.M):
        in_lua.update(zip([name[5:] for name in names.split(", ")], map(int, values.split(", "))))
    assert in_lua == flags and lua_number("KNOWN_FLAGS") == sum(flags.values()), (in_lua, flags)
    kinds = re.search(r"enum sml_ctl_kind {(.*?)}", message, re.S).group(1)
    kinds = re.findall(r"SML_CTL_(\w+)", re.sub(r"/\*.*?\*/", "", kinds, flags=re.S))
    assert lua_table("message_kinds") == {name: number for number, name in enumerate(kinds, 1)}, kinds
    assert lua_number("CONTROL_MAGIC") == int(re.search(r"SML_CTL_MAGIC (0x\w+)u", message).group(1), 16)
    assert lua_number("CONTROL_VERSION") == int(re.search(r"SML_CTL_VERSION (\d+)", message).group(1))
    assert lua_number("CONTROL_HAS_MAC") == int(re.search(r"SML_CTL_HAS_MAC (0x\w+)u", message).group(1), 16)


def tshark(path, *arguments):
    if shutil.which("tshark") is None:
        raise tap.Skip("tshark is not installed (Debian: tshark)")
    with tempfile.TemporaryDirectory(prefix="switchml-tshark-") as home: # nobody's settings
        # Ports are the kernel's choice; some of them have a dissector of their own.
        options = ["-n", "-o", "udp.try_heuristic_first:TRUE", "-X", f"lua_script:{LUA}", "-r", path]
        done = subprocess.run(["tshark", *options, *arguments], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120 * e2e.PATIENCE, check=False,
                              env={**os.environ, "HOME": home, "XDG_CONFIG_HOME": home})
    assert done.returncode == 0 and "Lua" not in done.stderr, done.stderr
    return done.stdout


FIELDS = ["frame.packet_flags_direction", "switchml.type", "switchml.flags.retransmission", "switchml.flags.keyed",
          "switchml.flags.checked", "switchml.slot", "switchml.phase", "switchml.missing", "_ws.expert.message",
          "_ws.malformed", "udp.srcport"]
TRACEROUTE = r"Possible traceroute: hop #\d+, attempt #\d+,?" # what UDP's dissector says of ports from 33434 on
Packet = collections.namedtuple("Packet", "direction type again keyed checked slot phase missing expert malformed port")


def packets(path):
    out = tshark(path, "-T", "fields", *[word for field in FIELDS for word in ("-e", field)])
    found = [Packet(*line.split("\t")) for line in out.splitlines()]
    assert found and all(p.malformed == "" for p in found)
    return [p._replace(type=int(p.type or 0), expert=re.sub(TRACEROUTE, "", p.expert)) for p in found]


def is_set(text):
    return text in ("1", "True")


def test_ranks_with_loss_keys_and_checks():
    if shutil.which("tshark") is None:
        raise tap.Skip("tshark is not installed (Debian: tshark)")
    with tempfile.TemporaryDirectory(prefix="switchml-pcap-") as folder:
        keys = os.path.join(folder, "keys")
        with open(os.open(keys, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write("tenant 000102030405060708090a0b0c0d0e0f\n")
        with e2e.Daemon("--key-file", keys, env=e2e.environment(SWITCHML_FAULTS="loss=0.1,seed=5")) as daemon, \
                real.job(daemon.address, 2, MEMBER_OPERATIONS=4, MEMBER_ELEMENTS=60000, MEMBER_STATS=1,
                         SWITCHML_CHECK="1", SWITCHML_KEY_FILE=keys, SWITCHML_FAULTS="loss=0.1,seed=7",
                         SWITCHML_SHARED_MEMORY="0", SWITCHML_PCAP=os.path.join(folder, "run.pcapng")) as members:
            for member in members:
                member.expect_done()
            paths = [os.path.join(folder, f"run-{member.process.pid}.pcapng") for member in members]
            for path, member in zip(paths, members):
                check_capture(path, member)


def check_capture(path, member):
    """Every packet is understood, and there are as many of each kind as the rank has counted."""
    found = packets(path)
    assert all(p.expert == "" for p in found), {p.expert for p in found}
    assert all(p.type in (UPDATE, RESULT, PENDING, HELLO, PROBE) for p in found), {p.type for p in found}
    assert all(is_set(p.keyed) for p in found)
    assert any(is_set(p.checked) for p in found if p.type == UPDATE)
    assert all(p.missing for p in found if p.type == PENDING)
    sent = [p for p in found if p.type in (UPDATE, PROBE)]
    received = [p for p in found if p.type in (RESULT, PENDING)]
    again = sum(1 for p in sent if p.type == UPDATE and is_set(p.again))
    probes = sum(1 for p in sent if p.type == PROBE)
    counted = re.search(r"^\d+ packets (\d+) (\d+) (\d+) (\d+)$", member.text(), re.M)
    num_sent, num_received, num_again, num_probes = map(int, counted.groups())
    assert (len(sent), again, probes) == (num_sent, num_again, num_probes), (len(sent), again, probes, counted.group())
    assert again + probes > 0, "the loss had no effect"
    # Nobody reads the socket between the last operation and the job's end, in whose pass (after the count) answers to
    # needless repeats are received: of chunks that have their result, behind all else.
    assert len(received) >= num_received, (len(received), counted.group())
    late = received[num_received:]
    has_result = {(p.slot, p.phase) for p in received[:num_received] if p.type == RESULT}
    assert found[len(found) - len(late):] == late, (len(late), counted.group())
    assert all((p.slot, p.phase) in has_result for p in late), (late, counted.group())


def check_garbled(path, folder):
    """A wrong byte is one wrong CRC (where no key has a MAC in its place); another version, of a known port, is said to be one."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    at = data.rindex(b"\x02\x00\x7f\x00\x00\x01\x08\x00E") - 6 # the last Ethernet header: behind the receiver
    data[at + 14 + 20 + 8 + 20] ^= 1 # in its MAC
    garbled = os.path.join(folder, "garbled.pcapng")
    with open(garbled, "wb") as file:
        file.write(data)
    found = packets(garbled)
    assert [p.expert for p in found if p.expert] == ["Wrong CRC"], [p.expert for p in found if p.expert]
    data[at + 14 + 20 + 8] ^= 0x30
    with open(garbled, "wb") as file:
        file.write(data)
    out = tshark(garbled, "-d", f"udp.port=={found[-1].port},switchml", "-T", "fields", "-e", "_ws.expert.message")
    assert out.count("Another wire version") == 1, set(out.splitlines())


def test_what_was_damaged():
    if shutil.which("tshark") is None:
        raise tap.Skip("tshark is not installed (Debian: tshark)")
    with tempfile.TemporaryDirectory(prefix="switchml-pcap-") as folder:
        with e2e.Daemon() as daemon, \
                real.job(daemon.address, 2, MEMBER_OPERATIONS=1, MEMBER_ELEMENTS=6000, SWITCHML_SHARED_MEMORY="0",
                         SWITCHML_PCAP=os.path.join(folder, "run.pcapng")) as members:
            for member in members:
                member.expect_done()
            check_garbled(os.path.join(folder, f"run-{members[0].process.pid}.pcapng"), folder)


def write_datagrams(path, datagrams):
    """A capture of UDP datagrams between two ports of loopback."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 101)) # IP packets
        for datagram in datagrams:
            udp = struct.pack(">HHHH", 40000, 40001, 8 + len(datagram), 0) + datagram
            ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
            file.write(struct.pack("<IIII", 0, 0, len(ip + udp), len(ip + udp)) + ip + udp)


def test_owners_and_reducers():
    """What sums for owners and copies have in place of a chunk is an owner; other reductions have a chunk."""
    pairs = {(0, 0): "SUM", (0, 2): "TO_OWNER", (1, 3): "COPY", (2, 4): "PRODUCT", (2, 5): "OR"}
    with tempfile.TemporaryDirectory(prefix="switchml-pcap-") as folder:
        path = os.path.join(folder, "pairs.pcap")
        write_datagrams(path, [peer.pack_datagram({"type": UPDATE, "wire": wire, "reducer": reducer, "chunk": 3}, bytes(8))
                               for wire, reducer in pairs])
        fields = ["switchml.reducer", "switchml.owner", "switchml.chunk"]
        lines = tshark(path, "-T", "fields", *[word for field in fields for word in ("-e", field)]).splitlines()
        for ((_, reducer), name), line in zip(pairs.items(), lines):
            has_owner = name in ("TO_OWNER", "COPY")
            assert line.split("\t") == [str(reducer), "3" if has_owner else "", "" if has_owner else "3"], (name, line)
        assert len(lines) == len(pairs), lines
        assert all(name in tshark(path, "-V") for name in pairs.values())


def test_one_way_operations():
    """A job with losses whose operations go one way: all packets are understood, and some have owners."""
    with tempfile.TemporaryDirectory(prefix="switchml-pcap-") as folder:
        with e2e.Daemon(env=e2e.environment(SWITCHML_FAULTS="loss=0.05,seed=5")) as daemon, \
                real.job(daemon.address, 3, MEMBER_OPERATIONS=5, MEMBER_ELEMENTS=90000, MEMBER_COLLECTIVE="all", MEMBER_SLOTS=8,
                         SWITCHML_PCAP=os.path.join(folder, "run.pcapng")) as members:
            for member in members:
                member.expect_done()
            path = os.path.join(folder, f"run-{members[1].process.pid}.pcapng")
            assert all(p.expert == "" and p.malformed == "" for p in packets(path))
            owners = tshark(path, "-T", "fields", "-e", "switchml.owner").split()
            assert set(owners) == {"0", "1", "2"}, set(owners)


# ---- the control connection ----

def text(value):
    return struct.pack(">H", len(value)) + value


def message(kind, body=b"", version=peer.CTL_VERSION, mac=b""):
    return struct.pack(">IHHI", 0x534d4c31, version, kind | (0x8000 if mac else 0), len(body)) + body + mac


def write_stream(path, segments):
    """A capture of one TCP connection; (payload, goes to the server)."""
    next_bytes = {True: 1, False: 1}
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        for number, (payload, is_up) in enumerate(segments):
            ports = (40000, 48879) if is_up else (48879, 40000)
            tcp = struct.pack(">HHIIBBHHH", *ports, next_bytes[is_up], next_bytes[not is_up], 5 << 4, 0x18, 65535, 0, 0)
            next_bytes[is_up] += len(payload)
            addresses = (b"\x7f\0\0\1", b"\x7f\0\0\2") if is_up else (b"\x7f\0\0\2", b"\x7f\0\0\1")
            ip = struct.pack(">BBHHHBBH", 0x45, 0, 40 + len(payload), number, 0x4000, 64, 6, 0) + b"".join(addresses)
            frame = bytes(12) + b"\x08\0" + ip + tcp + payload
            file.write(struct.pack("<IIII", 1700000000 + number, 0, len(frame), len(frame)) + frame)


def test_the_control_connection():
    second = 10 ** 9
    join = message(1, text(b"train") + struct.pack(">IIIIIQQI", 3, 4, 2, 256, 8960, 2 * second, 60 * second, 1)
                   + text(b"tenant") + struct.pack(">QQQQIQQIII", 1, 2, 5, 4, 8928, 3, 4, 1, 0, 2)
                   + text(b"10.0.0.1:48879 10.0.0.2:48879"))
    abort = message(7, struct.pack(">iIHH", -11, 2, 0, 3) + text(b"rank 3 was lost"), mac=bytes(range(8)))
    refuse = message(10, struct.pack(">i", -8) + text(b"speak version 10"), version=10)
    with tempfile.TemporaryDirectory(prefix="switchml-pcap-") as folder:
        path = os.path.join(folder, "control.pcap")
        write_stream(path, [(join[:50], True), (join[50:], True), (message(11, bytes(range(16))), False),
                            (message(12, mac=bytes(8)) + message(5, bytes(24), mac=bytes(8)), True), (abort, False),
                            (refuse, False), (message(9), True), (message(5, bytes(7)), True)])
        out = tshark(path, "-O", "switchml_control")
        for name in ("JOIN", "CHALLENGE", "AUTH", "HEARTBEAT", "ABORT", "REFUSE", "GOODBYE"):
            assert f"SwitchML control: {name}" in out, (name, out)
        for field in ("job: train", "rank: 3", "world_size: 4", "key_name: tenant", "combining: 1", "rank 1: 3",
                      "aggregators: 10.0.0.1:48879 10.0.0.2:48879", "detail: rank 3 was lost", "detail: speak version 10", "MAC: 0x0001020304050607"):
            assert field in out, (field, out)
        odd = tshark(path, "-Y", "_ws.expert", "-T", "fields", "-e", "_ws.expert.message")
        assert odd.count("does not end where its fields do") == 1 and "Malformed" not in out, odd


if __name__ == "__main__":
    tap.main(globals())
