#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""e2e_switches.py [bmv2|dpdk-p4|TEST ...]: switchmld in front of a switch between hosts, in network namespaces. The
switch sums, and it is an ordinary switch meanwhile. Needs root and the tools of docs/p4.md; without a tool its switch is
skipped. `large_tensors` runs on BMv2 only if it is named (minutes)."""
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import bed as beds
from bed import BUILD, CONTROL_PORT, LANES_OF_DATA, LEASE_S, MEMBER, ROOT, SWITCHES, Bed, Translated
from e2e import PATIENCE, SWITCHML, wait_until
import tap

LIBRARY = os.path.join(BUILD, "src/lib/libswitchml.so")
# Debian's python3-torch belongs to Debian's python3, whatever comes first in PATH.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
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


def test_sums_have_the_bits_of_the_reference(kind):
    """Those that `switchml bench` makes with the scalar kernels; a switchmld beside that sums by itself has them, too.
    That one's packets are ordinary traffic for the switch."""
    with Bed(kind, 8) as bed:
        bed.start_daemon("software", CONTROL_PORT + 1, "--slots", "32") # as those of the switch: BMv2's queue is slow
        for num_ranks in (2, 4, 8):
            for of in ("int32", "float32"):
                for port, name in ((CONTROL_PORT, kind.name), (CONTROL_PORT + 1, f"switchmld through {kind.name}")):
                    ranks = bed.start_ranks(bench(of, "4,40K" if num_ranks < 8 else "4,20K"), range(num_ranks), port)
                    say_rate(f"{name}, {num_ranks} ranks, {of}", report_of(bed, ranks))


def test_large_tensors(kind):
    """1M elements, with the bits of the reference."""
    with Bed(kind, 8) as bed:
        for num_ranks in (2, 4, 8):
            for of in ("int32", "float32"):
                sums = bench(of, "4M", "--iters", "1", "--warmup", "0", "--timeout", "900")
                say_rate(f"{kind.name}, {num_ranks} ranks, {of}",
                         report_of(bed, bed.start_ranks(sums, range(num_ranks)), 1000))


def test_lost_packets_are_repaired(kind):
    """5 % of the results, and updates of one rank whose link is slow and has hardly a queue. Its limit is not below its
    burst: updates that the host sends in one buffer would be dropped whole, and again each time they are repeated."""
    with Bed(kind, 4) as bed:
        bed.inside(bed.bed.worker(1), *"tc qdisc add dev eth0 root tbf rate 2mbit burst 1600 limit 2000".split())
        ranks = bed.start_ranks(bench("float32", "40K", "--warmup", "0"), range(4), SWITCHML_FAULTS="loss=0.05,seed=5")
        report = report_of(bed, ranks)
        say_rate(f"{kind.name}, 4 ranks, float32, loss both ways", report)
        result = report["results"][-1]
        assert result["retransmits"] > 0 and result["window_reductions"] > 0, result


def test_two_jobs_and_ordinary_traffic(kind):
    """TCP for 2 s (iperf3) or 100 KiB of it, and pings, between hosts whose ranks sum in two jobs."""
    listen = ("import socket; s = socket.create_server(('', 5001)); print('up', flush=True); c = s.accept()[0]\n"
              "n = 0\nwhile True:\n d = c.recv(65536)\n n += len(d)\n if not d: break\nprint(n)")
    talk = "import socket, sys; s = socket.create_connection((sys.argv[1], 5001), 20); s.sendall(bytes(100 << 10))"
    with Bed(kind, 4) as bed:
        target = bed.bed.worker_address(3)
        iperf = shutil.which("iperf3") if kind.name != "translated" else None # at full rate it starves the pings there
        servers = [iperf, "-s", "-1", "--forceflush"] if iperf else [sys.executable, "-c", listen]
        clients = [iperf, "-c", target, "-t", "2", "-J"] if iperf else [sys.executable, "-c", talk, target]
        listener = bed.start(bed.bed.worker(3), servers)
        while not re.search("listening|up", listener.stdout.readline()):
            pass
        jobs = [bed.start_ranks(bench("float32", "60K", "--job", name), ranks)
                for name, ranks in (("one", (0, 1)), ("two", (2, 3)))]
        talker = bed.start(bed.bed.worker(0), clients)
        ping(bed, 1, 2)
        for name, ranks in zip(("one", "two"), jobs):
            say_rate(f"{kind.name}, 2 ranks, float32, job {name} of two", report_of(bed, ranks))
        status, out, err = finish([talker])[0]
        assert status == 0, (out, err)
        if iperf:
            bits_per_s = json.loads(out)["end"]["sum_received"]["bits_per_second"]
            print(f"# iperf3 meanwhile: {bits_per_s / 1e6:.1f} Mbit/s", flush=True)
            assert bits_per_s > 0, out
        else:
            assert finish([listener])[0][1].endswith(f"{100 << 10}\n")


