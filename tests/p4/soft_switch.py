#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""soft_switch.py LIBRARY CONTROL INTERFACE...: p4/pna.p4 as C that translate.py made of it, as a switch between
interfaces. switchmld --dataplane dpdk-p4 fills its tables through the socket CONTROL. It does what switchml-pipeline
does around DPDK's program, in the simplest form: so real ranks can sum over the program where there is no tool of P4.
It is slow, and forgets no host. src/pipeline/control.h says what is asked."""
import ctypes
import os
import select
import socket
import struct
import sys

import frames
from dpdk import readdressed
from translated import MAX_DATA, MAX_KEYS, MAX_OUT, Calls, Out

ALL_PROTOCOLS, SOL_PACKET, ADD_MEMBERSHIP, PROMISCUOUS, OUTGOING = 3, 263, 1, 1, 4
ARP, FRAME_BYTES, BURST = b"\x08\x06", 4096, 64


def listen_at(interface):
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    link.bind((interface, 0))
    link.setblocking(False)
    link.setsockopt(SOL_PACKET, ADD_MEMBERSHIP,
                    struct.pack("iHH8s", socket.if_nametoindex(interface), PROMISCUOUS, 0, b""))
    return link


def numbers(values, num):
    return (ctypes.c_uint64 * num)(*values)


class SoftSwitch:
    def __init__(self, library, interfaces):
        self.links, self.stations, self.out = [listen_at(interface) for interface in interfaces], {}, (Out * MAX_OUT)()
        self.program = Calls.in_dll(ctypes.CDLL(library), "p4_pna")
        self.members, self.cpu = {}, None
        self.program.reset(1)

    # ---- control: each request returns the words of its answer, or None if it is refused ----

    def do_reset(self):
        self.program.reset(1)
        self.members, self.cpu = {}, None
        return ""

    def do_ports(self):
        return f" {len(self.links)}"

    @staticmethod
    def do_born():
        return f" {os.getpid()}"

    def do_cpu(self, port, ip, udp, voucher):
        self.cpu = int(port), frames.Host(None, int(ip), int(udp)), int(voucher)
        return ""

    def do_member(self, job, port, mac, ip, udp):
        self.members.setdefault(int(job), []).append((int(port), {"mac": int(mac), "ip": int(ip), "udp_port": int(udp)}))
        return ""

    def do_nobody(self, job):
        self.members[int(job)] = []
        return ""

    def entry_of(self, words):
        """Keys, masks, and what stands behind them."""
        end = next((i for i, word in enumerate(words) if word in ("action", "priority")), len(words))
        pairs = [word.partition("/") for word in words[1:end]] # words[0] is "match"
        keys, masks = [int(key, 0) for key, _, _ in pairs], [int(mask or "0", 0) for _, _, mask in pairs]
        return numbers(keys, MAX_KEYS), numbers(masks, MAX_KEYS), words[end + 2 * (words[end:end + 1] == ("priority",)):]

    def do_add(self, table, *words):
        keys, masks, rest = self.entry_of(words)
        action, data = rest[1].removeprefix("_").removesuffix("_0"), [int(word, 0) for word in rest[3::2]]
        done = self.program.add(table.removeprefix("_").encode(), action.encode(), keys, masks, numbers(data, MAX_DATA))
        return "" if done == 0 else None

    def do_remove(self, table, *words):
        keys, _, _ = self.entry_of(words)
        return "" if self.program.remove(table.removeprefix("_").encode(), keys) == 0 else None

    def do_write(self, register, first, end, value):
        done = [self.program.write(register.encode(), cell, int(value)) for cell in range(int(first), int(end))]
        return "" if not any(done) else None

    def do_read(self, register, first, end):
        name = register.removesuffix("_0") if register == "verdicts_0" else register
        values = [self.program.read(name.encode(), cell) for cell in range(int(first), int(end))]
        return "".join(f" {value}" for value in values) if min(values) >= 0 else None

    def answer(self, request):
        words = ""
        for line in request.splitlines():
            if line in ("", "."):
                continue
            verb, *rest = line.split()
            said = getattr(self, f"do_{verb}")(*rest)
            if said is None:
                return f"error {line}\n"
            words += said
        return f"ok{words}\n"

    # ---- packets ----

    def marked(self, data, came_by):
        """A HELLO to the control plane says where it came from."""
        port, to, voucher = self.cpu
        is_hello = (len(data) >= 74 and data[12:15] == b"\x08\0\x45" and data[23] == 17 and data[42] == 0x10 | frames.HELLO
                    and data[30:34] == to.ip.to_bytes(4, "big") and data[36:38] == to.udp.to_bytes(2, "big"))
        if not is_hello:
            return data
        place = struct.pack(">H", came_by), data[6:10] + b"\0\0" + data[10:12], struct.pack(">I", voucher)
        return data[:40] + b"\0\0" + data[42:54] + place[0] + data[56:58] + place[1] + data[66:70] + place[2] + data[74:]

    def send(self, port, data, came_by):
        if self.cpu and port == self.cpu[0]:
            data = self.marked(data, came_by)
        try:
            self.links[port].send(data)
        except OSError: # the queue is full, or the link is down: it is lost
            pass

    def flood(self, data, came_by):
        to = self.stations.get(data[:6])
        ports = range(len(self.links)) if to is None or data[12:14] == ARP else [to]
        for port in ports:
            if port != came_by:
                self.send(port, data, came_by)

    def take(self, came_by, data):
        self.stations[data[6:12]] = came_by
        num = self.program.take(came_by, data, len(data), self.out)
        for out in [Out.from_buffer_copy(each) for each in self.out[:num]]:
            made = bytes(out.bytes[:out.num_bytes])
            if out.port < len(self.links):
                self.send(out.port, made, came_by)
            elif out.port > len(self.links):
                self.flood(made, came_by)
            else:
                for port, member in self.members.get(frames.parse(made)[2].job, ()):
                    self.send(port, readdressed(made, member), came_by)

    def take_some(self, came_by):
        for _ in range(BURST):
            try:
                data, address = self.links[came_by].recvfrom(FRAME_BYTES)
            except BlockingIOError:
                return
            if address[2] != OUTGOING:
                self.take(came_by, data)


def main():
    switch, control = SoftSwitch(sys.argv[1], sys.argv[3:]), socket.socket(socket.AF_UNIX)
    control.bind(sys.argv[2])
    control.listen()
    print(f"control at {sys.argv[2]}", flush=True)
    requests = {}
    while True:
        for ready in select.select([control, *requests, *switch.links], [], [])[0]:
            if ready is control:
                requests[control.accept()[0]] = ""
            elif ready in requests:
                requests[ready] += (part := ready.recv(65536).decode())
                if not part:
                    del requests[ready]
                elif requests[ready].endswith(".\n"):
                    ready.sendall(switch.answer(requests[ready]).encode())
                    requests[ready] = ""
            else:
                switch.take_some(switch.links.index(ready))


if __name__ == "__main__":
    main()
