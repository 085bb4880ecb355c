# SPDX-License-Identifier: Apache-2.0
"""A switch program that translate.py made C of (libp4_machines.so), with the words of bmv2.Control: so that plan.py
fills it, and what is sent to a port comes out of others, one packet after the other."""
import ctypes

import frames
from dpdk import GROUP, readdressed

MAX_KEYS, MAX_DATA, MAX_OUT, MAX_FRAME_BYTES = 10, 8, 72, 2048 # machine.h
NAMES = {"pna": {"cell_phase": "aggregate_state_cell_phase", "cursor": "aggregate_grant_cursor"},
         "tna": {"cell_phase": "cells.phase", "cursor": "cursors"}, "v1model": {}}
WORD_VALID = 1 << 31
NUM_CELLS, RESULTS, FLOODS, TO_GROUP = 4096, 1000, 1001, 1002


class Out(ctypes.Structure):
    _fields_ = [("port", ctypes.c_uint32), ("num_bytes", ctypes.c_uint32), ("bytes", ctypes.c_uint8 * MAX_FRAME_BYTES)]


U64, TEXT = ctypes.POINTER(ctypes.c_uint64), ctypes.c_char_p
CALLS = (("reset", None, (ctypes.c_uint64,)), ("add", ctypes.c_int, (TEXT, TEXT, U64, U64, U64)),
         ("remove", ctypes.c_int, (TEXT, U64)), ("write", ctypes.c_int, (TEXT, ctypes.c_uint32, ctypes.c_uint64)),
         ("read", ctypes.c_int64, (TEXT, ctypes.c_uint32)),
         ("group", None, (ctypes.c_uint32, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32))),
         ("take", ctypes.c_uint32, (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint32, ctypes.POINTER(Out))),
         ("set_time", None, (ctypes.c_uint64,)), ("num_waiting", ctypes.c_uint32, ()),
         ("again", ctypes.c_uint32, (ctypes.c_uint32, ctypes.POINTER(Out))))


class Calls(ctypes.Structure):
    _fields_ = [("name", TEXT)] + [(name, ctypes.CFUNCTYPE(of, *arguments)) for name, of, arguments in CALLS]


class Switch:
    """is_group: of PNA, results go to dpdk.GROUP by the port of the update that completed them, as behaviour.py wants.
    What a Tofino with 64 lanes sends to itself comes in at once."""

    def __init__(self, library, target, num_ports, seed=1, is_group=False, lanes=32):
        self.target, self.num_ports, self.is_group = target, num_ports, is_group
        self.calls = Calls.in_dll(ctypes.CDLL(library), f"p4_{target}{lanes if lanes != 32 else ''}")
        self.calls.reset(seed)
        self.out, self.members = (Out * MAX_OUT)(), {}
        for cell in range(NUM_CELLS if target == "tna" else 0): # what the control plane writes for each job's cells
            self.calls.write(b"cells.phase", cell, cell & 1)
            self.calls.write(b"cells.word", cell, WORD_VALID)
        for port in [*range(num_ports), RESULTS, FLOODS] if target == "pna" else []:
            self.add("ports", [(port, 16)], "send", (port, 32))

    def add(self, table, key, action, *data, order=1): # pylint: disable=unused-argument
        """The first entry that fits decides."""
        if self.target == "pna" and table == "replica":
            return
        keys, masks, values = (ctypes.c_uint64 * MAX_KEYS)(), (ctypes.c_uint64 * MAX_KEYS)(), (ctypes.c_uint64 * MAX_DATA)()
        for i, (value, _, *mask) in enumerate(key):
            keys[i], masks[i] = value, mask[0] if mask else 0
        for i, (value, _) in enumerate(data):
            values[i] = value
        if self.calls.add(table.encode(), action.encode(), keys, masks, values) != 0:
            raise ValueError(f"{table} {key} {action} {data}")

    def group(self, number, nodes):
        copies = [(rid, port) for rid, ports in nodes for port in ports]
        if self.target == "pna":
            self.add("copies", [(number, 16)], "copy_1", (RESULTS if number != 1 else FLOODS, 32))
            return
        array = ctypes.c_uint32 * len(copies)
        self.calls.group(number, len(copies), array(*(rid for rid, _ in copies)), array(*(port for _, port in copies)))

    def write(self, register, index, value):
        if self.calls.write(NAMES[self.target].get(register, register).encode(), index, value) != 0:
            raise ValueError(f"{register} {index}")

    def counts(self, num):
        counts = {verdict: self.calls.read(b"verdicts", verdict) for verdict in range(num)}
        return {verdict: count for verdict, count in counts.items() if count}

    def taken(self, num):
        return [Out.from_buffer_copy(out) for out in self.out[:num]]

    def take(self, port, frame, members):
        """[(port, frame)] that come out. members: {job: [member of a plan]}, for the copies that PNA's host makes."""
        outs = self.taken(self.calls.take(port, frame, len(frame), self.out))
        while self.calls.num_waiting():
            outs += self.taken(self.calls.again(0, self.out))
        found = []
        for out in outs:
            data = bytes(out.bytes[:out.num_bytes])
            if out.port == FLOODS:
                found += [(each, data) for each in range(self.num_ports) if each != port]
            elif out.port == RESULTS and self.is_group:
                found += [(member["port"], readdressed(data, {"mac": GROUP.mac, "ip": GROUP.ip, "udp_port": GROUP.udp}))
                          for member in members[frames.parse(data)[2].job]]
            elif out.port == RESULTS:
                found += [(member["port"], readdressed(data, member)) for member in members[frames.parse(data)[2].job]]
            else:
                found.append((out.port, data))
        return found
