#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/fsdp2.py: trains by FSDP2, over whichever backend a line of its input asks for, one after the other in the
same processes. RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT.

    KIND OVERLAPS LAYERS WIDTH STEPS     KIND: gloo, embedded, slice (all-reduce and slice), or an aggregator's address

It answers with a line of JSON: the seconds of each step, and the processor's of all; or, of no steps, a hash of all
parameters."""
import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import switchml.torch
import switchml.fsdp

BATCH, RATE = 4, 1e-3


class AllReduceAndSlice:
    """A reduce-scatter as torch's Gloo makes it."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        whole = input_tensor.clone()
        dist.all_reduce(whole, op, group)
        output_tensor.copy_(whole[group.rank() * len(output_tensor):][:len(output_tensor)])


def group_of(kind):
    """The groups of all kinds are there until the end."""
    os.environ.pop("SWITCHML_AGGREGATOR", None)
    if ":" in kind:
        os.environ["SWITCHML_AGGREGATOR"] = kind
    group = dist.new_group(backend="gloo" if kind == "gloo" else "switchml")
    dist.all_reduce(torch.ones(1), group=group)  # joins its job here
    return group


def model_of(group, num_layers, width, is_overlapped, is_sliced):
    """Layers of `width` x `width`, each a unit of parameters, without anything around them."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(width, width, bias=False) for _ in range(num_layers)]
    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu")
    model = torch.nn.Sequential(*[each for layer in layers for each in (layer, torch.nn.Tanh())])
    for layer in layers:
        fully_shard(layer, mesh=mesh)
        if is_sliced:
            layer.set_custom_reduce_scatter(AllReduceAndSlice())
    fully_shard(model, mesh=mesh)
    if is_overlapped:
        switchml.fsdp.overlap(model)
    return model


def train(model, num_steps, seed):
    """Seconds of each step."""
    width, drawn = next(model.parameters()).shape[1], torch.Generator().manual_seed(seed)
    optimizer, times_s = torch.optim.SGD(model.parameters(), lr=RATE), []
    for _ in range(num_steps):
        began = time.monotonic()
        optimizer.zero_grad()
        model(torch.randn(BATCH, width, generator=drawn)).square().sum().backward()
        optimizer.step()
        times_s.append(time.monotonic() - began)
    return times_s


def hash_of(model):
    whole = hashlib.sha256()
    for parameter in model.parameters():
        whole.update(parameter.detach().full_tensor().numpy().tobytes())
    return whole.hexdigest()[:16]


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups, models = {}, {}
    print("ready", flush=True)
    for line in sys.stdin:
        kind, *numbers = line.split()
        is_overlapped, num_layers, width, num_steps = map(int, numbers)
        backend = os.environ["AGGREGATOR"] if kind == "slice" else kind
        if backend not in groups:
            groups[backend] = group_of(backend)
        key = kind, is_overlapped, num_layers, width
        if key not in models:
            models[key] = model_of(groups[backend], num_layers, width, is_overlapped, kind == "slice")
        dist.barrier()
        cpu_s = time.process_time()
        times_s = train(models[key], num_steps, dist.get_rank())
        cpu_s = time.process_time() - cpu_s
        stats = switchml.torch.stats(groups[backend]) if backend != "gloo" else {}
        print(json.dumps({"times_s": times_s, "cpu_s": cpu_s, "hash": None if num_steps else hash_of(models[key]),
                          "fallback": stats.get("fallback_calls", 0)}), flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
