# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend `switchml`: all-reduce by in-network aggregation.

    import switchml.torch
    torch.distributed.init_process_group("switchml")

All-reduce of dense float32, float16, bfloat16 (SUM, AVG), int32 and int64 (SUM) tensors, on the CPU or a GPU, goes
through libswitchml, and of float64 where SWITCHML_FLOAT64_BITS asks for it; every other collective goes to a Gloo
group inside. Which way a call goes depends only on facts that are equal on all
ranks: type, reduction, number of elements, group size, and the settings the ranks exchanged when the
group was made. Plain Python over the C library (ctypes), for torch 1.13 and 2.x alike.

Environment
  SWITCHML_AGGREGATOR  host:port of a switchmld, or several with commas between them; unset: the ranks aggregate
  SWITCHML_INTERFACE   then: the network interfaces at which they may reach each other, "eth0,eth1"; unset: any
  SWITCHML_REQUIRE=1   an eligible call that cannot go through SwitchML is an error, never Gloo
  SWITCHML_DISABLE=1   everything goes through Gloo
  SWITCHML_LIBRARY     path of libswitchml.so, if it is not where the build or the system puts it;
                       SWITCHML_LEASE, _RETRY, _CHECK, _KEY_FILE, _KEY_NAME, _SHARED_MEMORY: see README.md

A group joins its job at its first eligible call. Submission returns at once. A collective that goes through Gloo
begins when the calls before it have ended. Callbacks added to a call's future may wait for later calls.

