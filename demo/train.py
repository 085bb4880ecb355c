#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One worker of the demo: trains a wide network on Fashion-MNIST with DistributedDataParallel. What a script
needs in order to use SwitchML are the two lines marked so; the rest is data, model and bookkeeping.

Run by demo/run, with MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE set. Rank 0 prints one JSON object a
step, and one at the end."""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import fashion

WIDTH = 2816  # 10.2 M parameters: 41 MB of gradients a step
LEARNING_RATE, MOMENTUM = 0.05, 0.9


def make_model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(784, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH),
                               torch.nn.ReLU(), torch.nn.Linear(WIDTH, 10))


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
    images, labels = fashion.load("t10k", 10000)
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
    images, labels = fashion.load("train", num_samples)
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
    counters = fashion.Counters(arguments.backend, os.environ["GLOO_SOCKET_IFNAME"])
    total_s, optimizer_s = train(ddp, optimizer, [batch(step) for step in range(arguments.steps)], rank)

    mine = {**counters.since_start(), "total_s": total_s, "compute_s": compute_s + optimizer_s / arguments.steps,
            "communication_s": communication_s, "digest": fashion.digest(model)}
    everyone = [None] * size
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        print(json.dumps({"accuracy": accuracy(model), "gradient_bytes": gradients.numel() * 4, "ranks": everyone}),
              flush=True)
    dist.barrier()
    fashion.leave(arguments.backend)


if __name__ == "__main__":
    main()
