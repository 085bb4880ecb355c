# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend `switchml`: collectives by in-network aggregation.

    import switchml.torch
    torch.distributed.init_process_group("switchml")

All-reduce of dense tensors, on the CPU or a GPU, goes through libswitchml, of the types and reductions that take no more
bytes there than by Gloo (job.py), and of float64 where SWITCHML_FLOAT64_BITS or SWITCHML_EXACT asks for it; so do, on the CPU,
what has a sum in it or can be one, and is no faster elsewhere: reduce-scatter and reduce of these, broadcast, barrier (README.md has
the rules). Every other collective goes to a Gloo group inside. Which way a call goes depends only on facts that are equal on all ranks:
type, reduction, number of elements, group size, and the settings the ranks exchanged when the group was made. Plain
Python over the C library (ctypes), for torch 1.13 and 2.x alike.

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
import functools
import inspect
import os
import sys
import weakref

import torch
import torch.distributed as dist

if not dist.is_available():
    raise ImportError("switchml.torch: this PyTorch was built without torch.distributed")
from torch._C import _distributed_c10d as _c10d  # noqa: E402
from . import devices, gloo, staging, works  # noqa: E402
from .api import SML_SUM  # noqa: E402
from .calls import Calls, check_detail  # noqa: E402
from .hook import DDPHookState, ddp_hook  # noqa: E402,F401  # pylint: disable=unused-import
from .job import reduction_for  # noqa: E402
from .library import SwitchMLError, thread_error  # noqa: E402
from .offload import Offload  # noqa: E402
from .parts import AllGather, ReduceScatter, gathered, of_root, own_part  # noqa: E402
from .process import Process  # noqa: E402
from .record import record  # noqa: E402,F401  # pylint: disable=unused-import
from .settings import Exchange, agree  # noqa: E402
from .store import Own  # noqa: E402

ReduceOp = dist.ReduceOp
# Up to so many ranks Gloo's broadcast, a tree, takes no more bytes of a link nor rounds than a sum; and its barrier, which
# is the logarithm of their number in rounds, no more rounds.
_GLOO_BROADCAST, _GLOO_BARRIER = 2, 4
_IS_TORCH_2 = int(torch.__version__.split(".", maxsplit=1)[0]) >= 2

# Torch 1's Gloo group does the same by itself.
_plain = gloo.plain if _IS_TORCH_2 else lambda value: value

# torch's own functions, which wait at once for the Work that they get, unless their caller asked for it.
_WAITING_CALLERS = {inspect.unwrap(getattr(dist, name)).__code__
                    for name in ("all_reduce", "all_reduce_coalesced", "reduce_scatter", "reduce_scatter_tensor",
                                 "reduce_scatter_single", "all_gather", "all_gather_into_tensor", "all_gather_single", "reduce",
                                 "broadcast", "barrier") if hasattr(dist, name)}


def _caller():
    """The frame of whoever called this package; None on a thread of C++'s."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back
    return frame


def _is_waited_for(frame):
    """Whether the caller waits for the Work, and gives it to nobody: not to C++ (DDP) above all."""
    return frame is not None and frame.f_code in _WAITING_CALLERS and not frame.f_locals.get("async_op", True)


def _is_cpp(frame):
    """Whether the caller may be C++, which then waits without this package's Work.wait()."""
    return frame is None or frame.f_globals is not vars(dist.distributed_c10d)


