#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A host that is not on the path, and writes into the sums of a job without a key. It knows what everybody may know:
the status, what a job of its own was told, and what programs sum. What it lacks it tries: every port that a rank may send
from. Two ranks sum 1 and 2 meanwhile, and get 3.

Where epochs are counted and datagrams have nothing to guess, the first sum is 1001 and the second 1002, and nobody gets
an error."""
import socket
import struct
import time

import e2e
import peer
import real
import tap

NUM_ELEMS, NUM_OPERATIONS, FORGED = 16, 4, 1000
INT32_SUM = 0x100  # of the tag: type 1, reduction 0
UDP_BYTES = 8


def mix(value):
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9 & 2**64 - 1
    value = (value ^ value >> 27) * 0x94d049bb133111eb & 2**64 - 1
    return value ^ value >> 31


def tag_of(operation, lanes, chunk_bytes):
    """The tag of an operation's only chunk (PROTOCOL.md rule R79)."""
    tag = 0x53774d4c76310001
    for field in (operation, NUM_ELEMS, INT32_SUM, lanes << 32 | chunk_bytes, 0):
        tag = mix(tag ^ field) + 0x9e3779b97f4a7c15 & 2**64 - 1
    return mix(tag) >> 32


def raw_socket():
    try:
        return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    except PermissionError:
        raise tap.Skip("forged source addresses need root") from None


class Forger:
    """What it found out, and the datagrams made of it."""

    def __init__(self, daemon, job_name):
        self.job = next(job["number"] for job in e2e.status(daemon.address)["jobs"] if job["name"] == job_name)
        own = [peer.Member(daemon.port, rank, 2, job_name="forger") for rank in range(2)]
        peer.join_all(own)
        self.told, self.port = own[0].start, own[0].welcome["ports"][0]
        self.epoch = own[0].welcome["epoch"] - 1 & 2**32 - 1  # it joined after the others
        for member in own:
            member.close()
        self.num_sent = 0

    def datagram(self, operation, rank):
        """The part that `rank` has in an operation; each is one chunk, and has the slot after the last one's."""
        told = self.told
        fields = {"job": self.job, "epoch": self.epoch, "rank": rank, "slot": operation, "phase": told["first_phase"],
                  "tag": tag_of(operation, told["lanes"], told["chunk_bytes"]),
                  "chunk": told["first_chunk"] + operation}
        return peer.pack_datagram(fields, struct.pack(">i", FORGED) * NUM_ELEMS)

    def send(self, raw, from_ports):
        """In the place of rank 1 in the first operation, of rank 0 in the second: 1 + 1000, 1000 + 2."""
        forged = [self.datagram(0, 1), self.datagram(1, 0)]
        for port in from_ports:
            for data in forged:
                head = struct.pack(">HHHH", port, self.port, UDP_BYTES + len(data), 0)
                raw.sendto(head + data, ("127.0.0.1", 0))
                self.num_sent += 1
            if self.num_sent % 500 == 0:
                time.sleep(0.005)  # less than the aggregator has room for


def every_port():
    """That a socket gets which asks for any."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as ports:
        first, last = map(int, ports.read().split())
    return range(first, last + 1)


def test_a_sum_is_not_changed_in_silence():
    with raw_socket() as raw, e2e.Daemon("--lanes", "1") as daemon, \
            real.job(daemon.address, 2, MEMBER_JOB="victim", MEMBER_ONES=1, MEMBER_WAIT=1, MEMBER_ELEMENTS=NUM_ELEMS,
                     MEMBER_OPERATIONS=NUM_OPERATIONS, SWITCHML_CHECK=0, SWITCHML_THREADS=1,
                     SWITCHML_MAX_DATAGRAM=1472) as members:
        for member in members:
            member.wait_for("joined")
        forger = Forger(daemon, "victim")
        forger.send(raw, every_port())
        # The same once more from where the ranks are: a full buffer may have lost what counts.
        for _ in range(10):
            forger.send(raw, [port for member in members for port in e2e.Daemon.udp_ports(member)])
            time.sleep(0.02)
        print(f"# {forger.num_sent} datagrams", flush=True)
        for member in members:
            member.go()
        endings = [(member.finish(), member.text()) for member in members]
    assert [status for status, _ in endings] == [0, 0], "\n".join(text for _, text in endings)


if __name__ == "__main__":
    tap.main(globals())
