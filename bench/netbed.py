# SPDX-License-Identifier: Apache-2.0
"""The network bed: a star of network namespaces on one machine, for measuring and for the demo.

    worker 0 [eth0]--tbf--\\                      every worker link: `rate` in both directions
    worker 1 [eth0]--tbf---[bridge]--[eth0 aggregator]       the aggregator's port: unshaped,
    ...                   /                      or `aggregator_rate`

Each worker, the bridge and the aggregator have a namespace of their own, `sml-NAME-w0`, `-br`, `-agg`;
the addresses 10.77.0.x exist only in there. Segmentation offload stays on; the token buckets hold 256 KiB,
since a bucket smaller than a segmented packet would cut it up (and change the result by a factor).

With a Path there is a program (bench/path.c) instead of bridge and token buckets: between any two hosts it takes a
time, varies, reorders and loses, and the links have no free credit. `bench/netbed check` says how exact it is.
"""
import argparse
import atexit
import dataclasses
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time

PREFIX = "sml-"
SUBNET = "10.77.0"
MAX_WORKERS = 100
BURST_BYTES = 256 << 10
QUEUE_SECONDS = 0.1  # of the link's rate: what a token bucket holds unless told
BUILD = os.environ.get("SML_BUILD_DIR", os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "build"))
SO_TIMESTAMPNS = 35
PROBE_BYTES = 1000
TCP_BUFFER_BYTES = 64 << 20  # at most; a window for 300 ms has to fit


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


@dataclasses.dataclass(frozen=True)
class Path:
    """What lies between any two hosts of a bed."""
    rtt_us: float = 0
    jitter_us: float = 0      # a frame takes up to so much longer, without overtaking
    late_share: float = 0     # of frames that take late_us longer, and are overtaken
    late_us: float = 0
    loss: float = 0           # share of packets, each way
    mark_bytes: int = 0       # CE on what finds more waiting for a link
    seed: int = 1

    def __post_init__(self):
        if min(dataclasses.astuple(self)) < 0 or max(self.loss, self.late_share) >= 1:
            raise NetbedError(f"{self}: times are not negative, shares are below 1")

    def arguments(self, queue_bytes):
        return ["--delay", str(self.rtt_us / 2), "--jitter", str(self.jitter_us), "--late",
                f"{self.late_share}:{self.late_us}", "--loss", str(self.loss), "--mark", str(self.mark_bytes),
                "--seed", str(self.seed), *(["--queue", str(queue_bytes)] if queue_bytes else [])]


