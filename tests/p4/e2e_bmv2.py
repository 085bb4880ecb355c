#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""switchmld in front of BMv2 between hosts, in network namespaces: the switch sums, and it is an ordinary switch
meanwhile. Needs root, simple_switch and p4c-bm2-ss (docs/p4.md). Arguments are names of tests; `large_tensor` runs only
if it is named (two minutes)."""
import json
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")
BUILD = os.environ.get("SML_BUILD_DIR", os.path.join(ROOT, "build"))
os.environ.setdefault("SWITCHML", os.path.join(BUILD, "src/cli/switchml"))
os.environ.setdefault("SWITCHMLD", os.path.join(BUILD, "src/switchd/switchmld"))
os.environ.setdefault("SWITCHML_MEMBER", os.path.join(BUILD, "tests/member"))
sys.path[:0] = [os.path.join(ROOT, "tests"), os.path.join(ROOT, "bench")]
# pylint: disable=wrong-import-position
import check
import netbed
import tap
from e2e import PATIENCE, SWITCHML, SWITCHMLD, environment, wait_until

MEMBER = os.environ["SWITCHML_MEMBER"]
LIBRARY = os.path.join(BUILD, "src/lib/libswitchml.so")
# Debian's python3-torch belongs to Debian's python3, whatever comes first in PATH.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
LANES, LANES_OF_DATA = 32, 31 # the last one is the check word
CONTROL_PORT, RUNTIME, RUNTIME_HOST = 48879, "192.0.2.1", "192.0.2.2"
LEASE_S = 3
# Echo requests to an address, for each the number of answers within 3 s.
PING = """import socket, struct, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
for number in range(5):
    body = struct.pack(">HH", 4711, number) + bytes(56)
    total = 0x0800 + sum(struct.unpack(f">{len(body) // 2}H", body))
    check = ~((total & 0xffff) + (total >> 16)) & 0xffff
    s.sendto(struct.pack(">HH", 0x0800, check) + body, (sys.argv[1], 0))
    answers, end = 0, time.monotonic() + 3
    while time.monotonic() < end:
        s.settimeout(max(end - time.monotonic(), 0.001))
        try: packet = s.recv(2000)
        except TimeoutError: break
        if packet[20] == 0 and packet[24:28] == body[:4]:
            answers, end = answers + 1, min(end, time.monotonic() + 0.2)
    print(answers)
