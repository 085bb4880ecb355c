# SPDX-License-Identifier: Apache-2.0
"""The Gloo group inside: where it listens, what a call needs before it, and what a script's end needs after it.

Scripts may end without destroying their groups. A thread of Gloo drops its references to a finished call's
tensors a moment after the caller has seen the call's end. If those are the last ones and the interpreter has
begun to end meanwhile, freeing the tensor asks for the interpreter's lock, Python ends the thread there, and C++
answers with "terminate called without an active exception": the process aborts although its work was done.
So an exit waits until the threads are at rest, and what is then still alive is never freed.
"""
import collections
import ctypes
import datetime
import ipaddress
import os
import socket
import threading
import time
import weakref

import torch
from torch._C import _distributed_c10d as _c10d
from torch.distributed import ReduceOp

from . import api

_LAST_CALLS = 16  # more than the threads of an inner group can be about to drop
_REST_LIMIT_S = 0.5

def own_address(peer):
    """The address of this host on its way to a peer, a name or an address (nothing is sent); "" if that is loopback's,
    or there is no way."""
    try:
        family, kind, protocol, _, to = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(to)
            address = probe.getsockname()[0]
    except OSError:
        return ""
    return "" if ipaddress.ip_address(address.partition("%")[0]).is_loopback else address


def make_group(store, rank, size, timeout, addresses):
    """Gloo by itself listens where this host's name points. That is loopback on many hosts, Debian's as installed among
    them, and then others call in vain. So it listens at the address on the way to rank 0's host; a host that is that
    itself, and knows it by loopback, at the one on the way to another. addresses: own_address(rank 0's) of all ranks.
    GLOO_SOCKET_IFNAME decides where it is set."""
    others = [address for address in addresses if address]
    address = addresses[rank] or (own_address(others[0]) if others else "")
    if os.environ.get("GLOO_SOCKET_IFNAME") or not address:
        return _c10d.ProcessGroupGloo(store, rank, size, timeout=timeout)
    options = _c10d.ProcessGroupGloo._Options()
    options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timeout
    return _c10d.ProcessGroupGloo(store, rank, size, options)


class _Polled(_c10d.Store):
    """A store that is asked again and again for what is not there yet. Torch's own wait has the lock of the process's only
    connection meanwhile, and so whatever another thread has to write. Ranks that make two groups at the same time, one this
    one and another that one first, would wait for each other."""

    def __init__(self, store, timeout):
        super().__init__()
        self.store, self.limit = store, timeout

    def set(self, key, value):
        self.store.set(key, value)
        self.store.add(f"{key} done", 1)

    def wait(self, keys, timeout=None):
        pause_s, deadline = 0.0005, time.monotonic() + (timeout or self.limit).total_seconds()
        for key in keys:
            while self.store.add(f"{key} done", 0) == 0:
                if time.monotonic() > deadline:
                    raise RuntimeError("some rank did not begin with Gloo within the group's timeout")
                time.sleep(pause_s)
                pause_s = min(pause_s * 1.5, 0.02)

    def get(self, key):
        self.wait([key])
        return self.store.get(key)


_polled = weakref.WeakKeyDictionary()  # by group: C++ keeps its half of such a store alone


def make_beside_others(store, rank, size, timeout):
    """A group, on a thread that may be one of several that do so."""
    polled = _Polled(store, timeout)
    group = _c10d.ProcessGroupGloo(polled, rank, size, timeout=timeout)
    _polled[group] = polled
    return group


_tensors_of_calls = collections.deque(maxlen=_LAST_CALLS)


def remember(tensors):
    """The tensors of a call that is given to Gloo; holds none of them."""
    _tensors_of_calls.append([weakref.ref(tensor) for tensor in tensors])


def _is_another_thread_running():
    me = threading.get_native_id()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat", encoding="ascii", errors="replace") as stat:
                if int(thread) != me and stat.read().rpartition(")")[2].split()[0] == "R":
                    return True
        except OSError:
            pass  # it has ended
    return False


def rest():
    """Waits, for a short time at most, until no other thread has anything to do. Sleeping lends them the lock.
    Before a group is freed, too: its destructor joins its threads with the lock held, which one of them may want."""
    if not _tensors_of_calls:
        return
    num_quiet, deadline = 0, time.monotonic() + _REST_LIMIT_S
    while num_quiet < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
        num_quiet = 0 if _is_another_thread_running() else num_quiet + 1


def end():
    """At exit. Returns how many tensors of the last calls will outlive the interpreter."""
    rest()
    alive = {id(tensor): tensor for call in _tensors_of_calls for tensor in (ref() for ref in call)
             if tensor is not None}
    for tensor in alive.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tensor))
    return len(alive)


