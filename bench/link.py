# SPDX-License-Identifier: Apache-2.0
"""Links of a bed that mark ECN and lose, by the tc programs of link.bpf.c, and a long-lived TCP flow beside ours.

    with netbed.Netbed(2, limit_bytes=250_000) as bed:
        up = link.Link(bed, 0, "up")             # worker 0's sending direction; "down": towards it
        up.mark(60_000)                          # CE from 60 kB of queue on
        up.lose(0.01, segments=64)               # behind the token bucket, 64 packets at a time
        ...
        up.counters()                            # what happened since
"""
import ctypes
import errno
import json
import os
import platform
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time

import netbed

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(HERE, "link.bpf.c")

_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_LOOKUP, _UPDATE, _PROG_BY_ID, _MAP_BY_ID, _INFO = 1, 2, 13, 14, 15
_SETTINGS = struct.Struct("=4Q2I")
_COUNTERS = struct.Struct("=7Q")
COUNTERS = ("packets", "bytes", "marked_packets", "markable_packets", "lost_packets", "lost_buffers", "deepest_bytes")


def _bpf(command, attributes):
    """bpf(2); attributes are bytes, padded to what all the commands here take."""
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise netbed.NetbedError(f"the number of bpf(2) on {platform.machine()} is not known here")
    libc = ctypes.CDLL(None, use_errno=True)
    memory = ctypes.create_string_buffer(attributes.ljust(64, b"\0"), 64)
    result = libc.syscall(number, command, memory, 64 if command < _PROG_BY_ID else 16)
    if result < 0:
        raise netbed.NetbedError(f"bpf(2), command {command}: {os.strerror(ctypes.get_errno())}")
    return result


class _Map:
    """A map of one value."""

    def __init__(self, descriptor):
        self.descriptor = descriptor

    def _call(self, command, value):
        key = ctypes.c_uint32(0)
        _bpf(command, struct.pack("=IxxxxQQQ", self.descriptor, ctypes.addressof(key), ctypes.addressof(value), 0))

    def read(self, num_bytes):
        value = ctypes.create_string_buffer(num_bytes)
        self._call(_LOOKUP, value)
        return value.raw

    def write(self, data):
        self._call(_UPDATE, ctypes.create_string_buffer(data, len(data)))


def _maps_of(program_id):
    """The program's maps by name."""
    program = _bpf(_PROG_BY_ID, struct.pack("=I", program_id))
    ids = (ctypes.c_uint32 * 8)()
    info = ctypes.create_string_buffer(64)
    struct.pack_into("=IQ", info, 52, 8, ctypes.addressof(ids))
    _bpf(_INFO, struct.pack("=IIQ", program, 64, ctypes.addressof(info)))
    maps = {}
    for index in range(struct.unpack_from("=I", info, 52)[0]):
        descriptor = _bpf(_MAP_BY_ID, struct.pack("=I", ids[index]))
        about = ctypes.create_string_buffer(64)
        _bpf(_INFO, struct.pack("=IIQ", descriptor, 64, ctypes.addressof(about)))
        maps[about.raw[24:40].split(b"\0")[0].decode()] = _Map(descriptor)
    os.close(program)
    return maps


def compile_program(folder):
    """link.bpf.c for this machine's headers; gives the object's path."""
    path = os.path.join(folder, "link.o")
    if not os.path.exists(path):
        command = ["clang", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-target", "bpf",
                   f"-I/usr/include/{platform.machine()}-linux-gnu", "-c", SOURCE, "-o", path]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise netbed.NetbedError("clang is missing (Debian: clang, libbpf-dev)") from None
        except subprocess.CalledProcessError as error:
            raise netbed.NetbedError(f"clang could not compile {SOURCE}: {error.stderr.strip()}") from None
    return path


def why_unavailable():
    """Why no link can mark or lose here; "" if it can."""
    reason = netbed.why_unavailable()
    if reason:
        return reason
    try:
        with tempfile.TemporaryDirectory() as folder, \
             netbed.Netbed(1, name=f"p{os.getpid()}") as bed:
            link = Link(bed, 0, "up", folder)
            link.mark(1000)
            link.lose(0.5)
            link.counters()
    except netbed.NetbedError as error:
        return str(error)
    return ""