class SwitchMLGroup(dist.ProcessGroup):
    """A torch.distributed process group: sums through SwitchML, everything else through Gloo."""

    def __init__(self, store, rank, size, timeout, others=None):
        super().__init__(rank, size)
        self.others = others or {}  # by kind of device: the backend that has its tensors, and that one's name
        self._pid = os.getpid()
        store = _c10d.PrefixStore("switchml", store)
        exchange = Exchange(_c10d.PrefixStore("settings", store), rank, size, timeout.total_seconds())
        self._own_store = Own(store, rank, size)
        self._own_store.offer()
        why_off, is_required, self._has_float64, self._has_one_way, addresses = agree(exchange)
        own = self._own_store.take()
        self._inner = gloo.make_group(_c10d.PrefixStore("other", store), rank, size, timeout, addresses)
        self._calls = Calls(_c10d.PrefixStore("calls", own), rank, size, self._inner)
        if _IS_TORCH_2:
            devices.register(self, self._inner, self.others)
        self._checker = None
        if dist.get_debug_level() == dist.DebugLevel.DETAIL:
            self._checker = gloo.make_group(_c10d.PrefixStore("checker", store), rank, size, timeout, addresses)
        self._timeout = timeout
        self._offload, self._finisher, self._num_by_gloo = None, works.Finisher(), 0
        self._range_finisher = works.Finisher()  # of its own: it waits for what the other one ends
        weakref.finalize(self, self._range_finisher.close).atexit = False
        self._kept = {}     # CppWorks
        self._range = None  # works of the calls within start_coalescing() and end_coalescing()
        weakref.finalize(self, self._calls.by_gloo.clear).atexit = False  # no watch does it for a group of one rank
        weakref.finalize(self, gloo.rest).atexit = False
        weakref.finalize(self, self._finisher.close).atexit = False
        if not why_off:
            self._offload = Offload(own, rank, size, timeout, is_required, self._calls)
            self._calls.offload = weakref.ref(self._offload)
            weakref.finalize(self, self._offload.close).atexit = False

    def getBackendName(self):  # pylint: disable=invalid-name  # torch's name for it
        return "switchml"

    name = getBackendName

    def _set_group_name(self, name):
        super()._set_group_name(name)  # where C++ finds it
        self.group_name = name

    group_name = ""

    def _gloo(self):
        """The inner group, unless this group has failed: then nothing may pretend to work."""
        if os.getpid() != self._pid:
            raise SwitchMLError("this process group belongs to the parent of this forked process", "forked")
        if self._offload is not None:
            self._offload.raise_if_failed()
        self._calls.raise_if_failed()
        return self._inner

    def _number(self, name, tensors=(), reduction=None, root=None):
        """A collective begins; what it is, for the other ranks."""
        called = self._calls.next(name, tensors, reduction, root)
        if self._checker is not None:  # TORCH_DISTRIBUTED_DEBUG=DETAIL
            check_detail(self._checker, called, self._timeout)
        return called

    def _get_sequence_number_for_group(self):
        return self._calls.number

    def _set_sequence_number_for_group(self):
        """It begins with 0 on all ranks."""

    def allreduce(self, tensors, opts=None, op=None):
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if isinstance(opts, type(ReduceOp.SUM)) or (opts is None and op is not None):
            op, opts = op or opts, _c10d.AllreduceOptions()
            opts.reduceOp = op
        return self._allreduce("allreduce", tensors, opts or _c10d.AllreduceOptions(), len(tensors) == 1)

    def allreduce_coalesced(self, tensors, opts=None):
        return self._allreduce("allreduce_coalesced", tensors, opts or _c10d.AllreduceCoalescedOptions(), True)

    def _allreduce(self, method, tensors, opts, is_one_each):
        """is_one_each: every tensor is summed with its like of the other ranks, not with its neighbours."""
        if any(map(gloo.stands_for_another, tensors)):
            if not _IS_TORCH_2:  # it notes the call in a graph, and calls here again with the other
                return getattr(super(), method)(tensors, opts)
            tensors = gloo.plain(tensors)
        inner, op = self._gloo(), opts.reduceOp
        reduction = reduction_for(tensors, op, self._has_float64) if is_one_each else None
        if reduction is not None:
            gloo.check_written(tensors, "all-reduce")
            called = self._number("all_reduce", tensors, op)
            if self._offload is not None:
                return self._by_switchml(tensors, reduction, called, tensors)
            self._num_by_gloo += 1
            if tensors[0].dtype is torch.bool:
                opts.reduceOp = gloo.options(reduction).reduceOp
        else:
            for tensor in tensors:
                gloo.check_reduction(tensor.dtype, op, "all-reduce")
            gloo.check_written(tensors, "all-reduce")
            called = self._number("all_reduce", tensors, op)
        return self._reduce_by_gloo(getattr(inner, method), list(tensors), opts, True, called)

    def _by_switchml(self, parts, reduction, called, result, given=None):
        """A call on tensors, or parts. A profiler shows it from here to its end, under the name that Gloo's would have, with
        the shapes of what is given, unless that is the result. It ends on another thread than this one then, as Gloo's does."""
        if torch.autograd._profiler_enabled():
            record = torch._C._autograd._record_function_with_args_enter(f"{self.getBackendName()}:{called.name}",
                                                                         *(given or result))
            return self._handed_out(self._offload.submit_recorded(parts, reduction, called, result, record))
        is_waited_for = _is_waited_for(_caller())
        work = self._offload.submit(parts, reduction, called, is_waited_for, result)
        return work if is_waited_for else self._handed_out(work)

    def _is_ours(self, tensors, is_eligible):
        """Whether a collective that is no all-reduce goes through SwitchML: of dense tensors of the CPU."""
        is_ours = is_eligible and all(
            tensor.layout == torch.strided and tensor.device.type == "cpu" and not staging.is_staged(tensor)
            and not tensor.is_quantized and not gloo.stands_for_another(tensor) for tensor in tensors)
        if is_ours and self._offload is None:
            self._num_by_gloo += 1
        return is_ours and self._offload is not None

    def _is_one_of(self, tensors, root, opts):
        """Whether there is one tensor, and such a root. Gloo refuses others."""
        return len(tensors) == 1 and 0 <= root < self.size() and getattr(opts, "rootTensor", 0) == 0

    def _reduction_of_ours(self, tensors, op):
        reduction = reduction_for(tensors, op, self._has_float64)
        return reduction if self._is_ours(tensors, reduction is not None) else None

    def _take_reduce_scatter(self, outputs, inputs, opts=None):
        """None: it is Gloo's, which sums all parts, or does nothing."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        outputs, inputs, op = _plain(outputs), _plain(inputs), getattr(opts, "reduceOp", opts or ReduceOp.SUM)
        given = list(gloo.tensors_in(inputs))
        reduction = self._reduction_of_ours([*given, *outputs], op)
        if reduction is None:
            return None
        gloo.check_written(outputs, "reduce_scatter")
        parts = [own_part(output, each, self.rank(), self.size()) for output, each in zip(outputs, inputs)]
        called = self._number("reduce_scatter", given, op)
        return self._by_switchml(parts, reduction, called, list(outputs), given)

    def _take_all_gather(self, outputs, inputs, _opts=None):
        """None: it is Gloo's, whose ring takes (n-1)/n of what a sum does, which interleaves lists of several tensors, and
        says what is wrong with lists. With one-way windows it takes as much of a link downwards, and 1/n upwards."""
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        lists = [list(gloo.tensors_in([_plain(each)])) for each in outputs]
        given, results = _plain(inputs), [each for outputs_of in lists for each in outputs_of]
        has_lists = not all(isinstance(each, torch.Tensor) for each in outputs)
        is_plain = len(given) == len(lists) > 0 and (not has_lists or len(given) == 1 and len(results) == self.size() and all(
            (each.dtype, each.shape) == (given[0].dtype, given[0].shape) for each in results))
        if not self._is_ours([*given, *results], self._has_one_way and is_plain):
            return None
        gloo.check_written(results, "all_gather")
        parts = [gathered(each, own, self.rank(), self.size()) for each, own in zip(lists, given)]
        return self._by_switchml(parts, SML_SUM, self._number("all_gather", given), gloo.future_value(outputs), given)

    def _take_broadcast(self, tensors, opts=None):
        """None: it is Gloo's."""
        tensors = _plain([tensors] if isinstance(tensors, torch.Tensor) else tensors)
        root = getattr(opts, "rootRank", opts or 0)
        if not self._is_one_of(tensors, root, opts) or not self._is_ours(
                tensors, self.size() > _GLOO_BROADCAST or not gloo.takes(tensors[0].dtype)):
            return None
        gloo.check_written(tensors, "broadcast")
        called = self._number("broadcast", tensors, root=root)
        part = of_root(AllGather, tensors[0], root, self.rank(), self.size())
        return self._by_switchml([part], SML_SUM, called, list(tensors))

    def reduce(self, tensors, opts=None, op=None, root=None):
        if isinstance(tensors, torch.Tensor):
            tensors, root, opts = [tensors], opts if root is None else root, _c10d.ReduceOptions()
            opts.rootRank, opts.reduceOp = root, op or ReduceOp.SUM
        inner, tensors, opts = self._gloo(), _plain(tensors), opts or _c10d.ReduceOptions()
        is_one = self._is_one_of(tensors, opts.rootRank, opts)
        reduction = self._reduction_of_ours(tensors, opts.reduceOp) if is_one else None
        if reduction is not None:
            gloo.check_written(tensors, "reduce")
            called = self._number("reduce", tensors, opts.reduceOp, opts.rootRank)
            part = of_root(ReduceScatter, tensors[0], opts.rootRank, self.rank(), self.size())
            return self._by_switchml([part], reduction, called, list(tensors))
        for tensor in tensors:
            gloo.check_reduction(tensor.dtype, opts.reduceOp, "reduce")
        gloo.check_written(tensors, "reduce")
        called = self._number("reduce", tensors, opts.reduceOp, opts.rootRank)
        return self._reduce_by_gloo(inner.reduce, list(tensors), opts, opts.rootRank == self.rank(), called)

    def _reduce_by_gloo(self, method, tensors, opts, is_result_here, called):
        divisor = 1
        if opts.reduceOp == ReduceOp.AVG:  # Gloo has no average
            opts.reduceOp, divisor = ReduceOp.SUM, self.size() if is_result_here else 1

        def begin():
            copies = []
            dense = [gloo.taken(tensor, copies) for tensor in gloo.contiguous(tensors, copies)]
            return method(dense, opts), copies, dense if divisor > 1 else (), divisor
        return self._by_gloo(begin, tensors, tensors, called)

    def _by_gloo(self, begin, result, tensors, called):
        """A collective that Gloo does, after all that was called before it. begin() calls Gloo, and returns its Work and
        what is left to do when that has ended: copies to put back in place, sums to divide into averages, by what. result:
        what a future of it has; tensors: all that it reads or writes."""
        streams = staging.follow(list(tensors))

        def begin_and_remember():
            with staging.as_current(streams()):
                work, copies, divided, divisor = begin()
            works.watch_wait(work, self._calls)
            self._calls.is_with_gloo(called, work)
            gloo.remember([*tensors, *divided, *(copy for _, copy in copies)])

            def finish():
                for tensor in divided:
                    if divisor > 1:
                        tensor.detach().div_(divisor)
                for tensor, copy in reversed(copies):  # a later one may be of an earlier one
                    tensor.detach().copy_(copy)
                staging.keep_on_up_streams([copy for _, copy in copies])
            return work, finish if copies or divided else None

        if self._offload is not None:
            self._offload.hasten()  # also if it has no calls now, because another rank's may have
        if self._offload is not None and self._offload.calls:
            return self._handed_out(self._offload.put_behind(begin_and_remember, result, self._finisher, called))
        work, finish = begin_and_remember()
        is_behind = called.name == "barrier" and self._finisher.is_busy()  # what is left to do after Gloo's calls before it
        if finish is not None or is_behind or _is_cpp(_caller()):
            promise = works.Promise(result)
            self._finisher.add(work, finish, promise)
            work = promise.work()
        return self._handed_out(work)

    def barrier(self, opts=None):
        inner, called = self._gloo(), self._number("barrier")
        if self._offload is not None and self.size() > _GLOO_BARRIER:
            word = [torch.zeros(1, dtype=torch.int32)]
            if not (self._offload.has_steps() or self._calls.under_way() or self._finisher.is_busy()):
                work = self._by_switchml(word, SML_SUM, called, [])
                self._offload.hasten()  # as put_behind() does, perhaps on another rank
                return work
            self._offload.submit(word, SML_SUM, called)
            return self._handed_out(self._offload.put_behind(lambda: (works.All(self._calls.under_way()), None), (),
                                                             self._finisher, called))
        return self._by_gloo(lambda: (inner.barrier(opts or _c10d.BarrierOptions()), (), (), 1), (), (), called)

    def monitored_barrier(self, timeout=None, *arguments, **keywords):
        inner, timeout = self._gloo(), timeout or self._timeout
        if self._offload is not None:
            self._offload.wait_for_all(timeout.total_seconds())
            self._gloo()  # they may have failed
        return inner.monitored_barrier(timeout, *arguments, **keywords)  # which returns when it has ended

    def alltoall(self, outputs, inputs, opts=None):
        """By the one all-to-all that Gloo has, of two long tensors."""
        inner, outputs, inputs = self._gloo(), _plain(outputs), _plain(inputs)
        for tensor in [*outputs, *inputs]:
            gloo.check_type(tensor.dtype, "alltoall")
        if len(outputs) != self.size() or len(inputs) != self.size():
            raise RuntimeError("switchml: alltoall takes one tensor for each rank, and one from each")
        gloo.check_written(outputs, "alltoall")
        called = self._number("all_to_all")

        def begin():
            dense = torch.cat([tensor.detach().reshape(-1) for tensor in inputs])
            received = dense.new_empty(sum(tensor.numel() for tensor in outputs))
            parts = received.split([tensor.numel() for tensor in outputs])
            work = inner.alltoall_base(received, dense, [tensor.numel() for tensor in outputs],
                                       [tensor.numel() for tensor in inputs], opts or _c10d.AllToAllOptions())
            return work, [(tensor, part.view(tensor.shape)) for tensor, part in zip(outputs, parts)], (), 1
        return self._by_gloo(begin, list(outputs), [*outputs, *inputs], called)

    # Ranges of calls that torch brackets (_coalescing_manager): small all-reduces in one share packets.
    def _coalesce(self, is_begin):
        self._gloo()
        if self._offload is not None:
            self._offload.coalesce(is_begin)

    def _start_coalescing(self, *_device):
        self._coalesce(True)
        self._range = []

    def _end_coalescing(self, *_works):
        """A Work for all calls of the range."""
        self._coalesce(False)
        ended, self._range = self._range or [], None
        work = ended[0] if len(ended) == 1 else works.all_of(ended, self._range_finisher)
        return works.CppWork(work, self._kept) if _is_cpp(_caller()) else work

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing  # the names from torch 2.14 on

    def _handed_out(self, work):
        if self._range is not None:
            self._range.append(work)
        return works.CppWork(work, self._kept) if _is_cpp(_caller()) else work


