# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel, for programs that keep another backend (gloo, nccl).

    state = switchml.torch.DDPHookState()          # collective over the process group that DDP uses
    model.register_comm_hook(state, switchml.torch.ddp_hook)

Only gradients go through SwitchML then; everything else stays with that backend.
"""
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from . import gloo
from .job import is_eligible
from .library import SwitchMLError
from .offload import Offload
from .settings import Exchange, agree


class DDPHookState:
    """A SwitchML job of the ranks of a process group (default: the world), for ddp_hook. Collective: all ranks of the
    group make it, in the same order if several. It needs no backend `switchml`.

    process_group  the one that DDP uses; its backend does what is not offloaded
    store          over which the ranks find each other; default: the one of init_process_group
    timeout        of an all-reduce, as init_process_group's (a timedelta); default: torch's 30 minutes
    """
    num_made = {}  # by the ranks of the group

    def __init__(self, process_group=None, store=None, timeout=dist.default_pg_timeout):
        group = process_group if process_group is not None else dist.distributed_c10d._get_default_group()
        self.process_group, self.size = group, dist.get_world_size(group)
        rank = dist.get_rank(group)
        if rank < 0:
            raise SwitchMLError("this rank is not in the process group")
        ranks = _global_ranks(group, self.size)
        number = DDPHookState.num_made[ranks] = DDPHookState.num_made.get(ranks, -1) + 1
        store = _c10d.PrefixStore(f"switchml.ddp_hook/{','.join(map(str, ranks))}/{number}",
                                  store if store is not None else dist.distributed_c10d._get_default_store())
        exchange = Exchange(_c10d.PrefixStore("settings", store), rank, self.size, timeout.total_seconds())
        why_off, is_required, self.has_float64, _ = agree(exchange)
        self.offload = None if why_off else Offload(store, rank, self.size, timeout, is_required)
        self.num_elsewhere = 0

    def stats(self):
        """As switchml.torch.stats(group); fallback_calls: also what went through the process group."""
        counters = {"offloaded_calls": 0, "failed_calls": 0, "max_in_flight": 0, "fallback_calls": 0}
        if self.offload is not None:
            counters = self.offload.stats()
        return {**counters, "fallback_calls": counters["fallback_calls"] + self.num_elsewhere}

    def error(self):
        """The SwitchMLError that the job failed with (status, ranks, operation), or None."""
        return getattr(self.offload, "error", None)

    def close(self):
        """Leaves the job once what is outstanding is done. The last use of it; so is the object's end."""
        if self.offload is not None:
            self.offload.close()

    def __del__(self):
        if getattr(self, "offload", None) is not None:
            self.offload.close()


def _global_ranks(group, size):
    if group is dist.distributed_c10d._get_default_group():
        return tuple(range(size))
    if hasattr(dist.distributed_c10d, "_pg_group_ranks"):  # torch 1
        return tuple(sorted(dist.distributed_c10d._pg_group_ranks[group]))
    return tuple(dist.get_process_group_ranks(group))


def ddp_hook(state, bucket):
    """The average over all ranks of a bucket of gradients, as DDP would have it of its own. Raises in backward() why an
    all-reduce failed, with the ranks."""
    tensor = bucket.buffer()
    tensor.mul_(1 / state.size)  # before the sum, as DDP does: its bits are the same
    is_ours = is_eligible([tensor], True, False, state.has_float64)
    if state.offload is not None and is_ours:
        return state.offload.submit_for_future([tensor], False, tensor)
    state.num_elsewhere += 1
    if is_ours and not gloo.takes(tensor.dtype):  # bfloat16 on torch 1.13, without offload
        return _sum(state, tensor.float()).then(lambda done: tensor.copy_(_value(done)))
    return _sum(state, tensor).then(_value)


def _sum(state, tensor):
    return dist.all_reduce(tensor, group=state.process_group, async_op=True).get_future()


def _value(future):
    value = future.value()
    return value[0] if isinstance(value, (list, tuple)) else value