def test_ranks_that_do_not_agree_are_named(kind):
    """Their all-reduces have different lengths, hence tags: the switch reports, switchmld ends the job, as ever."""
    with Bed(kind, 2) as bed:
        for status, out, err in finish(bed.start_members(range(2), lambda rank: {"MEMBER_ELEMENTS": 3000 + rank}), 20):
            assert status == 3 and " error -13 0,1 " in out and "ranks 0 and 1 called different" in out, (out, err)
        again = finish(bed.start_members(range(2), MEMBER_ELEMENTS=3000, MEMBER_OPERATIONS=2))
        assert all(status == 0 for status, _, _ in again), again


# Frames of an update that end too early, and noise, from the host's own link.
CUT = """import random, socket, sys
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("eth0", 0))
head = bytes.fromhex("ffffffffffff0200000000010800" "450000bc00004000401100000a4d0001" "0a4d00c8")
frame = head + int(sys.argv[1]).to_bytes(2, "big") * 2 + bytes.fromhex("00a80000") + b"\\x11" + bytes(159)
for num_bytes in range(14, len(frame)): s.send(frame[:num_bytes])
for number in range(500): s.send(random.Random(number).randbytes(14 + number))
"""


def test_garbage_is_refused(kind):
    """At the control socket of DPDK's pipeline, and on its links: it says what is wrong, and goes on."""
    if kind.name != "dpdk-p4":
        raise tap.Skip("BMv2's control and parser are not ours")
    wrong = [b"fly", b"add", b"add nowhere match 0x1", b"add ports match", b"add ports match 0x1 action jump",
             b"remove", b"read verdicts_0 0 4000000000", b"read verdicts_0 60 70", b"read verdicts_0 1",
             b"write verdicts_0 9 1 0", b"write nothing 0 1 0", b"member 5000 0 0 0 0", b"member 0 77 0 0 0",
             b"member 0 0 0 0", b"nobody 1024", b"cpu 77 1 1", b"ports 1", b"x" * 60000]
    with Bed(kind, 2) as bed:
        def ask(request):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(10 * PATIENCE)
                connection.connect(kind.runtime(bed.logs.name))
                connection.sendall(request)
                return connection.recv(1000)
        for words in wrong:
            assert ask(words + b"\n.\n").startswith(b"error "), words
        assert ask(b".\n") == b"ok\n"
        with contextlib.suppress(OSError): # it hangs up
            assert not ask(b"\0" * 100000)
        bed.inside(bed.bed.worker(0), sys.executable, "-c", CUT, str(CONTROL_PORT))
        report_of(bed, bed.start_ranks(bench("int32", "4K"), range(2)))
        bed.switch.terminate()
        bed.switch.wait(10 * PATIENCE)
        broken = re.search(r"(\d+) broken.* 0 lost inside", bed.log("switch"))
        assert broken and int(broken.group(1)) >= 150, bed.log("switch")