def _in_order(arguments, keywords):
    """All arguments of a call by place: results, inputs, and the rest, as c10d's methods have them."""
    ranks = {"ou": 0, "te": 0, "in": 1}
    return [*arguments, *(keywords[key] for key in sorted(keywords, key=lambda key: ranks.get(key[:2], 2)))]


def _pass_to_gloo(method, name, gloos):
    """name: what the other ranks may call it, too, and it still is the same; gloos: Gloo's names for the method."""
    def call(self, *arguments, **keywords):
        inner, take = self._gloo(), getattr(self, f"_take_{name}", None) if method != "allgather_coalesced" else None
        work = take(*_in_order(arguments, keywords)) if take is not None else None
        if work is not None:
            return work
        arguments, keywords = _plain(arguments), {key: _plain(value) for key, value in keywords.items()}
        tensors = list(gloo.tensors_in([arguments, list(keywords.values())]))
        for tensor in tensors:
            gloo.check_type(tensor.dtype, method.strip("_"))
        outputs = arguments[0] if arguments else next(iter(keywords.values()))
        gloo.check_written(gloo.tensors_in(outputs), method.strip("_"))
        root = next((value.rootRank for value in [*arguments, *keywords.values()] if hasattr(value, "rootRank")),
                    keywords.get("root"))
        called = self._number(name, root=root)

        def begin():
            copies = []
            dense = [gloo.contiguous(value, copies if value is outputs else []) for value in arguments]
            named = {key: gloo.contiguous(value, copies if value is outputs else []) for key, value in keywords.items()}
            own = next((each for each in gloos if hasattr(inner, each)), None)
            gloos_own = getattr(inner, own) if own else getattr(devices.torchs_group(inner), method)
            return gloos_own(*dense, **named), copies, (), 1
        return self._by_gloo(begin, gloo.future_value(outputs), tensors, called)
    call.__name__ = method
    return call