For DistributedDataParallel over another backend: DDPHookState, ddp_hook.
"""
import inspect
import os
import sys
import weakref

import torch
import torch.distributed as dist

if not dist.is_available():
    raise ImportError("switchml.torch: this PyTorch was built without torch.distributed")
from torch._C import _distributed_c10d as _c10d  # noqa: E402
from . import gloo  # noqa: E402
from .hook import DDPHookState, ddp_hook  # noqa: E402,F401  # pylint: disable=unused-import
from .library import SwitchMLError, thread_error  # noqa: E402
from .offload import Offload, is_eligible  # noqa: E402
from .process import Process  # noqa: E402
from .settings import Exchange, agree  # noqa: E402
from .works import Finisher, Promise  # noqa: E402

ReduceOp = dist.ReduceOp


# torch's own functions, which wait at once for the Work that they get, unless their caller asked for it.
_WAITING_CALLERS = {inspect.unwrap(getattr(dist, name)).__code__
                    for name in ("all_reduce", "all_reduce_coalesced") if hasattr(dist, name)}


def _is_waited_for(frame):
    """Whether the caller waits for the Work, and gives it to nobody: not to C++ (DDP) above all."""
    return frame.f_code in _WAITING_CALLERS and not frame.f_locals.get("async_op", True)


class SwitchMLGroup(dist.ProcessGroup):
    """A torch.distributed process group: all-reduce through SwitchML, everything else through Gloo."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._pid = os.getpid()
        store = _c10d.PrefixStore("switchml", store)
        exchange = Exchange(_c10d.PrefixStore("settings", store), rank, size, timeout.total_seconds())
        why_off, is_required, self._has_float64, addresses = agree(exchange)
        self._inner = gloo.make_group(_c10d.PrefixStore("other", store), rank, size, timeout, addresses)
        self._offload, self._finisher, self._num_gloo_allreduces = None, Finisher(), 0
        weakref.finalize(self, gloo.rest).atexit = False
        weakref.finalize(self, self._finisher.close).atexit = False
        if not why_off:
            self._offload = Offload(store, rank, size, timeout, is_required)
            weakref.finalize(self, self._offload.close).atexit = False

    def getBackendName(self):  # pylint: disable=invalid-name  # torch's name for it
        return "switchml"

    name = getBackendName

    def _set_group_name(self, name):  # torch 2 would keep it in C++ backends, of which there are none
        self.group_name = name

    group_name = ""

    def _gloo(self):
        """The inner group, unless this group has failed: then nothing may pretend to work."""
        if os.getpid() != self._pid:
            raise SwitchMLError("this process group belongs to the parent of this forked process", "forked")
        if self._offload is not None:
            self._offload.raise_if_failed()
        return self._inner

    def allreduce(self, tensors, opts=None, op=None):
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if isinstance(opts, type(ReduceOp.SUM)) or (opts is None and op is not None):
            op, opts = op or opts, _c10d.AllreduceOptions()
            opts.reduceOp = op
        return self._allreduce("allreduce", tensors, opts or _c10d.AllreduceOptions(), len(tensors) == 1,
                               _is_waited_for(sys._getframe(1)))

    def allreduce_coalesced(self, tensors, opts=None):
        return self._allreduce("allreduce_coalesced", tensors, opts or _c10d.AllreduceCoalescedOptions(), True,
                               _is_waited_for(sys._getframe(1)))

    def _allreduce(self, method, tensors, opts, is_one_each, is_waited_for):
        """is_one_each: every tensor is summed with its like of the other ranks, not with its neighbours."""
        inner, op = self._gloo(), opts.reduceOp
        is_average = op == ReduceOp.AVG
        if is_one_each and is_eligible(tensors, is_average or op == ReduceOp.SUM, is_average, self._has_float64):
            if self._offload is not None and torch.autograd._profiler_enabled():
                return self._submit_recorded(tensors, is_average)
            if self._offload is not None:
                return self._offload.submit(tensors, is_average, is_waited_for)
            self._num_gloo_allreduces += 1
            if not gloo.takes(tensors[0].dtype):
                return self._sum_in_float32(tensors, is_average)
        for tensor in tensors:
            gloo.check_reduction(tensor.dtype, op, "all-reduce")
        return self._reduce_by_gloo(getattr(inner, method), list(tensors), opts, True)

    def _submit_recorded(self, tensors, is_average):
        """A profiler shows the call from here to its end, under the name that Gloo's would have. It has no shapes: that
        torch does not offer to Python for what ends on another thread."""
        with torch.autograd.profiler.record_function(f"{self.getBackendName()}:all_reduce") as record:
            work = self._offload.submit(tensors, is_average)
            record._call_end_callbacks_on_future(work.get_future())
        return work

    def _sum_in_float32(self, tensors, is_average):
        """Sums of a type that SwitchML takes, where there is no offload, and this torch's Gloo does not."""
        def begin():
            copies = [(tensor, tensor.detach().float()) for tensor in tensors]
            dense = [copy for _, copy in copies]
            work = self._inner.allreduce_coalesced(dense, _c10d.AllreduceCoalescedOptions())
            return work, copies, dense, self.size() if is_average else 1
        return self._by_gloo(begin, tensors)

    def reduce(self, tensors, opts):
        inner = self._gloo()
        for tensor in tensors:
            gloo.check_reduction(tensor.dtype, opts.reduceOp, "reduce")
        return self._reduce_by_gloo(inner.reduce, list(tensors), opts, opts.rootRank == self.rank())

    def _reduce_by_gloo(self, method, tensors, opts, is_result_here):
        divisor = 1
        if opts.reduceOp == ReduceOp.AVG:  # Gloo has no average
            opts.reduceOp, divisor = ReduceOp.SUM, self.size() if is_result_here else 1

        def begin():
            copies = []
            dense = gloo.contiguous(tensors, copies)
            return method(dense, opts), copies, dense if divisor > 1 else (), divisor
        return self._by_gloo(begin, tensors)

    def _by_gloo(self, begin, result):
        """A collective that Gloo does, after all that was called before it. begin() calls Gloo, and returns its Work and
        what is left to do when that has ended: copies to put back in place, sums to divide into averages, by what."""
        def begin_and_remember():
            work, copies, divided, divisor = begin()
            gloo.remember([*result, *divided, *(copy for _, copy in copies)])

            def finish(work):
                for tensor in divided:
                    if divisor > 1:
                        tensor.detach().div_(divisor)
                for tensor, copy in copies:
                    tensor.detach().copy_(copy)
                return result if copies or divided else work.get_future().value()
            return work, finish, bool(copies or divided)

        if self._offload is not None and self._offload.calls:
            return self._offload.put_behind(begin_and_remember, result, self._finisher)
        work, finish, has_more_to_do = begin_and_remember()
        if not has_more_to_do:
            return work
        promise = Promise(result)
        self._finisher.add(work, finish, promise)
        return promise.work()

    def barrier(self, opts=None):
        inner = self._gloo()
        return self._by_gloo(lambda: (inner.barrier(opts or _c10d.BarrierOptions()), (), (), 1), ())

    # Ranges of calls that torch brackets (_coalescing_manager): small all-reduces in one share packets.
    def _coalesce(self, is_begin):
        self._gloo()
        if self._offload is not None:
            self._offload.coalesce(is_begin)

    def _start_coalescing(self, *_device):
        self._coalesce(True)

    def _end_coalescing(self, *_works):
        self._coalesce(False)


