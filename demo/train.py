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

WIDTH = int(os.environ.get("SML_DEMO_TEST_WIDTH", "2816"))  # 10.2 M parameters: 41 MB of gradients a step; a test wants fewer
LEARNING_RATE, MOMENTUM = 0.05, 0.9
TRIAL_STEPS, FEWEST_STEPS = 2, 4  # how long a step takes the first ones show


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


def agree_on_steps(num_steps, budget_s, step_s, rank):
    """As many as rank 0 has time for: a sum to which the others add nothing."""
    fitting = max(FEWEST_STEPS, min(num_steps, int(budget_s / step_s))) if budget_s > 0 else num_steps
    total = torch.tensor([fitting if rank == 0 else 0], dtype=torch.int32)
    dist.all_reduce(total)
    return min(num_steps, int(total.item()))


def train(ddp, optimizer, batches, rank, budget_s):
    """Seconds of the steps, of the optimizer in them, and how many there were."""
    num_steps, optimizer_s, start = len(batches), 0.0, time.monotonic()
    for number, (images, labels) in enumerate(batches, 1):
        if number > num_steps:
            break
        optimizer.zero_grad(set_to_none=False)
        loss = cross_entropy(ddp(images), labels)
        loss.backward()
        before = time.monotonic()
        optimizer.step()
        optimizer_s += time.monotonic() - before
        if rank == 0:
            print(json.dumps({"step": number, "steps": num_steps, "loss": loss.item(),
                              "elapsed_s": time.monotonic() - start}), flush=True)
        if number == TRIAL_STEPS:
            num_steps = agree_on_steps(num_steps, budget_s, (time.monotonic() - start) / TRIAL_STEPS, rank)
    dist.barrier()
    return time.monotonic() - start, optimizer_s, num_steps


def accuracy(model):
    images, labels = fashion.load("t10k", fashion.NUM_TEST_IMAGES)
    with torch.no_grad():
        return (model(images).argmax(dim=1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=("switchml", "gloo"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--budget", type=float, default=0, help="seconds for the steps; 0: as long as they take")
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
    total_s, optimizer_s, num_steps = train(ddp, optimizer, [batch(step) for step in range(arguments.steps)], rank,
                                            arguments.budget)

    mine = {**counters.since_start(), "total_s": total_s, "compute_s": compute_s + optimizer_s / num_steps,
            "communication_s": communication_s, "digest": fashion.digest(model)}
    everyone = [None] * size
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        print(json.dumps({"accuracy": accuracy(model), "gradient_bytes": gradients.numel() * 4, "steps": num_steps,
                          "ranks": everyone}), flush=True)
    dist.barrier()
    fashion.leave(arguments.backend)


if __name__ == "__main__":
    main()