def _pass_messages_to_gloo(method):
    """Messages between two ranks wait for no collective, which may wait for them. They want contiguous tensors, of any
    type: Gloo sends bytes."""
    def call(self, tensors, *arguments):
        inner, tensors = self._gloo(), _plain(tensors)
        gloo.remember(tensors)
        return getattr(inner, method)(tensors, *arguments)
    call.__name__ = method
    return call


# Torch's names of one thing, older and newer.
_COLLECTIVES = set()
for _name, _methods in (
        ("broadcast", ("broadcast",)), ("gather", ("gather",)), ("gather", ("gather_single",)), ("scatter", ("scatter",)),
        ("all_gather", ("allgather",)), ("all_gather", ("_allgather_base", "all_gather_single")),
        ("all_gather", ("allgather_coalesced",)),
        ("all_gather", ("allgather_into_tensor_coalesced", "all_gather_single_coalesced")),
        ("reduce_scatter", ("reduce_scatter",)), ("reduce_scatter", ("_reduce_scatter_base", "reduce_scatter_single")),
        ("reduce_scatter", ("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced")),
        ("all_to_all", ("alltoall_base", "all_to_all_single"))):
    for _method in _methods:
        if any(hasattr(each, _method) for each in (_c10d.ProcessGroupGloo, dist.ProcessGroup)) or any(
                hasattr(_c10d.ProcessGroupGloo, each) for each in _methods):
            setattr(SwitchMLGroup, _method, _pass_to_gloo(_method, _name, _methods))
            _COLLECTIVES.add(_method)
