#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of demo/training: trains one of its models on Fashion-MNIST, once over each backend, and measures loss and
accuracy on the way. The backends take turns, an interval of steps each, so that whatever else the machine does meets
both. Rank 0 prints one JSON object an interval and backend, and one at the end. The clock stops while accuracy and
bytes are looked at."""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn import Conv2d, Flatten, Linear, MaxPool2d, ReLU, Sequential, Unflatten
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

import fashion

WARM_UP_STEPS, DECAY_FROM = 20, 0.1  # the learning rate rises, stays, and falls to 0 from this part on
NUM_ALONE, ALONE_STEPS = 6, 15       # the parts of a step by themselves: blocks of each backend, in turns; no more than trained


class Straight(torch.autograd.Function):
    """x W' + b, whose gradients are written straight to where the all-reduce takes them."""

    @staticmethod
    def forward(ctx, x, weight, bias, weight_gradient, bias_gradient):
        ctx.save_for_backward(x, weight)
        ctx.into = weight_gradient, bias_gradient
        return torch.addmm(bias, x, weight.t())

    @staticmethod
    def backward(ctx, above):
        x, weight = ctx.saved_tensors
        torch.mm(above.t(), x, out=ctx.into[0])
        torch.sum(above, 0, out=ctx.into[1])
        return above @ weight if ctx.needs_input_grad[0] else None, None, None, None, None


class Mlp:
    """Many parameters, and few operations for each: what it needs is a network. All parameters are one vector, and all
    gradients: one all-reduce and one operation of plain SGD a step, and nothing is allocated or copied for them."""

    def __init__(self, group, size, hidden):
        self.group, self.size = group, size
        layers = Linear(784, hidden), Linear(hidden, 10)
        parts = [part for layer in layers for part in (layer.weight, layer.bias)]
        self.values = parameters_to_vector(parts).detach()
        self.gradients = torch.zeros_like(self.values)
        self.parts, self.into = self._views(parts, self.values), self._views(parts, self.gradients)
        for part in self.parts:
            part.requires_grad_()

    @staticmethod
    def _views(parts, vector):
        pieces = vector.split([part.numel() for part in parts])
        return [piece.view(part.shape) for piece, part in zip(pieces, parts)]

    def parameters(self):
        return self.parts

    def __call__(self, images):
        hidden = Straight.apply(images, *self.parts[:2], *self.into[:2]).relu()
        return Straight.apply(hidden, *self.parts[2:], *self.into[2:])

    def step(self, images, labels, rate, is_alone=False):
        """is_alone: without the all-reduce."""
        loss = cross_entropy(self(images), labels)
        loss.backward()
        if not is_alone:
            dist.all_reduce(self.gradients, group=self.group)
        with torch.no_grad():
            self.values.add_(self.gradients, alpha=-rate / self.size)
        return loss.detach()


class Cnn:
    """Few parameters, each used hundreds of times an image: what it needs are processors. As programs have it:
    DistributedDataParallel, and an optimizer with momentum."""

    def __init__(self, group, _size, _hidden):
        self.model = Sequential(Unflatten(1, (1, 28, 28)), Conv2d(1, 32, 3, padding=1), ReLU(), MaxPool2d(2),
                                Conv2d(32, 64, 3, padding=1), ReLU(), MaxPool2d(2), Flatten(), Linear(64 * 49, 10))
        self.ddp = torch.nn.parallel.DistributedDataParallel(self.model, process_group=group, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1, momentum=0.9)

    def parameters(self):
        return self.model.parameters()

    def __call__(self, images):
        return self.model(images)

    def step(self, images, labels, rate, is_alone=False):
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        if is_alone:
            with self.ddp.no_sync():
                loss = cross_entropy(self.ddp(images), labels)
                loss.backward()
        else:
            loss = cross_entropy(self.ddp(images), labels)
            loss.backward()
        self.optimizer.step()
        return loss.detach()


MODELS = {"mlp": Mlp, "cnn": Cnn}


def rate_at(step, num_steps):
    """The learning rate as a part of its highest."""
    done = step / num_steps
    return min(1, (step + 1) / WARM_UP_STEPS) * min(1, (1 - done) / (1 - DECAY_FROM))


class Batches:
    """A rank's share of the images, each epoch in an order of its own."""

    def __init__(self, data, seed, batch):
        self.images, self.labels = data
        self.generator, self.batch = torch.Generator().manual_seed(seed), batch
        self.order = iter(())

    def next(self):
        mine = next(self.order, None)
        if mine is None or len(mine) < self.batch:
            self.order = iter(torch.randperm(len(self.images), generator=self.generator).split(self.batch))
            mine = next(self.order)
        return self.images[mine], self.labels[mine]