def _pass_to_gloo(method):
    def call(self, *arguments, **keywords):
        inner, tensors = self._gloo(), list(gloo.tensors_in([arguments, list(keywords.values())]))
        for tensor in tensors:
            gloo.check_type(tensor.dtype, method.strip("_"))

        def begin():
            copies = []
            dense = gloo.contiguous(arguments, copies)
            named = {name: gloo.contiguous(value, copies) for name, value in keywords.items()}
            return getattr(inner, method)(*dense, **named), copies, (), 1
        return self._by_gloo(begin, tensors)
    call.__name__ = method
    return call


def _pass_messages_to_gloo(method):
    """Messages between two ranks wait for no collective, which may wait for them. They want contiguous tensors."""
    def call(self, tensors, *arguments):
        inner = self._gloo()
        for tensor in tensors:
            gloo.check_type(tensor.dtype, method)
        gloo.remember(tensors)
        return getattr(inner, method)(tensors, *arguments)
    call.__name__ = method
    return call


def _pass_on(method):
    def call(self, *arguments, **keywords):
        inner = self._gloo()
        if self._offload is not None and method == "monitored_barrier":  # which returns when it has ended
            self._offload.wait_for_all()
        return getattr(inner, method)(*arguments, **keywords)
    call.__name__ = method
    return call


for _pass, _methods in (
        (_pass_to_gloo, ("broadcast", "allgather", "_allgather_base", "allgather_coalesced",
                         "allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
                         "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base")),
        (_pass_messages_to_gloo, ("send", "recv", "recv_anysource")),
        (_pass_on, ("monitored_barrier", "_set_sequence_number_for_group", "_get_sequence_number_for_group"))):
    for _method in _methods:
        if hasattr(_c10d.ProcessGroupGloo, _method):
            setattr(SwitchMLGroup, _method, _pass(_method))


def _group_of(group):
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    if not isinstance(group, SwitchMLGroup):
        raise TypeError("this process group is not one of backend switchml")
    return group


def stats(group=None):
    """Counters of a group (default: the world), from this rank's side. offloaded_calls: completed through
    SwitchML; fallback_calls: eligible, but by Gloo; max_in_flight: most calls under way at once; the rest is
    libswitchml's sml_stats. With no job (yet) only the first few are there."""
    group = _group_of(group)
    if group._offload is None:
        return {"offloaded_calls": 0, "fallback_calls": group._num_gloo_allreduces, "failed_calls": 0,
                "max_in_flight": 0}
    return group._offload.stats()


def error(group=None):
    """The SwitchMLError that a group failed with (status, ranks, operation), or None."""
    return getattr(_group_of(group)._offload, "error", None)


def set_lease(seconds):
    """After so many seconds of silence a rank, or the aggregator, counts as lost, in groups made from here on. Instead of
    SWITCHML_LEASE in the environment; the same on all ranks."""
    if not 0.02 <= seconds <= 3600:
        raise ValueError(f"a lease has 0.02 to 3600 seconds, not {seconds}")
    os.environ["SWITCHML_LEASE"] = f"{seconds:.9g}"


def dump_trace(path):
    """Writes what this process's flight recorders hold, the last events of each engine thread and job, to a file for
    `switchml trace`. At any time, from any thread, also while collectives hang: on a signal, or from a watchdog."""
    if Process.context is None:
        raise SwitchMLError("nothing is recorded yet: no group of this process has called SwitchML")
    status = Process.library.sml_context_dump_trace(Process.context, os.fsencode(path))
    if status != 0:
        raise thread_error(Process.library, status)


dist.Backend.register_backend("switchml", SwitchMLGroup,
                              **({"devices": ["cpu"]} if int(torch.__version__.split(".")[0]) >= 2 else {}))
