# SPDX-License-Identifier: Apache-2.0
"""A communication hook for DistributedDataParallel, for programs that keep another backend (gloo, nccl).

    state = switchml.torch.DDPHookState()          # collective over the process group that DDP uses
    model.register_comm_hook(state, switchml.torch.ddp_hook)

Only gradients go through SwitchML then; everything else stays with that backend.

    state = switchml.torch.DDPHookState(within="nccl")

sums within each host by that backend first. Then each of a host's k ranks has the k-th part of the gradients summed
between the hosts, and the backend gathers the parts: each rank copies to its host, and sends, a k-th of the gradients.
"""
import os

import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from . import gloo
from .api import SML_SUM
from .job import reduction_for
from .library import SwitchMLError
from .offload import Offload
from .settings import Exchange, agree
from .store import Own


class DDPHookState:
    """A SwitchML job of the ranks of a process group (default: the world), for ddp_hook. Collective: all ranks of the
    group make it, in the same order if several. It needs no backend `switchml`.

    process_group  the one that DDP uses; its backend does what is not offloaded
    store          over which the ranks find each other; default: the one of init_process_group
    timeout        of an all-reduce, as init_process_group's (a timedelta); default: torch's 30 minutes
    within         the backend that sums within a host first; default: none, all ranks sum by SwitchML. The process group is
                   the world then
    ranks_per_host so many consecutive ranks are on each host; default: LOCAL_WORLD_SIZE, as torchrun sets it
    """
    num_made = {}  # by the ranks of the group

    def __init__(self, process_group=None, store=None, timeout=dist.default_pg_timeout, within=None,
                 ranks_per_host=None):
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
        self.own_store = Own(store, rank, self.size)
        self.own_store.offer()
        why_off, is_required, self.has_float64, _, _ = agree(exchange)
        store = self.own_store.take()
        self.host = None if within is None else _Host(rank, self.size, within, ranks_per_host)
        if self.host is not None:
            store, rank = _c10d.PrefixStore(f"part{self.host.rank}", store), rank // self.host.size
        num_ranks = self.size if self.host is None else self.size // self.host.size
        self.offload = None if why_off else Offload(store, rank, num_ranks, timeout, is_required)
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


class _Host:
    """The ranks of one host, in groups of the backend that is within. There are two: sums are called as gradients come, and
    gathers as sums between hosts end. In one group ranks would call them in different orders."""

    def __init__(self, rank, world_size, backend, ranks_per_host):
        text = ranks_per_host if ranks_per_host is not None else os.environ.get("LOCAL_WORLD_SIZE", "")
        if not str(text).isdecimal() or int(text) < 1 or world_size % int(text) or world_size != dist.get_world_size():
            raise SwitchMLError(f"ranks_per_host (or LOCAL_WORLD_SIZE) is {text or 'not set'}: with within= it is the number of "
                                f"consecutive ranks on each host, equal on all hosts, of the world's {dist.get_world_size()}")
        self.size = int(text)
        self.rank, groups = rank % self.size, []
        for first in range(0, world_size, self.size):  # all ranks make all groups
            made = [dist.new_group(list(range(first, first + self.size)), backend=backend) for _ in range(2)]
            groups = made if first <= rank < first + self.size else groups
        self.sums, self.gathers = groups

    def average(self, offload, tensor):
        """Of a bucket that is divided already; a future."""
        dist.all_reduce(tensor, group=self.sums)  # NCCL's orders streams, and the host goes on
        dense, count = tensor, -(-tensor.numel() // self.size)
        if count * self.size != tensor.numel():
            dense = tensor.new_zeros(count * self.size)
            dense[:tensor.numel()].copy_(tensor)
        parts = list(dense.split(count)) if count else [dense] * self.size
        own = parts[self.rank].clone()

        def gather(done):
            done.value()
            dist.all_gather(parts, own, group=self.gathers)
            return tensor if dense is tensor else tensor.copy_(dense[:tensor.numel()])
        return offload.submit_for_future([own], SML_SUM, own).then(gather)


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
    is_ours = reduction_for([tensor], dist.ReduceOp.SUM, state.has_float64) is not None
    if state.offload is not None and is_ours and state.host is not None:
        return state.host.average(state.offload, tensor)
    if state.offload is not None and is_ours:
        return state.offload.submit_for_future([tensor], SML_SUM, tensor, _starts_of(bucket, tensor))
    state.num_elsewhere += 1
    if is_ours and not gloo.takes(tensor.dtype):  # bfloat16 on torch 1.13, without offload
        return _sum(state, tensor.float()).then(lambda done: tensor.copy_(_value(done)))
    return _sum(state, tensor).then(_value)


def _starts_of(bucket, tensor):
    """Where its gradients begin: sums do not depend then on how DDP puts them together."""
    return sorted({gradient.storage_offset() - tensor.storage_offset() for gradient in bucket.gradients()
                   if gradient.numel() > 0}) or None


def _sum(state, tensor):
    return dist.all_reduce(tensor, group=state.process_group, async_op=True).get_future()


def _value(future):
    value = future.value()
    return value[0] if isinstance(value, (list, tuple)) else value
