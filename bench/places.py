# SPDX-License-Identifier: Apache-2.0
"""Where the ranks of a measurement run: in a bed of shaped links, or all on one host's loopback."""
import contextlib
import os
import re
import signal
import subprocess

import netbed


class BenchError(RuntimeError):
    pass


class Processes:
    """What a measurement started, to be ended with it."""

    def __init__(self):
        self.running = []

    def start(self, command, **keywords):
        keywords.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen(command, text=True, process_group=0, **keywords)
        self.running.append(process)
        return process

    def pids(self):
        return [process.pid for process in self.running if process.poll() is None]

    def stop(self, processes=None):
        """Ends all of them, or these."""
        ending = list(self.running if processes is None else processes)
        for process in ending:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self.running = [process for process in self.running if process not in ending]


class BedPlace:
    """Each rank behind a link of its own."""
    name, interface, num_hosts = "bed", "eth0", None

    def __init__(self, bed):
        self.bed, self.num_hosts = bed, bed.num_workers
        self.subnet = f"{netbed.SUBNET}.0/24"
        self.aggregator_address = bed.aggregator_address

    def at_rank(self, rank, command):
        return netbed.Netbed.command(self.bed.worker(rank), command)

    def at_aggregator(self, command):
        return netbed.Netbed.command(self.bed.aggregator, command)

    def sent_bytes(self):
        """What all ranks' links let out so far, the headers of every segment counted; None: not known."""
        if self.bed.path:  # where a rate limits it to single packets, the port counts what the link carries
            return None if self.bed.rate == "none" else sum(netbed.Netbed.sent_bytes(self.bed.worker(rank))
                                                            for rank in range(self.bed.num_workers))
        return self._shaped_bytes((self.bed.worker(rank), "eth0") for rank in range(self.bed.num_workers))

    def received_bytes(self):
        """What all links carried to the ranks so far; None: not known."""
        return self._shaped_bytes((self.bed.bridge, f"w{rank}") for rank in range(self.bed.num_workers))

    @staticmethod
    def _shaped_bytes(ports):
        total = 0
        for namespace, device in ports:
            text = subprocess.run(["tc", "-s", "-n", namespace, "qdisc", "show", "dev", device],
                                  capture_output=True, text=True, check=True).stdout
            match = re.search(r"qdisc tbf.*?Sent (\d+) bytes", text, re.DOTALL)
            if not match:
                return None
            total += int(match.group(1))
        return total

    def retransmissions(self):
        """Of TCP, by all ranks, so far."""
        return sum(netbed.Netbed.tcp_retransmissions(self.bed.worker(rank)) for rank in range(self.bed.num_workers))


class LoopbackPlace:
    """All ranks on one loopback: of a namespace of its own where this may be, so that nobody else is counted."""
    name, interface, num_hosts = "loopback", "lo", 1
    subnet, aggregator_address = "127.0.0.0/8", "127.0.0.1"

    def __init__(self, namespace=None):
        self.namespace = namespace

    def at_rank(self, _rank, command):
        return netbed.Netbed.command(self.namespace, command) if self.namespace else command

    def at_aggregator(self, command):
        return self.at_rank(0, command)

    def sent_bytes(self):
        """All that went over the loopback, which is what all ranks sent (and the aggregator); None: not only ours."""
        if not self.namespace:
            return None
        text = subprocess.run(["ip", "netns", "exec", self.namespace, "cat", "/proc/net/dev"], capture_output=True,
                              text=True, check=True).stdout
        return next(int(line.split(":")[1].split()[8]) for line in text.splitlines() if line.strip().startswith("lo:"))

    def retransmissions(self):
        return netbed.Netbed.tcp_retransmissions(self.namespace) if self.namespace else 0


@contextlib.contextmanager
def loopback():
    """A LoopbackPlace that is gone afterwards."""
    if netbed.why_unavailable():
        yield LoopbackPlace()
        return
    with netbed.Loopback() as namespace:
        yield LoopbackPlace(namespace)


@contextlib.contextmanager
def bed(num_workers, **options):
    """A BedPlace that is gone afterwards."""
    with netbed.Netbed(num_workers, **options) as made:
        yield BedPlace(made)
