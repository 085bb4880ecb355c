#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A real PyTorch training over SwitchML whose ranks or whose aggregator are killed at random moments. Each rank is
this file again, with --rank; it reports steps and its end as lines of JSON, with the time of CLOCK_MONOTONIC."""
import contextlib
import functools
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import e2e
import ports
import real
import tap

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
BUILD = os.environ.get("SML_BUILD_DIR", os.path.join(ROOT, "build"))
# Debian's python3-torch belongs to Debian's python3, whatever comes first in PATH.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
LEASE_S, GRACE_S = 2.0, 1.0
NUM_STEPS = 200
WITHOUT_END = 10**9


# ---- what a rank does ----------------------------------------------------------------------------------

def report(**values):
    print(json.dumps({"at": time.monotonic(), **values}), flush=True)


def train(torch, dist, rank, size):
    """A small network without buffers: gradients are all that the ranks exchange, in several buckets."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 500), torch.nn.ReLU(), torch.nn.Linear(500, 500), torch.nn.ReLU(),
                                torch.nn.Linear(500, 3))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.25)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    data = torch.Generator().manual_seed(99)
    for step in range(int(os.environ["NUM_STEPS"])):
        inputs = torch.randn(8 * size, 20, generator=data)
        targets = (inputs.sum(dim=1) > 0).long() + (inputs[:, 0] > 1).long()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs[rank::size]), targets[rank::size]).backward()
        optimizer.step()
        if step in (0, 5):
            report(step=step)
    dist.barrier()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def run_rank():
    import torch  # pylint: disable=import-outside-toplevel  # only ranks need it
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    import switchml.torch  # pylint: disable=import-outside-toplevel
    torch.set_num_threads(1)
    if "SET_LEASE_S" in os.environ:
        switchml.torch.set_lease(float(os.environ["SET_LEASE_S"]))
    dist.init_process_group("switchml")
    try:
        digest = train(torch, dist, dist.get_rank(), dist.get_world_size())
    except RuntimeError as error:
        why = switchml.torch.error()
        report(error=str(error), status=why.status if why else "", ranks=list(why.ranks) if why else [])
        return 3
    stats = switchml.torch.stats()
    report(digest=digest, offloaded=stats["offloaded_calls"], fallback=stats["fallback_calls"])
    dist.destroy_process_group()
    return 0


# ---- starting and watching them ------------------------------------------------------------------------

class Rank:
    def __init__(self, number, env):
        self.number = number
        self.output = tempfile.TemporaryFile(prefix="switchml-training-")
        self.process = subprocess.Popen([PYTHON, "-P", os.path.abspath(__file__), "--rank"],
                                        env={**env, "RANK": str(number), "LOCAL_RANK": str(number)},
                                        stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output)

    def text(self):
        return os.pread(self.output.fileno(), 1 << 20, 0).decode(errors="replace")

    def find(self, key):
        """The first report that has the key, or None."""
        for line in self.text().splitlines():
            if line.startswith("{") and line.endswith("}") and key in json.loads(line):
                return json.loads(line)
        return None

    def wait_for(self, key, seconds=60):
        e2e.wait_until(lambda: self.find(key) or self.process.poll() is not None, f"rank {self.number}: {key}", seconds)
        assert self.find(key), f"rank {self.number} ended without '{key}':\n{self.text()[-4000:]}"
        return self.find(key)

    def finish(self, expected, seconds=60):
        try:
            status = self.process.wait(seconds * e2e.PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"rank {self.number} did not end within {seconds} s:\n{self.text()[-4000:]}") from None
        assert status == expected, f"rank {self.number} ended with {status}:\n{self.text()[-4000:]}"

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.output.close()


