# SPDX-License-Identifier: Apache-2.0
"""simple_switch as a process, and its control connection: as much of Thrift's binary protocol as tables, groups,
registers and counters need."""
import os
import socket
import struct
import subprocess
import time

I32, I64, STRING, STRUCT, LIST = 8, 10, 11, 12, 15
EXACT, TERNARY = 0, 2


def field(kind, number, data):
    return struct.pack(">bh", kind, number) + data


def i32(value):
    return struct.pack(">i", value)


def string(value):
    data = value.encode() if isinstance(value, str) else value
    return i32(len(data)) + data


def sequence(kind, items):
    return struct.pack(">b", kind) + i32(len(items)) + b"".join(items)


def match_param(kind, value, mask=None):
    inner = field(STRING, 1, string(value)) + (field(STRING, 2, string(mask)) if mask is not None else b"")
    return field(I32, 1, i32(kind)) + field(STRUCT, 2 if kind == EXACT else 4, inner + b"\0") + b"\0"


class Refused(Exception):
    """The switch answered with an exception: its name for it is in the numbers."""


class Control:
    """One connection. Values are (number, width in bits); a ternary one is (number, width, mask)."""

    def __init__(self, port, deadline_s=10):
        end = time.monotonic() + deadline_s
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port), timeout=deadline_s)
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self.sequence = 0

    def read(self, num_bytes):
        data = b""
        while len(data) < num_bytes:
            part = self.socket.recv(num_bytes - len(data))
            if not part:
                raise EOFError("the switch closed the control connection")
            data += part
        return data

    def value(self, kind):
        if kind == STRING:
            return self.read(struct.unpack(">i", self.read(4))[0])
        if kind == STRUCT:
            return self.fields()
        if kind == LIST:
            element, count = struct.unpack(">bi", self.read(5))
            return [self.value(element) for _ in range(count)]
        sizes = {2: ">b", 3: ">b", 6: ">h", I32: ">i", I64: ">q", 4: ">d"}
        return struct.unpack(sizes[kind], self.read(struct.calcsize(sizes[kind])))[0]

    def fields(self):
        found = {}
        while True:
            kind = self.read(1)[0]
            if kind == 0:
                return found
            number = struct.unpack(">h", self.read(2))[0]
            found[number] = self.value(kind)

    def call(self, service, name, *arguments):
        """arguments: (kind, data), numbered from 1. Returns the result, or None."""
        self.sequence += 1
        body = b"".join(field(kind, number, data) for number, (kind, data) in enumerate(arguments, 1)) + b"\0"
        self.socket.sendall(struct.pack(">I", 0x80010001) + string(f"{service}:{name}") + i32(self.sequence) + body)
        kind = struct.unpack(">I", self.read(4))[0] & 0xff
        self.value(STRING)
        self.read(4)
        found = self.fields()
        if kind == 3 or set(found) - {0}:
            raise Refused(f"{name}: {found}")
        return found.get(0)

    def add(self, table, key, action, *data, order=1):
        """key: values. data: values of the action's parameters. order: where several ternary keys fit, the lowest one's
        entry decides."""
        params, is_ternary = [], False
        for value, bits, *mask in key:
            width = (bits + 7) // 8
            is_ternary = is_ternary or bool(mask)
            params.append(match_param(TERNARY if mask else EXACT, value.to_bytes(width, "big"),
                                      mask[0].to_bytes(width, "big") if mask else None))
        values = [string(value.to_bytes((bits + 7) // 8, "big")) for value, bits in data]
        options = (field(I32, 1, i32(order)) if is_ternary else b"") + b"\0"
        return self.call("standard", "bm_mt_add_entry", (I32, i32(0)), (STRING, string(table)),
                         (LIST, sequence(STRUCT, params)), (STRING, string(action)), (LIST, sequence(STRING, values)),
                         (STRUCT, options))

    def group(self, number, nodes):
        """A multicast group of (rid, [ports])."""
        self.call("simple_pre_lag", "bm_mc_mgrp_create", (I32, i32(0)), (I32, i32(number)))
        for rid, ports in nodes:
            port_map = "".join("1" if port in ports else "0" for port in range(max(ports), -1, -1))
            node = self.call("simple_pre_lag", "bm_mc_node_create", (I32, i32(0)), (I32, i32(rid)),
                             (STRING, string(port_map)), (STRING, string("0")))
            self.call("simple_pre_lag", "bm_mc_node_associate", (I32, i32(0)), (I32, i32(number)), (I32, i32(node)))

    def write(self, register, index, value):
        value -= 1 << 64 if value >= 1 << 63 else 0
        self.call("standard", "bm_register_write", (I32, i32(0)), (STRING, string(register)), (I32, i32(index)),
                  (I64, struct.pack(">q", value)))

    def count(self, counter, index):
        """Packets that an entry of a counter has seen."""
        return self.call("standard", "bm_counter_read", (I32, i32(0)), (STRING, string(counter)), (I32, i32(index)))[2]


class Switch:
    """simple_switch over packet files: port n reads DIR/portN_in.pcap and writes DIR/portN_out.pcap, from wait_s on."""

    def __init__(self, program, json, folder, num_ports, wait_s=1, trace=False):
        with socket.socket() as probe: # a port that is free
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        arguments = [program, "--use-files", str(wait_s), "--thrift-port", str(self.port), "--device-id",
                     str(self.port)]
        for port in range(num_ports):
            arguments += ["-i", f"{port}@{os.path.join(folder, f'port{port}')}"]
        if trace:
            arguments += ["--log-console", "-L", "trace"]
        with open(os.path.join(folder, "switch.log"), "wb") as log:
            self.process = subprocess.Popen(arguments + [json], stdout=log, stderr=log, cwd=folder)
        try:
            self.control = Control(self.port)
        except OSError:
            self.stop()
            raise

    def stop(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