def test_what_the_switch_drops_is_in_the_status(kind):
    """Datagrams of another version: no rank's, and nothing that switchmld gets to see."""
    send = ("import socket, sys; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "for _ in range(7): s.sendto(bytes(32), (sys.argv[1], int(sys.argv[2])))")
    switch = None
    with Bed(kind, 1) as bed:
        def lane():
            status = bed.inside(bed.bed.worker(0), SWITCHML, "status", "--json", "--interval", "0",
                                f"{bed.bed.aggregator_address}:{CONTROL_PORT}")
            nonlocal switch
            switch = json.loads(status)["switch"]
            return json.loads(status)["lanes"][0]
        assert not lane()["drops"], lane()
        bed.inside(bed.bed.worker(0), sys.executable, "-c", send, bed.bed.aggregator_address, str(lane()["port"]))
        wait_until(lambda: lane()["drops"] == {"BAD_VERSION": 7}, "all seven are counted")
        assert switch["drops"] == {"BAD_VERSION": 7} and switch["forwarded"] > 0 and switch["told_s"] < 60, switch
        with open(os.path.join(ROOT, "docs", "operating.md"), encoding="utf-8") as file:
            text = file.read()
        assert not [name for name in switch if f"`{name}`" not in text], switch


def test_a_killed_rank_is_named(kind):
    with Bed(kind, 3) as bed:
        members = bed.start_members(range(3), MEMBER_ELEMENTS=5000)
        for member in members:
            assert "joined" in member.stdout.readline() and "working" in member.stdout.readline()
        members[1].kill()
        for rank, (status, out, err) in enumerate(finish(members, 4 * LEASE_S)):
            if rank != 1:
                assert status == 3 and "rank 1" in out and out.split("error ")[1].split()[1] == "1", (rank, out, err)
        again = finish(bed.start_members((0, 2), MEMBER_ELEMENTS=5000, MEMBER_OPERATIONS=2))
        assert all(status == 0 for status, _, _ in again), again


# A host's address and MAC go from one link to another one, which is at another port of the switch. Neighbours are
# forgotten, as when a cable is pulled: the first thing that is heard at the new port is a question of ARP.
MOVE = """set -e
mac=$(cat /sys/class/net/$1/address)
ethtool -K $2 tx off gso off tso off > /dev/null
ip addr flush dev $1
ip link set $1 address 02:00:00:00:99:01
ip link set $2 address $mac up
ip addr add $3/24 dev $2"""


def test_a_host_that_moves_is_followed(kind):
    """To another port of the switch, in the middle of a job, and back; the sums are right all the while."""
    with Bed(kind, 3, has_spare_link=True) as bed:
        host, address = bed.bed.worker(0), bed.bed.worker_address(0)
        members = bed.start_members(range(2), MEMBER_ELEMENTS=500, MEMBER_OPERATIONS=150, MEMBER_PAUSE_US=100000,
                                    MEMBER_LEASE_MS=int(30000 * PATIENCE))
        for member in members:
            assert "joined" in member.stdout.readline() and "working" in member.stdout.readline()
        for times, (old, new, port) in enumerate((("eth0", "eth1", 3), ("eth1", "eth0", 1)), 1):
            start = time.monotonic()
            bed.inside(host, "sh", "-c", MOVE, "move", old, new, address)
            wait_until(lambda times=times: bed.log("daemon").count("host_moved") == times, "the move is seen", 20)
            print(f"# {kind.name}: followed to port {port} after {time.monotonic() - start:.1f} s", flush=True)
            assert f"rank 0's host is at port {port} of the switch now" in bed.log("daemon"), bed.log("daemon")
            time.sleep(1)
        outputs = finish(members, 90)
        assert all(status == 0 and "done 150" in out for status, out, _ in outputs), f"{outputs} {bed.log('daemon')}"


def test_a_bystander_hears_and_changes_nothing(kind):
    """A third host, in no job. While the other two join it hears nothing but what is for all; while they sum it sends
    all that an eavesdropper at rank 0's link could make of ten updates (bystander.py), and still hears nothing. The
    switch is not flooded: what it can take beside the job is counted."""
    rate, seconds = (24000 if kind.name == "dpdk-p4" else 1000), 45
    with Bed(kind, 3) as bed:
        script, path = os.path.join(beds.HERE, "bystander.py"), os.path.join(bed.logs.name, "overheard")
        eavesdropper = bed.start(bed.bed.worker(0), [sys.executable, script, "eth0", path])
        bystander = bed.start(bed.bed.worker(2), [sys.executable, script, "eth0", path, str(rate), str(seconds)])
        assert [process.stdout.readline() for process in (eavesdropper, bystander)] == ["listening\n"] * 2
        members = bed.start_members(range(2), MEMBER_ELEMENTS=500, MEMBER_OPERATIONS=seconds * 20,
                                    MEMBER_PAUSE_US=50000, MEMBER_LEASE_MS=int(30000 * PATIENCE))
        assert bystander.stdout.readline() == "attacks\n", bystander.stderr.read()
        (status, out, err), *outputs = finish([bystander, *members], 4 * seconds)
        assert status == 0, err
        found = json.loads(out)
        print(f"# {kind.name}: {sum(found['sent'].values())} frames of {len(found['sent'])} kinds (seed "
              f"{found['seed']}), {found['heard']} for all heard", flush=True)
        assert not found["foreign"], found
        assert sum(found["sent"].values()) > 5000 and min(found["sent"].values()) > 10, found
        assert all(status == 0 and f"done {seconds * 20}" in out for status, out, _ in outputs), (
            f"{outputs} {found} {bed.log('daemon')}")
        assert "host_moved" not in bed.log("daemon"), bed.log("daemon")
        report_of(bed, bed.start_ranks(bench("float32", "20K"), range(2)))


def test_a_killed_switch_ends_the_job(kind):
    with Bed(kind, 2) as bed:
        members = bed.start_members(range(2), MEMBER_ELEMENTS=5000)
        for member in members:
            assert "joined" in member.stdout.readline() and "working" in member.stdout.readline()
        start = time.monotonic()
        bed.switch.kill()
        outputs = finish(members, 6 * LEASE_S)
        print(f"# after {time.monotonic() - start:.1f} s: {outputs[0][1].strip()}", flush=True)
        assert all(status == 3 for status, _, _ in outputs), outputs
        assert bed.daemon.poll() is None, bed.log("daemon")


def test_a_daemon_that_is_started_again_takes_the_switch_over(kind):
    """What its predecessor left in the switch would get copies of results, and frames twice."""
    with Bed(kind, 2) as bed:
        members = bed.start_members(range(2), MEMBER_ELEMENTS=5000)
        for member in members:
            assert "joined" in member.stdout.readline() and "working" in member.stdout.readline()
        bed.daemon.kill()
        finish(members, 6 * LEASE_S)
        bed.start_switch_daemon("daemon again")
        ping(bed, 0, 1)
        report = report_of(bed, bed.start_ranks(bench("int32", "20K"), range(2)))
        for result in report["results"]:
            assert result["wire_rx_bytes_per_rank"] < 1.5 * result["wire_bytes_per_rank"], result


# One rank of a training by PyTorch on Fashion-MNIST, its images a quarter of the size: loss at the start and the end,
# and a digest of what it learned.
TRAIN = """import fashion, torch, switchml.torch
import torch.distributed as dist
torch.set_num_threads(1)
torch.manual_seed(1)
dist.init_process_group("switchml")
rank, size = dist.get_rank(), dist.get_world_size()
images, labels = fashion.load("train", 30 * 32 * size)
images = torch.nn.functional.avg_pool2d(images.view(-1, 1, 28, 28), 2).view(-1, 196)
model = torch.nn.Sequential(torch.nn.Linear(196, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer, losses = torch.optim.SGD(ddp.parameters(), lr=0.1), []
for step in range(30):
    mine = slice((step * size + rank) * 32, (step * size + rank + 1) * 32)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(ddp(images[mine]), labels[mine])
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("trained", fashion.digest(model), losses[0], losses[-1], switchml.torch.stats()["offloaded_calls"], flush=True)
dist.destroy_process_group()
"""


def train(bed, port):
    """What the two ranks say, by a switchmld's port."""
    master = {"MASTER_ADDR": bed.bed.worker_address(0), "MASTER_PORT": 29500, "SWITCHML_LIBRARY": LIBRARY,
              "SWITCHML_REQUIRE": 1, "USE_LIBUV": 0,
              "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 1, "PYTHONDONTWRITEBYTECODE": 1,
              "PYTHONPATH": os.pathsep.join(os.path.join(ROOT, folder) for folder in ("integrations/pytorch", "demo"))}
    outputs = finish(bed.start_ranks([PYTHON, "-c", TRAIN], range(2), port, **master), 120)
    assert all(status == 0 for status, _, _ in outputs), outputs
    return [next(line for line in out.splitlines() if line.startswith("trained")).split()[1:] for _, out, _ in outputs]


def test_a_training_learns_the_same(kind):
    """By PyTorch on Fashion-MNIST, 2 ranks, over the switch and over a switchmld that sums by itself: the same parameters, bit for bit."""
    if subprocess.run([PYTHON, "-c", "import torch, numpy"], check=False, capture_output=True).returncode != 0:
        raise tap.Skip("no torch")
    if not os.path.isdir("/usr/share/datasets/fashion-mnist"):
        raise tap.Skip("no Fashion-MNIST (Debian: dataset-fashion-mnist)")
    with Bed(kind, 2) as bed:
        bed.start_daemon("software", CONTROL_PORT + 1, "--slots", "32")
        found = [train(bed, port) for port in (CONTROL_PORT, CONTROL_PORT + 1)]
    digests = {digest for ranks in found for digest, *_ in ranks}
    assert len(digests) == 1, found
    _, first, last, offloaded = found[0][0]
    assert float(last) < 0.9 * float(first) and int(offloaded) >= 30, found
    print(f"# loss {float(first):.3f} -> {float(last):.3f} in 30 steps, {offloaded} calls", flush=True)


def bind(test, kind):
    def run():
        if kind.compiled is None:
            raise tap.Skip(kind.why_unavailable())
        test(kind.compiled)
    run.__name__ = f"{test.__name__}_{kind.name}"
    run.__doc__ = test.__doc__
    return run


def main():
    tests, words = tap.tests_of(globals()), sys.argv[1:]
    known = (*SWITCHES, Translated)
    kinds = [kind for kind in known if kind.name in words] or known
    chosen = [word.removeprefix("test_") for word in words if word not in (kind.name for kind in known)]
    why = beds.why_unavailable()
    if why:
        print(f"1..0 # SKIP {why}")
        return 0
    with tempfile.TemporaryDirectory(prefix="switchml-p4-") as folder:
        for kind in kinds:
            kind.compiled = kind(folder) if not kind.why_unavailable() else None
        return tap.run([bind(test, kind) for kind in kinds for test in tests
                        if test.__name__.removeprefix("test_") in chosen or
                        not chosen and (test is not test_large_tensors or kind is beds.Dpdk)])


if __name__ == "__main__":
    sys.exit(main())
