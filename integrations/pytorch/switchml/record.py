# SPDX-License-Identifier: Apache-2.0
"""A model of one's own as a table for `switchml bench training --model-file`: what its gradients are, how fast it computes."""
import time

import torch


def _flops(module, output, batch):
    """Of one sample's forward pass, of what multiplies by a weight: 2 for each weight and position of the output."""
    weight = getattr(module, "weight", None)
    if weight is None or weight.dim() < 2 or isinstance(module, torch.nn.Embedding) or not torch.is_tensor(output):
        return 0
    return 2 * weight.numel() * output.numel() // (weight.shape[0] * batch)


def record(path, model, step, batch, num_steps=5):
    """Writes the table. step(): a training step of this process alone, of `batch` samples: forward, backward, update. It is
    called once to see the layers in their order, and num_steps times to measure."""
    layers, seen = {}, set()

    def note(module, _inputs, output):
        flops, mine = layers.get(module, (0, []))
        own = [(name, each) for name, each in module.named_parameters(recurse=False) if each.requires_grad and each not in seen]
        seen.update(each for _, each in own)
        layers[module] = flops + _flops(module, output, batch), mine + own
    hooks = [module.register_forward_hook(note) for module in model.modules()]
    step()
    for hook in hooks:
        hook.remove()
    started = time.monotonic()
    for _ in range(num_steps):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    rate = num_steps * batch / (time.monotonic() - started)
    names = {module: name or "model" for name, module in model.named_modules()}
    rows = [(names[module], flops, own) for module, (flops, own) in layers.items() if own]
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"source recorded by switchml.torch.record()\nparameters {sum(each.numel() for _, _, own in rows for _, each in own)}\n"
                   f"batch {batch}\nspeed own {rate:.6g} measured: {num_steps} steps\n")
        for name, flops, own in rows:
            file.write(f"layer {name} {flops} " + " ".join(f"{each}={tensor.numel()}" for each, tensor in own) + "\n")