"""


class Bed:
    """A network bed whose bridge is BMv2 (port 0: the aggregator's host), with switchmld in front of it."""
    folder = None # with the compiled program, of all beds

    def __init__(self, num_workers):
        self.bed = netbed.Netbed(num_workers, rate="none")
        self.processes, self.logs = [], tempfile.TemporaryDirectory(prefix="switchml-p4-")

    def start(self, namespace, command, log=None, **variables):
        # pylint: disable-next=consider-using-with
        out = open(os.path.join(self.logs.name, log), "ab") if log else subprocess.PIPE
        process = subprocess.Popen(self.bed.command(namespace, command), env=environment(**variables), stdout=out,
                                   stderr=subprocess.STDOUT if log else subprocess.PIPE, stdin=subprocess.DEVNULL,
                                   text=True, process_group=0)
        if log:
            out.close()
        self.processes.append(process)
        return process

    def log(self, name):
        with open(os.path.join(self.logs.name, name), encoding="utf-8", errors="replace") as file:
            return file.read()

    def inside(self, namespace, *command):
        return subprocess.run(self.bed.command(namespace, command), check=True, capture_output=True, text=True,
                              timeout=60 * PATIENCE).stdout

    def plug(self):
        """BMv2's ports in place of the bridge's; its runtime on a link that no packet of the ranks can take."""
        bed, ports = self.bed, ["agg"] + [f"w{rank}" for rank in range(self.bed.num_workers)]
        for port in ports:
            self.inside(bed.bridge, "ip", "link", "set", port, "nomaster")
        self.inside(bed.bridge, "ip", "link", "del", "br0")
        for namespace in [bed.bridge, bed.aggregator] + [bed.worker(rank) for rank in range(bed.num_workers)]:
            for device in ports if namespace == bed.bridge else ["eth0"]: # whole packets, with checksums
                self.inside(namespace, "ethtool", "-K", device, "tx", "off", "gso", "off", "tso", "off")
                self.inside(namespace, "sh", "-c", f"echo 1 > /proc/sys/net/ipv6/conf/{device}/disable_ipv6")
        self.inside(bed.bridge, "ip", "link", "add", "runtime", "type", "veth", "peer", "name", "runtime", "netns",
                    bed.aggregator)
        for namespace, address in ((bed.bridge, RUNTIME), (bed.aggregator, RUNTIME_HOST)):
            self.inside(namespace, "ip", "addr", "add", f"{address}/30", "dev", "runtime")
            self.inside(namespace, "ip", "link", "set", "runtime", "up")
        self.inside(bed.bridge, "ip", "link", "set", "lo", "up")
        return [word for number, port in enumerate(ports) for word in ("-i", f"{number}@{port}")]

    def start_daemon(self, log, port=CONTROL_PORT, *arguments):
        daemon = self.start(self.bed.aggregator, [SWITCHMLD, "--listen", f"{self.bed.aggregator_address}:{port}",
                                                  "--switch-format", str(LANES), *arguments], log)
        wait_until(lambda: "listening on" in self.log(log) or daemon.poll() is not None, "switchmld is up")
        assert daemon.poll() is None, self.log(log)
        return daemon

    def start_bmv2_daemon(self, log="daemon"):
        return self.start_daemon(log, CONTROL_PORT, "--dataplane", "bmv2", "--switch", f"{RUNTIME}:9090")

    def __enter__(self):
        self.bed.__enter__()
        try:
            interfaces = self.plug()
            program = check.tool("simple_switch", "SIMPLE_SWITCH")
            self.switch = self.start(self.bed.bridge, [program, *interfaces, "--thrift-port", "9090",
                                                       os.path.join(Bed.folder, "switchml.json")], "switch")
            wait_until(lambda: ":2382 " in self.inside(self.bed.bridge, "cat", "/proc/net/tcp", "/proc/net/tcp6"),
                       "simple_switch listens") # 9090
            self.daemon = self.start_bmv2_daemon()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.bed.__exit__(None, None, None)
        self.logs.cleanup()

    def start_ranks(self, command, ranks, port=CONTROL_PORT, **variables):
        """command on the hosts `ranks`, as ranks 0, 1, .. of a job."""
        return [self.start(self.bed.worker(host), command, RANK=rank, WORLD_SIZE=len(ranks),
                           SWITCHML_AGGREGATOR=f"{self.bed.aggregator_address}:{port}", **variables)
                for rank, host in enumerate(ranks)]

    def start_members(self, ranks, **variables):
        return self.start_ranks([MEMBER], ranks, MEMBER_LEASE_MS=LEASE_S * 1000, **variables)


def ping(bed, host, other):
    """Each request is answered, and once."""
    answers = bed.inside(bed.bed.worker(host), sys.executable, "-c", PING, bed.bed.worker_address(other)).split()
    assert answers == ["1"] * 5, answers


def finish(processes, seconds=60):
    """[(exit status, output, errors)]"""
    outputs = []
    for process in processes:
        try:
            out, err = process.communicate(timeout=seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{process.args} goes on after {seconds} s") from None
        outputs.append((process.returncode, out, err))
    return outputs


def report_of(bed, processes, seconds=60):
    outputs = finish(processes, seconds)
    assert all(status == 0 for status, _, _ in outputs), f"{outputs}\n{bed.log('daemon')}"
    report = json.loads(outputs[0][1])
    for result in report["results"]:
        assert result["wrong"] == 0 and result["max_error"] <= result["max_error_bound"], result
    return report


def bench(kind, sizes, *arguments):
    return [SWITCHML, "bench", "--json", "--type", kind, "--sizes", sizes, "--iters", "2", "--warmup", "1", *arguments]


def say_rate(what, report):
    result = report["results"][-1]
    chunks = -(-result["bytes"] // (4 * LANES_OF_DATA))
    print(f"# {what}, {result['bytes'] // 4} elements: {chunks / result['time_us_median'] * 1e6:.0f} results/s, "
          f"{result['retransmits']} updates sent again", flush=True)


def test_sums_have_the_bits_of_the_reference():
    """Those that `switchml bench` makes with the scalar kernels; a switchmld beside that sums by itself has them, too.
    That one's packets are ordinary traffic for the switch."""
    with Bed(8) as bed:
        bed.start_daemon("software", CONTROL_PORT + 1)
        for num_ranks in (2, 4, 8):
            for kind in ("int32", "float32"):
                for port, name in ((CONTROL_PORT, "BMv2"), (CONTROL_PORT + 1, "switchmld through BMv2")):
                    ranks = bed.start_ranks(bench(kind, "4,40K" if num_ranks < 8 else "4,20K"), range(num_ranks), port)
                    say_rate(f"{name}, {num_ranks} ranks, {kind}", report_of(bed, ranks))


def test_large_tensor():
    with Bed(2) as bed:
        start = time.monotonic()
        outputs = finish(bed.start_members(range(2), MEMBER_OPERATIONS=1, MEMBER_ELEMENTS=1 << 20), 300)
        assert all(status == 0 for status, _, _ in outputs), outputs
        took_s = time.monotonic() - start
        print(f"# BMv2, 2 ranks, float32, {1 << 20} elements: {(1 << 20) / LANES_OF_DATA / took_s:.0f} results/s")


def test_lost_packets_are_repaired():
    """1 % of the results, and updates of one rank whose link is slow and has hardly a queue."""
    with Bed(4) as bed:
        bed.inside(bed.bed.worker(1), *"tc qdisc add dev eth0 root tbf rate 2mbit burst 2000 limit 1500".split())
        ranks = bed.start_ranks(bench("float32", "4,40K"), range(4), SWITCHML_FAULTS="loss=0.01,seed=5")
        report = report_of(bed, ranks)
        say_rate("BMv2, 4 ranks, float32, loss both ways", report)
        result = report["results"][-1]
        assert result["retransmits"] > 0 and result["window_reductions"] > 0, result


def test_two_jobs_and_ordinary_traffic():
    """100 KiB by TCP and pings between hosts whose ranks sum in two jobs."""
    listen = ("import socket; s = socket.create_server(('', 5001)); print('up', flush=True); c = s.accept()[0]\n"
              "n = 0\nwhile True:\n d = c.recv(65536)\n n += len(d)\n if not d: break\nprint(n)")
    talk = "import socket, sys; s = socket.create_connection((sys.argv[1], 5001), 20); s.sendall(bytes(100 << 10))"
    with Bed(4) as bed:
        jobs = [bed.start_ranks(bench("float32", "60K", "--job", name), ranks)
                for name, ranks in (("one", (0, 1)), ("two", (2, 3)))]
        listener = bed.start(bed.bed.worker(3), [sys.executable, "-c", listen])
        assert listener.stdout.readline() == "up\n"
        talker = bed.start(bed.bed.worker(0), [sys.executable, "-c", talk, bed.bed.worker_address(3)])
        ping(bed, 1, 2)
        for name, ranks in zip(("one", "two"), jobs):
            say_rate(f"BMv2, 2 ranks, float32, job {name} of two", report_of(bed, ranks))
        assert finish([talker])[0][0] == 0
        assert finish([listener])[0][1] == f"{100 << 10}\n"


def test_what_the_switch_drops_is_in_the_status():
    """Datagrams of another version: no rank's, and nothing that switchmld gets to see."""
    send = ("import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "for _ in range(7): s.sendto(bytes(32), (sys.argv[1], int(sys.argv[2])))")
    with Bed(1) as bed:
        def lane():
            status = bed.inside(bed.bed.worker(0), SWITCHML, "status", "--json", "--interval", "0",
                                f"{bed.bed.aggregator_address}:{CONTROL_PORT}")
            return json.loads(status)["lanes"][0]
        assert not lane()["drops"], lane()
        bed.inside(bed.bed.worker(0), sys.executable, "-c", send, bed.bed.aggregator_address, str(lane()["port"]))
        wait_until(lambda: lane()["drops"] == {"BAD_VERSION": 7}, "all seven are counted")


def test_a_killed_rank_is_named():
    with Bed(3) as bed:
        members = bed.start_members(range(3), MEMBER_ELEMENTS=5000)
        for member in members:
            assert "joined" in member.stdout.readline() and "working" in member.stdout.readline()
        members[1].kill()
        for rank, (status, out, err) in enumerate(finish(members, 4 * LEASE_S)):
            if rank != 1:
                assert status == 3 and "rank 1" in out and out.split("error ")[1].split()[1] == "1", (rank, out, err)
        again = finish(bed.start_members((0, 2), MEMBER_ELEMENTS=5000, MEMBER_OPERATIONS=2))
        assert all(status == 0 for status, _, _ in again), again


def test_a_killed_switch_ends_the_job():
    with Bed(2) as bed:
        members = bed.start_members(range(2), MEMBER_ELEMENTS=5000)
        for member in members:
            assert "joined" in member.stdout.readline() and "working" in member.stdout.readline()
        start = time.monotonic()
        bed.switch.kill()
        outputs = finish(members, 6 * LEASE_S)
        print(f"# after {time.monotonic() - start:.1f} s: {outputs[0][1].strip()}", flush=True)
        assert all(status == 3 for status, _, _ in outputs), outputs
        assert bed.daemon.poll() is None, bed.log("daemon")


def test_a_daemon_that_is_started_again_takes_the_switch_over():
    """What its predecessor left in the switch would get copies of results, and frames twice."""
    with Bed(2) as bed:
        members = bed.start_members(range(2), MEMBER_ELEMENTS=5000)
        for member in members:
            assert "joined" in member.stdout.readline() and "working" in member.stdout.readline()
        bed.daemon.kill()
        finish(members, 6 * LEASE_S)
        bed.start_bmv2_daemon("daemon again")
        ping(bed, 0, 1)
        report = report_of(bed, bed.start_ranks(bench("int32", "20K"), range(2)))
        for result in report["results"]:
            assert result["wire_rx_bytes_per_rank"] < 1.5 * result["wire_bytes_per_rank"], result


# One rank of a training by PyTorch: its loss at the start and the end, and a digest of what it learned.
TRAIN = """import hashlib, os, torch, switchml.torch
import torch.distributed as dist
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("switchml")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3))
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
data, losses = torch.Generator().manual_seed(99), []
for step in range(30):
    inputs = torch.randn(16 * size, 20, generator=data)
    targets = (inputs.sum(dim=1) > 0).long() + (inputs[:, 0] > 1).long()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(ddp(inputs[rank::size]), targets[rank::size])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print("trained", digest, losses[0], losses[-1], switchml.torch.stats()["offloaded_calls"], flush=True)
dist.destroy_process_group()
"""


def train(bed, port):
    """What the two ranks say, by a switchmld's port."""
    master = {"MASTER_ADDR": bed.bed.worker_address(0), "MASTER_PORT": 29500, "SWITCHML_LIBRARY": LIBRARY,
              "SWITCHML_REQUIRE": 1, "USE_LIBUV": 0,
              "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 1, "PYTHONDONTWRITEBYTECODE": 1,
              "PYTHONPATH": os.path.join(ROOT, "integrations/pytorch")}
    outputs = finish(bed.start_ranks([PYTHON, "-c", TRAIN], range(2), port, **master), 120)
    assert all(status == 0 for status, _, _ in outputs), outputs
    return [next(line for line in out.splitlines() if line.startswith("trained")).split()[1:] for _, out, _ in outputs]


def test_a_training_learns_the_same():
    """By PyTorch, 2 ranks, over BMv2 and over a switchmld that sums by itself: the same parameters, bit for bit."""
    if subprocess.run([PYTHON, "-c", "import torch"], check=False, capture_output=True).returncode != 0:
        raise tap.Skip("no torch")
    with Bed(2) as bed:
        bed.start_daemon("software", CONTROL_PORT + 1)
        found = [train(bed, port) for port in (CONTROL_PORT, CONTROL_PORT + 1)]
    digests = {digest for ranks in found for digest, *_ in ranks}
    assert len(digests) == 1, found
    _, first, last, offloaded = found[0][0]
    assert float(last) < 0.9 * float(first) and int(offloaded) >= 30, found
    print(f"# loss {float(first):.3f} -> {float(last):.3f} in 30 steps, {offloaded} calls", flush=True)


def why_unavailable():
    for name, variable in (("p4c-bm2-ss", "P4C_BM2_SS"), ("simple_switch", "SIMPLE_SWITCH"), ("ethtool", "ETHTOOL"),
                           (MEMBER, "SWITCHML_MEMBER")):
        if not check.tool(name, variable):
            return f"no {name}"
    return netbed.why_unavailable()


def main():
    tests = tap.tests_of(globals())
    chosen = [name.removeprefix("test_") for name in sys.argv[1:]]
    tests = [test for test in tests
             if test.__name__.removeprefix("test_") in chosen or (not chosen and test is not test_large_tensor)]
    why = why_unavailable()
    if why:
        print(f"1..0 # SKIP {why}")
        return 0
    with tempfile.TemporaryDirectory(prefix="switchml-p4-") as Bed.folder:
        problems = list(check.compile_p4(check.tool("p4c-bm2-ss", "P4C_BM2_SS"), "v1model.p4", LANES,
                                         os.path.join(Bed.folder, "switchml.json")))
        assert not problems, problems
        return tap.run(tests)


if __name__ == "__main__":
    sys.exit(main())
