#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""train.py: a training on 4 workers of Ray's TorchTrainer. Ray makes the process group, over gloo or nccl; the gradients alone go
through SwitchML, by the hook. Tried with a stand-in for Ray only, which Debian does not have."""
import os

import ray.train
import ray.train.torch
import torch

import switchml.torch


def train():
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 1))  # DistributedDataParallel
    state = switchml.torch.DDPHookState()
    model.register_comm_hook(state, switchml.torch.ddp_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    truth = torch.arange(64, dtype=torch.float32) / 64
    for _ in range(100):
        inputs = torch.randn(256, 64)
        loss = torch.nn.functional.mse_loss(model(inputs).squeeze(1), inputs @ truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {torch.distributed.get_rank()}: loss {loss.item():.4f}, {state.stats()['offloaded_calls']} calls through SwitchML")
    state.close()


if __name__ == "__main__":
    variables = {name: value for name, value in os.environ.items() if name.startswith("SWITCHML_")}
    ray.init(runtime_env={"env_vars": variables})
    ray.train.torch.TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=4)).fit()
