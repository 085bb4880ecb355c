#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One worker of the demo: trains a wide network on Fashion-MNIST with DistributedDataParallel. What a script
needs in order to use SwitchML are the two lines marked so; the rest is data, model and bookkeeping.

Run by demo/run, with MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE set. Rank 0 prints one JSON object a
step, and one at the end."""
import argparse
import gzip
import hashlib
import json
import os
import re
import subprocess
import time

import numpy
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

DATA = "/usr/share/datasets/fashion-mnist"
WIDTH = 2816  # 10.2 M parameters: 41 MB of gradients a step
LEARNING_RATE, MOMENTUM = 0.05, 0.9


def load(kind, num_samples):
    """Images as float rows and labels, from the IDX files of Debian's dataset-fashion-mnist."""
    with gzip.open(f"{DATA}/{kind}-images-idx3-ubyte.gz") as file:
        images = numpy.frombuffer(file.read(16 + num_samples * 784), numpy.uint8, offset=16).reshape(-1, 784)
    with gzip.open(f"{DATA}/{kind}-labels-idx1-ubyte.gz") as file:
        labels = numpy.frombuffer(file.read(8 + num_samples), numpy.uint8, offset=8)
    return torch.from_numpy(images.astype(numpy.float32) / 255 - 0.286) / 0.353, torch.from_numpy(labels.astype(int))


def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(784, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH),
                               torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10))


class Counters:
    """What this worker has sent and sent again, from the network's side."""

    def __init__(self, backend, interface):
        self.backend, self.interface = backend, interface
        self.start = self.read()

    def read(self):
        values = {}
        if self.backend == "switchml":
            import switchml.torch  # pylint: disable=import-outside-toplevel
            stats = switchml.torch.stats()
            values = {"sent_bytes": stats.get("tx_bytes", 0), "retransmissions": stats.get("retransmissions", 0),
                      "offloaded_calls": stats["offloaded_calls"], "fallback_calls": stats["fallback_calls"]}
        if self.interface != "lo":  # in a namespace of its own the counters are this worker's alone
            # The shaper counts the headers of every segment, the interface those of a segmented packet once.
            shaper = subprocess.run(["tc", "-s", "qdisc", "show", "dev", self.interface], capture_output=True,
                                    text=True, check=True).stdout
            values["sent_bytes"] = int(re.search(r"Sent (\d+) bytes", shaper).group(1))
            if self.backend == "gloo":
                with open("/proc/net/snmp", encoding="ascii") as file:
                    names, numbers = [line.split() for line in file if line.startswith("Tcp:")]
                values["retransmissions"] = int(numbers[names.index("RetransSegs")])
        return values

    def since_start(self):
        return {name: value - self.start[name] for name, value in self.read().items()}


def time_alone(num_runs, function):
    """Seconds of one run, the first left out; all workers run it at the same time."""
    function()
    dist.barrier()
    start = time.monotonic()
    for _ in range(num_runs):
        function()
    return (time.monotonic() - start) / num_runs


def train(ddp, optimizer, batches, rank):
    """Seconds of the steps, and of the optimizer in them."""
    optimizer_s, start = 0.0, time.monotonic()
    for number, (images, labels) in enumerate(batches, 1):
        optimizer.zero_grad(set_to_none=False)
        loss = cross_entropy(ddp(images), labels)
        loss.backward()
        before = time.monotonic()
        optimizer.step()
        optimizer_s += time.monotonic() - before
        if rank == 0:
            print(json.dumps({"step": number, "loss": loss.item(), "elapsed_s": time.monotonic() - start}), flush=True)
    dist.barrier()
    return time.monotonic() - start, optimizer_s


def accuracy(model):
    images, labels = load("t10k", 10000)
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=("switchml", "gloo"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.backend == "switchml":
        import switchml.torch  # noqa: F401  # line 1: registers the backend
    dist.init_process_group(arguments.backend)  # line 2: its name
    rank, size = dist.get_rank(), dist.get_world_size()

    num_samples = min(60000, arguments.steps * arguments.batch * size)
    images, labels = load("train", num_samples)
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(2))
    model = make_model()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def batch(step):
        first = (step * size + rank) * arguments.batch
        chosen = order[torch.arange(first, first + arguments.batch) % num_samples]
        return images[chosen], labels[chosen]

    def compute():
        with ddp.no_sync():
            cross_entropy(ddp(sample[0]), sample[1]).backward()

    sample, gradients = batch(0), torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    compute_s = time_alone(4, compute)
    communication_s = time_alone(3, lambda: dist.all_reduce(gradients))
    counters = Counters(arguments.backend, os.environ["GLOO_SOCKET_IFNAME"])
    total_s, optimizer_s = train(ddp, optimizer, [batch(step) for step in range(arguments.steps)], rank)

    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    mine = {**counters.since_start(), "total_s": total_s, "compute_s": compute_s + optimizer_s / arguments.steps,
            "communication_s": communication_s, "digest": digest}
    everyone = [None] * size
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        print(json.dumps({"accuracy": accuracy(model), "gradient_bytes": gradients.numel() * 4, "ranks": everyone}),
              flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