def tensors_in(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def stands_for_another(tensor):
    """It has no elements of its own: what functional collectives return, say."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def plain(value):
    """The same nested lists with the tensors that others stand for."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if not isinstance(value, torch.Tensor) or not stands_for_another(value):
        return value
    if not hasattr(value, "trigger_wait"):
        raise RuntimeError(f"switchml: a {type(value).__name__} has no elements of its own; call the collective for the "
                           "tensor that it is made of")
    return value.trigger_wait()


def future_value(outputs):
    """What the future of a collective with these outputs has."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    return list(outputs[0]) if len(outputs) == 1 and isinstance(outputs[0], (list, tuple)) else list(outputs)


def contiguous(value, copies):
    """The same nested lists with strided tensors replaced by copies, noted in `copies`: Gloo takes any
    tensor for a dense one and writes over what lies between its elements."""
    if isinstance(value, (list, tuple)):
        return [contiguous(item, copies) for item in value]
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_contiguous():
        copy = value.detach().contiguous()
        copies.append((value, copy))
        return copy
    return value


def check_written(tensors, what):
    """Tensors whose elements share memory (those of expand()) can't take a result."""
    for tensor in tensors:
        if tensor.layout == torch.strided and not tensor.is_contiguous() and any(
                stride == 0 and count > 1 for stride, count in zip(tensor.stride(), tensor.shape)):
            raise RuntimeError(f"switchml: {what} cannot write to an expanded tensor, of which more than one element is at "
                               "the same place in memory; clone() it first")


def keep_for_ever(group):
    """A group with a call that will not end: its destructor would wait for that."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


_takes = {dtype: True for dtype in (torch.float32, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64)}


def takes(dtype):
    """Whether the Gloo of this torch does."""
    if dtype not in _takes:
        try:  # a group of one: its answer depends on the torch version alone
            alone = _c10d.ProcessGroupGloo(_c10d.HashStore(), 0, 1, timeout=datetime.timedelta(seconds=10))
            alone.allreduce([torch.zeros(1, dtype=dtype)]).wait()
            _takes[dtype] = True
        except (RuntimeError, TypeError):
            _takes[dtype] = False
    return _takes[dtype]


_OPS = {api.SML_SUM: ReduceOp.SUM, api.SML_AVG: ReduceOp.SUM, api.SML_MIN: ReduceOp.MIN, api.SML_MAX: ReduceOp.MAX,
        api.SML_PRODUCT: ReduceOp.PRODUCT, api.SML_BAND: ReduceOp.BAND, api.SML_BOR: ReduceOp.BOR,
        api.SML_LAND: ReduceOp.MIN, api.SML_LOR: ReduceOp.MAX}


def taken(tensor, copies):
    """For a dense tensor of a type that SwitchML takes: one of a type that this Gloo takes, a copy noted in `copies` or a
    view. Asking Gloo for another would break the group. bfloat16 (on torch 1.13) is reduced in float32 and rounded once."""
    if tensor.dtype is torch.bool:
        return tensor.detach().view(torch.uint8)
    if not takes(tensor.dtype):
        copies.append((tensor, tensor.detach().float()))
        return copies[-1][1]
    return tensor


def options(reduction):
    """For what SwitchML's number means; averages are divided afterwards."""
    made = _c10d.AllreduceOptions()
    made.reduceOp = _OPS[reduction]
    return made


def reduce_in_place(group, tensor, reduction, watched):
    """What SwitchML makes of a dense tensor."""
    copies = []
    buffer = taken(tensor, copies)
    remember([buffer])
    watched(group.allreduce([buffer], options(reduction))).wait()
    if reduction == api.SML_AVG:
        buffer.div_(group.size())
    for each, copy in copies:
        each.copy_(copy)


def check_type(dtype, what):
    """Gloo finds out about a type that it does not take only on its own thread, after some ranks have sent,
    which breaks the group: so it is refused here, on all ranks, before anything is sent."""
    if not takes(dtype):
        raise RuntimeError(f"switchml: {what} of {dtype} is not offered: neither SwitchML nor the Gloo of torch "
                        f"{torch.__version__} takes this type; convert the tensor first")


def check_reduction(dtype, op, what):
    """Refuses what Gloo would refuse half way, from facts that are equal on all ranks."""
    is_inexact = dtype.is_floating_point or dtype.is_complex
    if op == ReduceOp.AVG and not is_inexact:
        raise RuntimeError(f"switchml: {what} AVG of {dtype} is not offered: the average of integers is no integer; "
                        "use SUM and divide")
    if is_inexact and any(op == bitwise for bitwise in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)):
        raise RuntimeError(f"switchml: {what} with a bitwise reduction takes integers only, not {dtype}")
    if op == ReduceOp.PREMUL_SUM:
        raise RuntimeError(f"switchml: {what} does not offer this reduction")
    check_type(dtype, what)
