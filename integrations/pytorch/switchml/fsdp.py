# SPDX-License-Identifier: Apache-2.0
"""FSDP2 (`fully_shard`) on the CPU, with its collectives under way at once.

FSDP2 orders its collectives by the streams of a device, and goes on computing. The CPU has no streams, so there every
collective is waited for where it is called, and the link is idle in one direction at a time, or in both. Here

- the parameters of the next layers are gathered ahead, forwards and backwards;
- a layer's gradients are reduced while the backward pass goes on. Whatever reads the result waits for it, and the end of
  the backward pass does for all.
"""
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

# The name from torch 2.14 on, and the one before.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
AHEAD = 2  # layers: while one is copied to its place, another one is on the way


class _Awaited(torch.Tensor):
    """A tensor that a collective writes. Whoever asks for its elements waits for that, and gets the tensor in it. A view of
    it that FSDP2 makes as a gradient is such a tensor, too."""

    @staticmethod
    def __new__(cls, plain, _works):
        return torch.Tensor._make_wrapper_subclass(
            cls, plain.size(), strides=plain.stride(), storage_offset=plain.storage_offset(), dtype=plain.dtype,
            device=plain.device)

    def __init__(self, plain, works):  # pylint: disable=super-init-not-called
        self.plain, self.works = plain, works  # works: at most one, that writes it and its views

    def waited_for(self):
        while self.works:
            self.works[-1].wait()
            self.works.clear()
        return self.plain

    def __repr__(self, **_):
        return repr(self.waited_for())

    @classmethod
    def __torch_dispatch__(cls, function, _types, arguments=(), keywords=None):
        keywords = keywords or {}
        if function is torch.ops.aten.as_strided.default:
            return cls(function(arguments[0].plain, *arguments[1:], **keywords), arguments[0].works)
        arguments, keywords = tree_map_only(cls, cls.waited_for, (arguments, keywords))
        return function(*arguments, **keywords)


class _ReduceScatter:
    """What FSDP2 calls for the gradients of one of its modules."""

    def __init__(self, module):
        self.module = module

    def allocate(self, size, *, dtype, device):
        return _Awaited(torch.empty(*size, dtype=dtype, device=device), [])

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        work = _reduce_scatter(output_tensor.plain, input_tensor.plain, op, group, async_op=True)
        output_tensor.works.append(work)
        torch.autograd.Variable._execution_engine.queue_callback(self._end)
        return work if async_op else None

    def _end(self):
        """Of a backward pass: gradients are plain tensors again."""
        for parameter in self.module.parameters():
            local = getattr(parameter.grad, "_local_tensor", None)
            if isinstance(local, _Awaited):
                parameter.grad._local_tensor = local.waited_for()


def overlap(model, ahead=AHEAD):
    """Call it once, behind the last fully_shard(). On the CPU gradients are then reduced while the backward pass goes on, and
    the parameters of so many layers ahead are gathered meanwhile, in the order of model.modules(). It changes no bit of
    the result, and takes `ahead` layers more of memory. Works with any backend. Nothing changes on devices that have
    streams."""
    from torch.distributed.fsdp import FSDPModule  # pylint: disable=import-outside-toplevel,no-name-in-module
    modules = [module for module in model.modules() if isinstance(module, FSDPModule)
               and any(parameter.device.type == "cpu" for parameter in module.parameters())]
    for number, module in enumerate(modules):
        module.set_custom_reduce_scatter(_ReduceScatter(module))
        module._set_unshard_async_op(True)
        module.set_modules_to_forward_prefetch(modules[number + 1:number + 1 + ahead])
        module.set_modules_to_backward_prefetch(modules[max(0, number - ahead):number][::-1])