class Netbed:
    """A bed. As a context manager it is removed at the end, whatever happens; also at the process's exit."""

    def __init__(self, num_workers, rate="1gbit", mtu=1500, name=None, limit_bytes=None, aggregator_rate="none",
                 path=None, burst_bytes=BURST_BYTES):
        """limit_bytes: what may wait for each link; else what passes in QUEUE_SECONDS. path: a Path, instead of the
        bridge. burst_bytes: of the token buckets, which a link carries at once after a pause."""
        if not 1 <= num_workers <= MAX_WORKERS:
            raise NetbedError(f"a bed has 1 to {MAX_WORKERS} workers, not {num_workers}")
        if not 576 <= mtu <= 65521:
            raise NetbedError(f"an MTU is 576 to 65521, not {mtu}")
        self.name = name or f"p{os.getpid()}"
        if not re.fullmatch(r"[A-Za-z0-9_.]{1,32}", self.name):
            raise NetbedError(f"'{self.name}' cannot name a bed: letters, digits, _ and . only, at most 32")
        self.num_workers, self.rate, self.mtu = num_workers, rate, mtu
        self.aggregator_rate, self.limit_bytes = aggregator_rate, limit_bytes
        self.path, self.burst_bytes, self.switch = path, burst_bytes, None
        self.rate_bps = None if rate == "none" else parse_rate(rate)

    @property
    def queue_bytes(self):
        """What may wait for a worker's link."""
        return self._queue_bytes(self.rate)

    def _queue_bytes(self, rate):
        return self.limit_bytes or int(self.burst_bytes + QUEUE_SECONDS * parse_rate(rate) / 8)

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
            if not self.path:
                self._inside(self.bridge, "ip link add br0 mtu", str(self.mtu),
                             "type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
                self._inside(self.bridge, "ip link set br0 up")
                for table in ("iptables", "ip6tables", "arptables"):  # no switch shows them what passes
                    self._set_if_there(self.bridge, f"net/bridge/bridge-nf-call-{table}", 0)
            for rank in range(self.num_workers):
                self._add_member(self.worker(rank), f"w{rank}", self.worker_address(rank), self.rate)
            self._add_member(self.aggregator, "agg", self.aggregator_address, self.aggregator_rate)
            if self.path:
                self._start_switch()
        except BaseException:
            self.down()
            raise
        return self

    def down(self):
        remove(self.name)
        if self.switch:
            self.switch.wait()
            self.switch.stdout.close()
            self.switch = None

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
            self._set_if_there(namespace, f"net/ipv6/conf/{which}/disable_ipv6", 1)

    def _add_member(self, namespace, port, address, rate):
        self._add_namespace(namespace)
        _run("ip", "link", "add", "name", "eth0", "netns", namespace, "mtu", str(self.mtu), "type", "veth",
             "peer", "name", port, "netns", self.bridge, "mtu", str(self.mtu))
        self._inside(self.bridge, "ip link set", port, "up" if self.path else "master br0 up")
        self._inside(namespace, "ip addr add", f"{address}/24", "dev eth0")
        self._inside(namespace, "ip link set eth0 up")
        if self.path:
            if rate != "none" or self.path.loss or self.path.late_share:  # these are of packets, not of segmented sends
                self._inside(namespace, "ip link set eth0 gso_max_segs 1")
            for path, value in (("tcp_rmem", f"4096 131072 {TCP_BUFFER_BYTES}"), ("tcp_slow_start_after_idle", 0),
                                ("tcp_wmem", f"4096 16384 {TCP_BUFFER_BYTES}")):
                self.set_kernel(namespace, f"net/ipv4/{path}", value)
        elif rate != "none":
            for inside, device in ((namespace, "eth0"), (self.bridge, port)):
                self._inside(inside, "tc qdisc add dev", device, "root handle 1: tbf rate", rate, "burst",
                             str(self.burst_bytes), "limit", str(self._queue_bytes(rate)))

    def _start_switch(self):
        program = os.path.join(BUILD, "bench/path")
        if not os.path.exists(program):
            raise NetbedError(f"{program} is not built; run `make everything`")
        ports = [(f"w{rank}", self.rate) for rank in range(self.num_workers)] + [("agg", self.aggregator_rate)]
        words = [port if rate == "none" else f"{port}={parse_rate(rate):.0f}" for port, rate in ports]
        queue_bytes = self.limit_bytes if self.rate == "none" else self.queue_bytes
        self.switch = subprocess.Popen(self.command(self.bridge, [program, *self.path.arguments(queue_bytes), *words]),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, process_group=0)
        if self.switch.stdout.readline() != "ready\n":
            raise NetbedError("the bed's switch did not start")

    def path_counters(self):
        """Since the start: frames, bytes, lost, dropped (by full queues), marked, late, overrun (by the switch itself,
        which should have none); since the last call error_us, by which frames left late: median, p99, worst."""
        self.switch.send_signal(signal.SIGUSR1)
        if not select.select([self.switch.stdout], [], [], 10)[0]:
            raise NetbedError("the bed's switch does not answer")
        return json.loads(self.switch.stdout.readline())

    def use_congestion_control(self, name):
        """Of all TCP connections that are made from now on. By route, since a namespace may not choose any that the host
        does not allow to all."""
        for namespace in _namespaces(self.name):
            if namespace != self.bridge:
                address = json.loads(_run("ip", "-j", "-n", namespace, "addr", "show", "eth0"))[0]["addr_info"][0]["local"]
                self._inside(namespace, f"ip route replace {SUBNET}.0/24 dev eth0 proto kernel scope link src {address}"
                             f" congctl lock {name}")

    def _set_if_there(self, namespace, path, value):
        if os.path.exists(f"/proc/sys/{path}"):
            self.set_kernel(namespace, path, value)

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


def _send_probes(address, port, num_probes, interval_s):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        begin = time.monotonic()
        for number in range(num_probes):
            time.sleep(max(0.0, begin + number * interval_s - time.monotonic()))
            out.sendto(struct.pack("=QQ", number, time.time_ns()).ljust(PROBE_BYTES, b"\0"), (address, port))


def _take_probes(address, port, num_probes, deadline_s):
    """[(number, nanoseconds under way)] as they came, by the kernel's time stamps."""
    taken = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taker:
        taker.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        taker.bind((address, port))
        print("ready", flush=True)
        end = time.monotonic() + deadline_s
        while len(taken) < num_probes and time.monotonic() < end:
            taker.settimeout(max(0.001, end - time.monotonic()))
            try:
                data, extra, _, _ = taker.recvmsg(PROBE_BYTES, 256)
            except TimeoutError:
                break
            seconds, nanoseconds = struct.unpack("=qq", extra[0][2])
            number, sent_ns = struct.unpack_from("=QQ", data)
            taken.append((number, seconds * 10 ** 9 + nanoseconds - sent_ns))
    print(json.dumps(taken))


def check(path, rate="none", num_probes=2000):
    """Probes from one host to another of a bed: how far their time under way is from what `path` says, what was lost,
    and what was overtaken; the congestion control that connections get."""
    with Netbed(2, rate=rate, path=path, name=f"p{os.getpid()}") as bed:
        own = [sys.executable, os.path.abspath(__file__)]
        serial_us = 0 if rate == "none" else 2 * (PROBE_BYTES + 42) * 8e6 / parse_rate(rate)
        interval_s = max(0.0005, serial_us / 1e6)
        address = bed.worker_address(1)
        end_s = num_probes * interval_s * 1.5 + (path.rtt_us + path.jitter_us + path.late_us) / 1e6 + 3
        taker = subprocess.Popen(bed.command(bed.worker(1), [*own, "take-probes", address, str(num_probes), str(end_s)]),
                                 stdout=subprocess.PIPE, text=True, process_group=0)
        taker.stdout.readline()
        for each, seconds in ((10, 0.01), (num_probes, interval_s)):  # the first few are for ARP, and not taken
            if each == 10:
                _run(*bed.command(bed.worker(0), [*own, "send-probes", address, "4802", str(each), str(seconds)]))
                time.sleep(path.rtt_us / 1e6)
            else:
                bed.path_counters()
                _run(*bed.command(bed.worker(0), [*own, "send-probes", address, "4801", str(each), str(seconds)]))
        taken = json.loads(taker.communicate(timeout=end_s + 10)[0])
        counters = bed.path_counters()
    nominal_us = path.rtt_us / 2 + serial_us
    errors = sorted(elapsed_ns / 1e3 - nominal_us for _, elapsed_ns in taken)
    highest, overtaken = -1, 0
    for number, _ in taken:
        overtaken += number < highest
        highest = max(highest, number)
    pick = lambda share: round(errors[min(len(errors) - 1, int(share * len(errors)))], 1) if errors else None
    return {"rtt_us": path.rtt_us, "nominal_us": round(nominal_us, 1), "probes": num_probes, "came": len(taken),
            "loss": 1 - len(taken) / num_probes, "overtaken": overtaken / max(1, len(taken)),
            "error_us": {"median": pick(0.5), "p99": pick(0.99), "least": pick(0), "worst": pick(1)},
            "switch_error_us": counters["error_us"], "overrun": counters["overrun"]}


def print_check(path, rate):
    """For this path, or for the issue's four."""
    paths = [path] if path.rtt_us else [dataclasses.replace(path, rtt_us=rtt) for rtt in (100, 1000, 2000, 20_000, 100_000, 300_000)]
    print("round trip, us | one way meant, us | error of median, us | of 99 % | the switch's own: median | 99 % | lost | overtaken | overrun")
    for each in paths:
        seen = check(each, rate)
        print(f"{each.rtt_us:g} | {seen['nominal_us']:g} | {seen['error_us']['median']} | {seen['error_us']['p99']} | "
              f"{seen['switch_error_us']['median']} | {seen['switch_error_us']['p99']} | {100 * seen['loss']:.2f} % | "
              f"{100 * seen['overtaken']:.2f} % | {seen['overrun']}", flush=True)


def _forward_signals(process):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: process.send_signal(received))


