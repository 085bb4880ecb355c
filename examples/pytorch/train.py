#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""train.py [--steps N] [--backend NAME]: the smallest data-parallel training there is, for the launchers of this
folder's neighbours. It fits a linear model to data that each rank draws for itself, and ends with an error if the
loss did not fall or if two ranks hold different parameters. Ranks are those of RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT."""
import argparse

import torch
import torch.distributed as dist

import switchml.torch # registers the backend


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--backend", default="switchml")
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    rank = dist.get_rank()
    torch.manual_seed(rank) # the data of a rank is its own
    truth = torch.arange(64, dtype=torch.float32) / 64
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    for step in range(arguments.steps):
        inputs = torch.randn(256, 64)
        loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.4f}", flush=True)
    parameters = torch.cat([p.detach().flatten() for p in model.parameters()])
    seen = [torch.empty_like(parameters) for _ in range(dist.get_world_size())]
    dist.all_gather(seen, parameters)
    if any(not torch.equal(s, parameters) for s in seen):
        raise SystemExit("two ranks hold different parameters")
    if not losses[-1] < losses[0] / 10:
        raise SystemExit(f"the loss did not fall: {losses[0]} to {losses[-1]}")
    if rank == 0:
        print(f"done: loss {losses[-1]:.6f}, equal on {dist.get_world_size()} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