class Accuracy:
    """Of all test images; each rank looks at its part."""

    def __init__(self, rank, size):
        images, labels = fashion.load("t10k", fashion.NUM_TEST_IMAGES)
        self.images, self.labels, self.num_images = images[rank::size], labels[rank::size], len(images)

    def of(self, model):
        with torch.no_grad():
            num_right = sum((model(images).argmax(dim=1) == labels).sum()
                            for images, labels in zip(self.images.split(500), self.labels.split(500)))
        num_right = num_right.to(torch.int32).reshape(1)
        dist.all_reduce(num_right)
        return num_right.item() / self.num_images


class Training:
    """One backend's: its model, its place in the data, and what was measured."""

    def __init__(self, backend, group, arguments, data, size):
        self.backend, self.arguments, self.size = backend, arguments, size
        torch.manual_seed(arguments.seed)
        self.model = MODELS[arguments.model](group, size, arguments.hidden)
        self.batches = Batches(data, arguments.seed, arguments.batch)
        self.counters = fashion.Counters(backend, os.environ["GLOO_SOCKET_IFNAME"], group)
        self.num_parameters = sum(part.numel() for part in self.model.parameters())
        self.group, self.alone = group, torch.zeros(self.num_parameters)
        self.step, self.total_s, self.cpu_s, self.curve = 0, 0.0, 0.0, []
        self.alone_s = {"all_reduce": [], "computing": []}

    def interval(self, num_steps, accuracy):
        """Trains, and adds a point to the curve: seconds are those of training so far."""
        loss_sum, steps, highest_rate = torch.zeros(()), self.arguments.steps, self.arguments.rate
        self.counters.resume()
        dist.barrier()
        start, cpu = time.monotonic(), time.process_time()
        for step in range(self.step, self.step + num_steps):
            images, labels = self.batches.next()
            loss_sum += self.model.step(images, labels, highest_rate * rate_at(step, steps))
        dist.barrier()
        self.total_s += time.monotonic() - start
        self.cpu_s += time.process_time() - cpu
        self.counters.pause()
        self.step += num_steps
        dist.all_reduce(loss_sum)
        self.curve.append({"step": self.step, "loss": loss_sum.item() / num_steps / self.size,
                           "accuracy": accuracy.of(self.model), "seconds": self.total_s})

    def measure_alone(self):
        """The two parts of a step by themselves. What is trained here is not kept: the bits have been taken."""
        sample, num_steps = self.batches.next(), min(ALONE_STEPS, self.step)
        for name, function in (("all_reduce", lambda: dist.all_reduce(self.alone, group=self.group)),
                               ("computing", lambda: self.model.step(*sample, 0.0, is_alone=True))):
            function()
            dist.barrier()
            start = time.monotonic()
            for _ in range(num_steps):
                function()
            dist.barrier()
            self.alone_s[name].append((time.monotonic() - start) / num_steps)


def train(trainings, arguments, rank, size):
    """All of it; this rank's part of the result."""
    accuracy, done = Accuracy(rank, size), 0
    for point in range(arguments.points):
        num_steps = arguments.steps * (point + 1) // arguments.points - done
        done += num_steps
        for training in trainings if point % 2 else trainings[::-1]:
            training.interval(num_steps, accuracy)
            if rank == 0:
                print(json.dumps({"backend": training.backend, **training.curve[-1]}), flush=True)
    mine = {training.backend: {**training.counters.totals, "digest": fashion.digest(training.model),
                               "cpu_s": training.cpu_s} for training in trainings}
    for number in range(NUM_ALONE):
        for training in trainings if number % 2 else trainings[::-1]:
            training.measure_alone()
    return mine


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backends", required=True, help="with commas between them")
    parser.add_argument("--model", choices=MODELS, required=True)
    for name in ("steps", "batch", "seed", "points"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--hidden", type=int, help="units of mlp's hidden layer")
    arguments = parser.parse_args()
    backends = arguments.backends.split(",")
    torch.set_num_threads(1)
    if "switchml" in backends:
        import switchml.torch  # pylint: disable=import-outside-toplevel,unused-import  # registers the backend
    dist.init_process_group("gloo")  # for what is not measured; each training has a group of its own
    rank, size = dist.get_rank(), dist.get_world_size()
    groups = {backend: dist.new_group(backend=backend) for backend in backends}
    num_images = min(60000, arguments.steps * arguments.batch * size)
    data = [each[rank::size].clone() for each in fashion.read("train", num_images)]
    data[0] = fashion.normal(data[0])
    trainings = [Training(backend, groups[backend], arguments, data, size) for backend in backends]
    mine = train(trainings, arguments, rank, size)
    everyone = [None] * size
    dist.all_gather_object(everyone, mine)
    if rank == 0:
        print(json.dumps({"gradient_bytes": 4 * trainings[0].num_parameters, "ranks": everyone,
                          "curves": {each.backend: each.curve for each in trainings},
                          "alone_s": {each.backend: each.alone_s for each in trainings}}), flush=True)
    dist.barrier()
    del trainings
    if "switchml" in groups:
        dist.destroy_process_group(groups.pop("switchml"))
    fashion.leave("gloo")


if __name__ == "__main__":
    main()