for _method in "send", "recv", "recv_anysource":
    setattr(SwitchMLGroup, _method, _pass_messages_to_gloo(_method))


def _monitored_barrier(group=dist.group.WORLD, timeout=None, wait_all_ranks=False):
    """torch's own, which asks for the name of the backend first."""
    ours = group if group is not None else dist.distributed_c10d._get_default_group()
    if not isinstance(ours, SwitchMLGroup):
        return _torch_monitored_barrier(group, timeout, wait_all_ranks)
    return ours.monitored_barrier(ours._timeout if timeout is None else timeout, wait_all_ranks=wait_all_ranks)


_torch_monitored_barrier = dist.monitored_barrier
dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = functools.wraps(dist.monitored_barrier)(
    _monitored_barrier)


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
        return {"offloaded_calls": 0, "fallback_calls": group._num_by_gloo, "failed_calls": 0,
                "max_in_flight": 0}
    return group._offload.stats()


def error(group=None):
    """The SwitchMLError that a group failed with (status, ranks, operation), or None."""
    group = _group_of(group)
    return getattr(group._offload, "error", None) or group._calls.error


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


_GroupOfDevices = devices.dispatching(SwitchMLGroup, [name for name in vars(SwitchMLGroup) if name in {
    "allreduce", "allreduce_coalesced", "reduce", "send", "recv", "recv_anysource", "alltoall", "_start_coalescing",
    "_end_coalescing", "start_coalescing", "end_coalescing"} | set(_COLLECTIVES)])


def _make_group(store, rank, size, timeout):
    others = devices.make_others("switchml", store, rank, size, timeout) if _IS_TORCH_2 else {}
    return (_GroupOfDevices if others else SwitchMLGroup)(store, rank, size, timeout, others)


dist.Backend.register_backend("switchml", _make_group, **({"devices": ["cpu", "cuda"]} if _IS_TORCH_2 else {}))
