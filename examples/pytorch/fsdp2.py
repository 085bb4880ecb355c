#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""fsdp2.py [--steps N] [--backend NAME] [TEXT]: a small transformer, its parameters sharded over all ranks (FSDP2), learns
which byte follows in a text; by default in a licence that every Debian has. It ends with an error if the loss did not fall,
or if two ranks hold different parameters. Ranks are those of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Tried with PyTorch
2.14; that of 2.6 has no FSDP2 for the CPU."""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import switchml.fsdp
import switchml.torch  # registers the backend

LENGTH, WIDTH = 64, 96


class Transformer(nn.Module):
    def __init__(self, num_layers=2):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
                                    for _ in range(num_layers))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text):
        hidden, mask = self.bytes(text) + self.places, nn.Transformer.generate_square_subsequent_mask(LENGTH)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--backend", default="switchml")
    parser.add_argument("text", nargs="?", default="/usr/share/common-licenses/GPL-3")
    arguments = parser.parse_args()
    with open(arguments.text, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    dist.init_process_group(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    torch.manual_seed(1)  # the same model on all ranks, before it is cut
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    switchml.fsdp.overlap(model)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=2e-3), []
    drawn = torch.Generator().manual_seed(rank)  # a rank's data is its own
    for step in range(arguments.steps):
        at = torch.randint(len(text) - LENGTH, (8, 1), generator=drawn) + torch.arange(LENGTH)
        loss = nn.functional.cross_entropy(model(text[at]).flatten(0, 1), text[at + 1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 0 and step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)
    parameters = torch.cat([p.detach().full_tensor().flatten() for p in model.parameters()])
    seen = [torch.empty_like(parameters) for _ in range(size)]
    dist.all_gather(seen, parameters)
    if any(not torch.equal(s.view(torch.int32), parameters.view(torch.int32)) for s in seen):
        raise SystemExit("two ranks hold different parameters")
    if not losses[-1] < losses[0] - 1:
        raise SystemExit(f"the loss did not fall: {losses[0]} to {losses[-1]}")
    if rank == 0:
        print(f"done: loss {losses[0]:.3f} to {losses[-1]:.3f}, equal on {size} ranks", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