def _parse():
    parser = argparse.ArgumentParser(prog="bench/netbed", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="make a bed and leave it there")
    probe = commands.add_parser("check", help="say how exact the bed is on these paths (default: 0.1 to 300 ms)")
    probe.add_argument("--rate", default="none", help="of each link (default: none)")
    up.add_argument("--workers", type=int, required=True)
    up.add_argument("--rate", default="1gbit", help="of each worker's link, as tc writes it; none: unshaped")
    up.add_argument("--mtu", type=int, default=1500)
    up.add_argument("--limit", type=int, help="bytes that may wait in a link's token bucket (default: 0.1 s of its rate)")
    up.add_argument("--aggregator-rate", default="none", help="of the aggregator's port (default: none, unshaped)")
    for name, kind, text in (("rtt", float, "microseconds of round trip between any two hosts, by a switch of our own"),
                             ("jitter", float, "microseconds that a frame takes longer, at most"),
                             ("late-share", float, "share of frames that are overtaken"),
                             ("late", float, "microseconds that these take longer"),
                             ("loss", float, "share of packets, each way"),
                             ("mark", int, "bytes that wait for a link before CE is set"), ("seed", int, "of these")):
        for each in (up, probe):
            each.add_argument(f"--{name}", type=kind, default=1 if name == "seed" else 0, help=text)
    up.add_argument("--tcp", help="congestion control of TCP connections in the bed, like cubic or bbr")
    down = commands.add_parser("down", help="take it down, with what runs in it; no error if there is none")
    execute = commands.add_parser("exec", help="run a command in it: RANK or agg or br, then the command")
    execute.add_argument("where")
    execute.add_argument("words", nargs=argparse.REMAINDER)
    for each in (up, down, execute):
        each.add_argument("--name", default="bed", help="of the bed (default: bed)")
    return parser.parse_args()


def main():
    arguments = _parse()
    try:
        path = Path(arguments.rtt, arguments.jitter, arguments.late_share, arguments.late, arguments.loss, arguments.mark,
                    arguments.seed) if arguments.command in ("up", "check") else None
        if arguments.command == "check":
            print_check(path, arguments.rate)
            return 0
        if arguments.command == "up":
            reason = why_unavailable()
            if reason:
                raise NetbedError(reason)
            remove_abandoned()
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            bed = Netbed(arguments.workers, arguments.rate, arguments.mtu, arguments.name, arguments.limit,
                         arguments.aggregator_rate, path if path != Path() else None).up()
            if arguments.tcp:
                bed.use_congestion_control(arguments.tcp)
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
    if sys.argv[1:2] == ["send-probes"]:
        _send_probes(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    elif sys.argv[1:2] == ["take-probes"]:
        _take_probes(sys.argv[2], 4801, int(sys.argv[3]), float(sys.argv[4]))
    else:
        sys.exit(main())
