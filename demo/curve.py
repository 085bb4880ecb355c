#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of demo/training: trains one of its models on Fashion-MNIST, and measures loss and accuracy on the way.
Rank 0 prints one JSON object an interval, and one at the end. The clock stops while accuracy is measured."""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential, Unflatten
from torch.nn.functional import cross_entropy

import fashion


def mlp():
    """Wide and flat: many parameters, and few operations for each. What it needs is a network."""
    return Sequential(Linear(784, 2048), ReLU(), Linear(2048, 10))


def cnn():
    """Few parameters, each used hundreds of times an image. What it needs are processors."""
    return Sequential(Unflatten(1, (1, 28, 28)), Conv2d(1, 32, 3, padding=1), ReLU(), MaxPool2d(2),
                      Conv2d(32, 64, 3, padding=1), ReLU(), MaxPool2d(2), Flatten(), Linear(64 * 49, 10))


MODELS = {"mlp": mlp, "cnn": cnn}
WARM_UP_STEPS, DECAY_FROM = 20, 0.3  # the learning rate rises, stays, and falls to 0 from this part on


def rate_at(step, num_steps):
    """The learning rate as a part of its highest."""
    done = step / num_steps
    return min(1, (step + 1) / WARM_UP_STEPS) * min(1, (1 - done) / (1 - DECAY_FROM))


class Batches:
    """Each epoch in an order of its own, cut into batches, those into the ranks' parts."""

    def __init__(self, seed, rank, size, batch):
        self.images, self.labels = fashion.read("train", 60000) # bytes: 8 ranks hold them all
        self.generator = torch.Generator().manual_seed(seed)
        self.rank, self.size, self.batch = rank, size, batch
        self.order, self.at = torch.empty(0, dtype=torch.int64), 0

    def next(self):
        if self.at + self.size * self.batch > len(self.order):
            self.order, self.at = torch.randperm(len(self.images), generator=self.generator), 0
        first = self.at + self.rank * self.batch
        self.at += self.size * self.batch
        mine = self.order[first:first + self.batch]
        return fashion.normal(self.images[mine]), self.labels[mine]


class Accuracy:
    """Of all test images; each rank looks at its part."""

    def __init__(self, rank, size):
        images, labels = fashion.load("t10k", 10000)
        self.images, self.labels, self.num_images = images[rank::size], labels[rank::size], len(images)

    def of(self, model):
        with torch.no_grad():
            num_right = sum((model(images).argmax(dim=1) == labels).sum()
                            for images, labels in zip(self.images.split(500), self.labels.split(500)))
        num_right = num_right.to(torch.int32).reshape(1)
        dist.all_reduce(num_right)
        return num_right.item() / self.num_images


def train(arguments, ddp, optimizer, rank, size):
    """[{step, loss, accuracy, seconds}]: at the end of each interval, seconds of training so far; and processor
    seconds of this rank."""
    batches, accuracy = Batches(arguments.seed, rank, size, arguments.batch), Accuracy(rank, size)
    curve, total_s, total_cpu_s = [], 0.0, 0.0
    interval = max(1, arguments.steps // arguments.points)
    loss_sum, num_summed = torch.zeros(1), 0
    dist.barrier()
    start, cpu = time.monotonic(), time.process_time()
    for step in range(arguments.steps):
        optimizer.param_groups[0]["lr"] = arguments.rate * rate_at(step, arguments.steps)
        images, labels = batches.next()
        optimizer.zero_grad(set_to_none=True)
        loss = cross_entropy(ddp(images), labels)
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach()
        num_summed += 1
        if num_summed < interval and step + 1 < arguments.steps:
            continue
        dist.barrier()
        total_s += time.monotonic() - start
        total_cpu_s += time.process_time() - cpu
        dist.all_reduce(loss_sum)
        curve.append({"step": step + 1, "loss": loss_sum.item() / num_summed / size, "accuracy": accuracy.of(ddp.module),
                      "seconds": total_s})
        if rank == 0:
            print(json.dumps(curve[-1]), flush=True)
        loss_sum.zero_()
        num_summed = 0
        dist.barrier()
        start, cpu = time.monotonic(), time.process_time()
    return curve, total_cpu_s


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=("switchml", "gloo"), required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    for name in ("steps", "batch", "seed", "points"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.backend == "switchml":
        import switchml.torch  # pylint: disable=import-outside-toplevel,unused-import  # registers the backend
    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(arguments.seed)
    model = MODELS[arguments.model]()
    ddp = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.rate, momentum=0.9)
    counters = fashion.Counters(arguments.backend, os.environ["GLOO_SOCKET_IFNAME"])
    curve, cpu_s = train(arguments, ddp, optimizer, rank, size)
    mine = {**counters.since_start(), "digest": fashion.digest(model), "cpu_s": cpu_s}
    everyone = [None] * size
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        print(json.dumps({"curve": curve, "gradient_bytes": 4 * sum(p.numel() for p in model.parameters()),
                          "ranks": everyone}), flush=True)
    dist.barrier()
    fashion.leave(arguments.backend)


if __name__ == "__main__":
    main()
