# SPDX-License-Identifier: Apache-2.0
"""The network bed: a star of network namespaces on one machine, for measuring and for the demo.

    worker 0 [eth0]--tbf--\\                      every worker link: `rate` in both directions
    worker 1 [eth0]--tbf---[bridge]--[eth0 aggregator]       the aggregator's port: unshaped,
    ...                   /                      or `aggregator_rate`

Each worker, the bridge and the aggregator have a namespace of their own, `sml-NAME-w0`, `-br`, `-agg`;
the addresses 10.77.0.x exist only in there. Segmentation offload stays on; the token buckets hold 256 KiB,
since a bucket smaller than a segmented packet would cut it up (and change the result by a factor).
"""
import argparse
import atexit
import os
import re
import signal
import subprocess
import sys
import time

PREFIX = "sml-"
SUBNET = "10.77.0"
MAX_WORKERS = 100
BURST_BYTES = 256 << 10
QUEUE_SECONDS = 0.1  # of the link's rate: what a token bucket holds unless told


class NetbedError(RuntimeError):
    pass


def parse_rate(text):
    """Bits a second of a rate as tc writes it; the subset that people use."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text)
    if not match:
        raise NetbedError(f"'{text}' is no rate: like 1gbit or 200mbit")
    return float(match.group(1)) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[match.group(2)]


def _run(*command):
    # Out of reach of the terminal's Ctrl-C, which would stop it half way.
    result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                            process_group=0)
    if result.returncode != 0:
        raise NetbedError(f"{' '.join(command)}: {(result.stderr or result.stdout).strip()}")
    return result.stdout


def why_unavailable():
    """Why there can be no bed here; "" if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc"):
        if not any(os.access(os.path.join(folder, program), os.X_OK)
                   for folder in os.environ.get("PATH", "").split(":") + ["/sbin", "/usr/sbin"]):
            return f"the command {program} is missing (Debian: iproute2)"
    probe = f"{PREFIX}probe{os.getpid()}"
    try:
        _run("ip", "netns", "add", probe)
        try:  # a container may have namespaces but no mounts, links or shaping in them
            _run("ip", "netns", "exec", probe, "true")
            _run("ip", "-n", probe, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
            _run("tc", "-n", probe, "qdisc", "add", "dev", "eth0", "root", "tbf",
                 "rate", "1gbit", "burst", "256kb", "latency", "50ms")
        finally:
            _run("ip", "netns", "del", probe)
    except NetbedError as error:
        return str(error)
    return ""


def _namespaces(name):
    """The namespaces of the bed `name` that exist."""
    try:
        listed = os.listdir("/run/netns")
    except FileNotFoundError:
        return []
    pattern = re.compile(re.escape(f"{PREFIX}{name}-") + r"(w\d+|agg|br)$")
    return sorted(namespace for namespace in listed if pattern.match(namespace))


def _kill_inside(namespace):
    """Ends what still runs in a namespace of ours: it is ours, too."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            try:
                pids = [int(pid) for pid in _run("ip", "netns", "pids", namespace).split()]
            except NetbedError:
                return
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)


def remove(name):
    """Takes the bed `name` down; nothing happens if there is none."""
    for namespace in _namespaces(name):
        _kill_inside(namespace)
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def remove_abandoned():
    """Takes down beds of processes that were killed before they could: their names carry the pid."""
    try:
        listed = os.listdir("/run/netns")
    except FileNotFoundError:
        return
    for pid in {match.group(1) for match in (re.match(PREFIX + r"p(\d+)-", name) for name in listed) if match}:
        if not os.path.exists(f"/proc/{pid}"):
            remove(f"p{pid}")


class Netbed:
    """A bed. As a context manager it is removed at the end, whatever happens; also at the process's exit."""

    def __init__(self, num_workers, rate="1gbit", mtu=1500, name=None, limit_bytes=None, aggregator_rate="none"):
        """limit_bytes: what may wait in each token bucket; else what passes in QUEUE_SECONDS."""
        if not 1 <= num_workers <= MAX_WORKERS:
            raise NetbedError(f"a bed has 1 to {MAX_WORKERS} workers, not {num_workers}")
        if not 576 <= mtu <= 65521:
            raise NetbedError(f"an MTU is 576 to 65521, not {mtu}")
        self.name = name or f"p{os.getpid()}"
        if not re.fullmatch(r"[A-Za-z0-9_.]{1,32}", self.name):
            raise NetbedError(f"'{self.name}' cannot name a bed: letters, digits, _ and . only, at most 32")
        self.num_workers, self.rate, self.mtu = num_workers, rate, mtu
        self.aggregator_rate, self.limit_bytes = aggregator_rate, limit_bytes
        self.rate_bps = None if rate == "none" else parse_rate(rate)

    @property
    def queue_bytes(self):
        """What may wait in a worker's token bucket."""
        return self._queue_bytes(self.rate)

    def _queue_bytes(self, rate):
        return self.limit_bytes or int(BURST_BYTES + QUEUE_SECONDS * parse_rate(rate) / 8)

    def worker(self, rank):
        return f"{PREFIX}{self.name}-w{rank}"

    @property
    def aggregator(self):
        return f"{PREFIX}{self.name}-agg"

    @property
    def bridge(self):
        return f"{PREFIX}{self.name}-br"

    @staticmethod
    def worker_address(rank):
        return f"{SUBNET}.{rank + 1}"

    aggregator_address = f"{SUBNET}.{MAX_WORKERS + 100}"

    def up(self):
        if _namespaces(self.name):
            raise NetbedError(f"a bed named {self.name} is up already; `bench/netbed down --name {self.name}`")
        try:
            self._add_namespace(self.bridge)
            self._inside(self.bridge, "ip link add br0 mtu", str(self.mtu),
                         "type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
            self._inside(self.bridge, "ip link set br0 up")
            for rank in range(self.num_workers):
                self._add_member(self.worker(rank), f"w{rank}", self.worker_address(rank), self.rate)
            self._add_member(self.aggregator, "agg", self.aggregator_address, self.aggregator_rate)
        except BaseException:
            self.down()
            raise
        return self

    def down(self):
        remove(self.name)

    def __enter__(self):
        atexit.register(self.down)
        return self.up()

    def __exit__(self, *_):
        self.down()
        atexit.unregister(self.down)

    @staticmethod
    def _inside(namespace, *words):
        command = " ".join(words).split()
        if command[0] == "ip":
            return _run("ip", "-n", namespace, *command[1:])
        return _run("ip", "netns", "exec", namespace, *command)

    def _add_namespace(self, namespace):
        _run("ip", "netns", "add", namespace)
        self._inside(namespace, "ip link set lo up")
        for which in ("all", "default"):  # neighbour discovery would be counted as traffic
            path = f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6"
            if os.path.exists(path):
                self.set_kernel(namespace, f"net/ipv6/conf/{which}/disable_ipv6", 1)

    def _add_member(self, namespace, port, address, rate):
        self._add_namespace(namespace)
        _run("ip", "link", "add", "name", "eth0", "netns", namespace, "mtu", str(self.mtu), "type", "veth",
             "peer", "name", port, "netns", self.bridge, "mtu", str(self.mtu))
        self._inside(self.bridge, "ip link set", port, "master br0 up")
        self._inside(namespace, "ip addr add", f"{address}/24", "dev eth0")
        self._inside(namespace, "ip link set eth0 up")
        if rate != "none":
            for inside, device in ((namespace, "eth0"), (self.bridge, port)):
                self._inside(inside, "tc qdisc add dev", device, "root handle 1: tbf rate", rate, "burst",
                             str(BURST_BYTES), "limit", str(self._queue_bytes(rate)))

    @staticmethod
    def set_kernel(namespace, path, value):
        """A setting below /proc/sys of one namespace."""
        _run("ip", "netns", "exec", namespace, "sh", "-c", f"echo {value} > /proc/sys/{path}")

    @staticmethod
    def command(namespace, command):
        """The command line that runs `command` in a namespace, with the same pid."""
        return ["ip", "netns", "exec", namespace, *command]

    @staticmethod
    def sent_bytes(namespace):
        """What the namespace's port has sent since it exists: Ethernet frames, as the link carries them."""
        return int(_run("ip", "netns", "exec", namespace, "cat", "/sys/class/net/eth0/statistics/tx_bytes"))

    @staticmethod
    def tcp_retransmissions(namespace):
        rows = [line.split() for line in _run("ip", "netns", "exec", namespace, "cat", "/proc/net/snmp").splitlines()
                if line.startswith("Tcp:")]
        return int(dict(zip(rows[0], rows[1]))["RetransSegs"])


class Loopback:
    """A namespace with nothing but its loopback. As a context manager it gives its name, and is removed at the end."""

    def __init__(self):
        self.name = f"p{os.getpid()}"
        self.namespace = f"{PREFIX}{self.name}-br"

    def __enter__(self):
        atexit.register(remove, self.name)
        _run("ip", "netns", "add", self.namespace)
        _run("ip", "-n", self.namespace, "link", "set", "lo", "up")
        return self.namespace

    def __exit__(self, *_):
        remove(self.name)
        atexit.unregister(remove)


class RaisedPriority:
    """Other load in other sessions shares the cores whatever our nice value says, unless our session's own
    autogroup is raised: done here, best effort, and put back at the end. Children that stay in the session
    have it, too."""
    path = "/proc/self/autogroup"

    def __enter__(self):
        try:
            with open(self.path, encoding="ascii") as autogroup:
                self.before = autogroup.read().split()[-1]
            self._write("-20")
        except (OSError, IndexError):
            self.before = None
        return self

    def __exit__(self, *_):
        if self.before is not None:
            self._write(self.before)

    def _write(self, nice):
        with open(self.path, "w", encoding="ascii") as autogroup:
            autogroup.write(nice)


def _forward_signals(process):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: process.send_signal(received))


def main():
    parser = argparse.ArgumentParser(prog="bench/netbed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="make a bed and leave it there")
    up.add_argument("--workers", type=int, required=True)
    up.add_argument("--rate", default="1gbit", help="of each worker's link, as tc writes it; none: unshaped")
    up.add_argument("--mtu", type=int, default=1500)
    up.add_argument("--limit", type=int, help="bytes that may wait in a link's token bucket (default: 0.1 s of its rate)")
    up.add_argument("--aggregator-rate", default="none", help="of the aggregator's port (default: none, unshaped)")
    down = commands.add_parser("down", help="take it down, with what runs in it; no error if there is none")
    execute = commands.add_parser("exec", help="run a command in it: RANK or agg or br, then the command")
    execute.add_argument("where")
    execute.add_argument("words", nargs=argparse.REMAINDER)
    for each in (up, down, execute):
        each.add_argument("--name", default="bed", help="of the bed (default: bed)")
    arguments = parser.parse_args()
    try:
        if arguments.command == "up":
            reason = why_unavailable()
            if reason:
                raise NetbedError(reason)
            remove_abandoned()
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            bed = Netbed(arguments.workers, arguments.rate, arguments.mtu, arguments.name, arguments.limit,
                         arguments.aggregator_rate).up()
            print(f"{bed.num_workers} workers at {SUBNET}.1 and up, aggregator at {bed.aggregator_address}; "
                  f"{bed.rate} each, MTU {bed.mtu}; namespaces {PREFIX}{bed.name}-*")
            return 0
        if arguments.command == "down":
            remove(arguments.name)
            return 0
        where = f"w{arguments.where}" if arguments.where.isdigit() else arguments.where
        namespace = f"{PREFIX}{arguments.name}-{where}"
        if namespace not in _namespaces(arguments.name):
            raise NetbedError(f"there is no {namespace}; `bench/netbed up` makes a bed")
        if not arguments.words:
            raise NetbedError("exec: which command?")
        process = subprocess.Popen(Netbed.command(namespace, arguments.words))
        _forward_signals(process)
        return process.wait()
    except NetbedError as error:
        print(f"netbed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