class Link:
    """One direction of a worker's link: "up" from the worker, "down" to it."""

    def __init__(self, bed, rank, direction, folder=None):
        worker, bridge = (bed.worker(rank), "eth0"), (bed.bridge, f"w{rank}")
        self.sender, self.receiver = (worker, bridge) if direction == "up" else (bridge, worker)
        self.bed = bed
        with tempfile.TemporaryDirectory() as own:
            program = compile_program(folder or own)
            self.marking = self._attach(self.sender, "egress", program, "tc/mark")
            self.losing = self._attach(self.receiver, "ingress", program, "tc/lose")
        self.mark(0)
        self.lose(0)

    @staticmethod
    def _attach(end, hook, program, section):
        namespace, device = end
        run = netbed._run  # pylint: disable=protected-access
        if "clsact" not in run("tc", "-n", namespace, "qdisc", "show", "dev", device):
            run("tc", "-n", namespace, "qdisc", "add", "dev", device, "clsact")
        run("tc", "-n", namespace, "filter", "add", "dev", device, hook, "bpf", "direct-action",
            "object-file", program, "section", section)
        filters = json.loads(run("tc", "-j", "-n", namespace, "filter", "show", "dev", device, hook))
        ids = [each["options"]["prog"]["id"] for each in filters if "prog" in each.get("options", {})]
        return _maps_of(ids[-1])

    def mark(self, queue_bytes):
        """CE on what finds more than this waiting; 0: only the queue is followed."""
        if self.bed.rate_bps is None:
            raise netbed.NetbedError("a link without a rate has no queue to mark by")
        self.marking["link_settings"].write(_SETTINGS.pack(int(self.bed.rate_bps / 8), netbed.BURST_BYTES,
                                                           self.bed.queue_bytes, queue_bytes, 0, 0))

    def lose(self, share, segments=0):
        """Loses this share of what the kernel hands over as one, and what follows until `segments` are gone."""
        self.losing["link_settings"].write(_SETTINGS.pack(0, 0, 0, 0, round(share * 1e6), segments))

    def counters(self):
        """Since the link was made: packets are segments; deepest_bytes is the deepest queue seen."""
        marking, losing = (dict(zip(COUNTERS, _COUNTERS.unpack(maps["link_counters"].read(_COUNTERS.size))))
                           for maps in (self.marking, self.losing))
        return {**marking, "lost_packets": losing["lost_packets"], "lost_buffers": losing["lost_buffers"]}

    def sent_bytes(self):
        """What the token bucket let out: the bytes of all segments with their headers."""
        namespace, device = self.sender
        text = netbed._run("tc", "-s", "-n", namespace, "qdisc", "show", "dev", device)  # pylint: disable=protected-access
        return int(re.search(r"qdisc tbf.*?Sent (\d+) bytes", text, re.DOTALL).group(1))

    def dropped_packets(self):
        """By the token bucket, whose queue was full."""
        namespace, device = self.sender
        text = netbed._run("tc", "-s", "-n", namespace, "qdisc", "show", "dev", device)  # pylint: disable=protected-access
        return int(re.search(r"qdisc tbf.*?dropped (\d+)", text, re.DOTALL).group(1))


class BulkFlow:
    """A bulk TCP flow with ECN and the congestion control of this name over worker `rank`'s link, "up" or "down", until stop(). Its other end is
    the aggregator, whose port is not shaped."""
    def __init__(self, bed, rank, direction, control="cubic", port=4899):
        self.control, self.port = control, port
        worker, aggregator = bed.worker(rank), bed.aggregator
        sender, receiver = (worker, aggregator) if direction == "up" else (aggregator, worker)
        address = bed.aggregator_address if direction == "up" else bed.worker_address(rank)
        for namespace in (sender, receiver):
            netbed.Netbed.set_kernel(namespace, "net/ipv4/tcp_ecn", "1")
        self.processes = []
        try:
            self.receiver = self._start(receiver, "receive", address)
            if self.receiver.stdout.readline().strip() != "ready":
                raise netbed.NetbedError("the receiver of the TCP flow did not start")
            self._start(sender, "send", address)
            if self.receiver.stdout.readline().strip() != "connected":
                raise netbed.NetbedError("the TCP flow did not connect")
        except BaseException:
            self.stop()
            raise

    def _start(self, namespace, role, address):
        process = subprocess.Popen(netbed.Netbed.command(namespace, [sys.executable, os.path.abspath(__file__), role,
                                                                     address, str(self.port), self.control]),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)
        self.processes.append(process)
        return process

    def received_bytes(self):
        """Payload delivered so far."""
        self.receiver.stdin.write("count\n")
        self.receiver.stdin.flush()
        return int(self.receiver.stdout.readline())

    def stop(self):
        for process in reversed(self.processes):  # the sender first: it would complain of the other's end
            process.kill()
            process.communicate()
        self.processes = []


def _bulk_socket(control):
    bulk = socket.socket()
    bulk.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bulk.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    return bulk


def _send(address, port, control):
    bulk = _bulk_socket(control)
    deadline = time.monotonic() + 5
    while True:
        try:
            bulk.connect((address, port))
            break
        except OSError as error:
            if error.errno != errno.ECONNREFUSED or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    block = bytes(1 << 18)
    while True:
        bulk.sendall(block)


def _receive(address, port, control):
    listener = _bulk_socket(control)
    listener.bind((address, port))
    listener.listen(1)
    print("ready", flush=True)
    connection, _ = listener.accept()
    print("connected", flush=True)
    os.set_blocking(sys.stdin.fileno(), False)
    connection.settimeout(0.05)
    block, total = bytearray(1 << 18), 0
    while True:
        try:
            total += connection.recv_into(block)
        except TimeoutError:
            pass
        try:
            if os.read(sys.stdin.fileno(), 64):
                print(total, flush=True)
        except BlockingIOError:
            pass


if __name__ == "__main__":
    {"send": _send, "receive": _receive}[sys.argv[1]](sys.argv[2], int(sys.argv[3]), sys.argv[4])