@contextlib.contextmanager
def training(address, size, num_steps, **more):
    env = e2e.environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=ports.fixed_port(), WORLD_SIZE=size, NUM_STEPS=num_steps,
                          GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS=1, USE_LIBUV=0, PYTHONDONTWRITEBYTECODE=1,
                          PYTHONPATH=os.path.join(ROOT, "integrations/pytorch") + ":" + HERE,
                          SWITCHML_LIBRARY=os.path.join(BUILD, "src/lib/libswitchml.so"), SWITCHML_REQUIRE=1,
                          SWITCHML_AGGREGATOR=address, **more)
    ranks = [Rank(number, env) for number in range(size)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.close()


# ---- episodes ------------------------------------------------------------------------------------------

def lost_rank(draw, size=3, number=signal.SIGKILL, **more):
    """Seconds until each survivor had its error, which names the one that was killed, or stopped for its lease."""
    with e2e.Daemon() as daemon, training(daemon.address, size, WITHOUT_END, **more) as ranks:
        for rank in ranks:
            rank.wait_for("step")
        victim = draw.randrange(size)
        time.sleep(draw.random())
        ranks[victim].process.send_signal(number)
        start, took = time.monotonic(), []
        for rank in ranks:
            if rank.number == victim:
                continue
            error = rank.wait_for("error", 20)
            assert error["ranks"] == [victim] and "RANK_LOST" in error["status"].upper().replace(" ", "_"), error
            took.append(error["at"] - start)
            rank.finish(3)
        assert max(took) <= (LEASE_S + GRACE_S) * e2e.PATIENCE, took
        return took


def paused_rank(draw, expected, size=2):
    """A rank is stopped for 3 s, as by a debugger or with its machine: the weights are those of a training without."""
    with e2e.Daemon() as daemon, training(daemon.address, size, NUM_STEPS) as ranks:
        victim = ranks[draw.randrange(size)]
        victim.wait_for("step")
        victim.process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        assert not any(rank.find("digest") for rank in ranks), "the training ended before a rank was stopped"
        victim.process.send_signal(signal.SIGCONT)
        assert digest_of(ranks) == expected


def digest_of(ranks):
    """What all ranks ended with: one digest, and nothing that went around SwitchML."""
    ends = []
    for rank in ranks:
        rank.finish(0, 90)
        ends.append(rank.find("digest"))
    assert all(end["digest"] == ends[0]["digest"] for end in ends), ends
    assert all(end["fallback"] == 0 and end["offloaded"] >= NUM_STEPS for end in ends), ends
    return ends[0]["digest"]


@functools.cache
def undisturbed(size=2):
    with e2e.Daemon() as daemon, training(daemon.address, size, NUM_STEPS) as ranks:
        return digest_of(ranks)


def killed_aggregator(draw, expected, size=2):
    """The aggregator is killed at a random moment and started again on its port, once or twice: the weights are those
    of a training without that. Seconds from the first step to the end."""
    port, num_kills = ports.fixed_port(), 0
    listen = ["--listen", f"127.0.0.1:{port}"]
    daemon = e2e.Daemon(*listen)
    try:
        with training(daemon.address, size, NUM_STEPS, SWITCHML_RETRY=30) as ranks:
            start = ranks[0].wait_for("step")["at"]
            for _ in range(draw.choice([1, 1, 2])):
                time.sleep(draw.random() * 0.5)
                if any(rank.find("digest") for rank in ranks):
                    break
                daemon.process.send_signal(signal.SIGKILL)
                daemon.stop()
                num_kills += 1
                time.sleep(draw.choice([0.0, 0.5, 2.5]) * draw.random())
                daemon = e2e.Daemon(*listen)
            digest = digest_of(ranks)
            took = ranks[0].find("digest")["at"] - start
    finally:
        daemon.stop()
    assert num_kills > 0, "the training ended before the aggregator was killed"
    assert digest == expected, f"{digest} is not {expected} after {num_kills} kills"
    return took


DRAW = random.Random(int(os.environ.get("SWITCHML_TEST_SEED", "1")))


def test_killed_rank():
    lost_rank(DRAW)


def test_rank_stopped_for_a_lease_that_python_set():
    lost_rank(DRAW, number=signal.SIGSTOP, SET_LEASE_S=1)


def test_paused_rank_changes_no_weight():
    paused_rank(DRAW, undisturbed())


def test_killed_aggregator_changes_no_weight():
    killed_aggregator(DRAW, undisturbed())


def test_nothing_is_left():
    assert not e2e.marked_processes(), e2e.marked_processes()


def main():
    if "--rank" in sys.argv:
        sys.exit(run_rank())
    find = "import importlib.util as u; raise SystemExit(not getattr(u.find_spec('torch'), 'origin', None))"  # to import it takes seconds
    if subprocess.run([PYTHON, "-P", "-c", find], check=False).returncode != 0:
        print("1..0 # SKIP PyTorch is not installed (Debian: python3-torch)")
        return
    ports.leave_others()
    tap.main(globals())


if __name__ == "__main__":
    main()
