# SPDX-License-Identifier: Apache-2.0
"""The torch.distributed backend `switchml`: all-reduce by in-network aggregation.

    import switchml.torch
    torch.distributed.init_process_group("switchml")

All-reduce of dense CPU float32 (SUM, AVG) and int32 (SUM) tensors goes through libswitchml; every other
collective goes to a Gloo group inside. Which way a call goes depends only on facts that are equal on all
ranks: type, reduction, number of elements, group size, and the settings the ranks exchanged when the
group was made. Plain Python over the C library (ctypes), for torch 1.13 and 2.x alike.

Environment
  SWITCHML_AGGREGATOR  host:port of a switchmld, or several with commas between them; unset: the ranks aggregate
  SWITCHML_INTERFACE   then: the network interfaces at which they may reach each other, "eth0,eth1"; unset: any
  SWITCHML_REQUIRE=1   an eligible call that cannot go through SwitchML is an error, never Gloo
  SWITCHML_DISABLE=1   everything goes through Gloo
  SWITCHML_LIBRARY     path of libswitchml.so, if it is not where the build or the system puts it;
                       SWITCHML_RETRY, _CHECK, _KEY_FILE, _KEY_NAME, _SHARED_MEMORY: see README.md

A group joins its job at its first eligible call. Submission returns at once; a thread of the group
waits for its operations in their order and completes the torch futures. Callbacks added to such a
future run on that thread: they must not wait for a later operation of the same group.
"""
import atexit
import collections
import ctypes
import datetime
import json
import os
import secrets
import threading
import time
import warnings
import weakref

import torch
import torch.distributed as dist

if not dist.is_available():
    raise ImportError("switchml.torch: this PyTorch was built without torch.distributed")
from torch._C import _distributed_c10d as _c10d  # noqa: E402
from . import gloo  # noqa: E402
from .library import (Error, JobOptions, MAX_NAMED_RANKS, Stats, SwitchMLError, described_error,  # noqa: E402
                      load_library, sized, thread_error)

ReduceOp = dist.ReduceOp

_BUSY = -4
_IN_PROGRESS = 1
_SML_TYPE = {torch.float32: 0, torch.int32: 1}
_NS = 1_000_000_000
_JOIN_TIMEOUT_S = 60  # every rank is known to be there when the join starts
_EXIT_GRACE_S = 1     # for operations still outstanding when the script ends
_LEAVE_S = 6          # and, with nothing outstanding, until others have what this rank adds up for them
_SETTLE_S = 5
_BATCH_TENSORS = 64   # at most, between sml_batch_begin and _end: a small part of what a context has room for


class _Process:
    """What the groups of one process share: the library, one context, and the list of their threads."""
    lock = threading.RLock()
    library, context = None, None
    threads = weakref.WeakSet()

    @classmethod
    def load(cls):
        with cls.lock:
            cls.library = cls.library or load_library()
            return cls.library

    @classmethod
    def open_context(cls):
        with cls.lock:
            library = cls.load()
            if cls.context is None:
                context = ctypes.c_void_p()
                status = library.sml_context_create(None, ctypes.byref(context))
                if status != 0:
                    raise thread_error(library, status)
                cls.context = context
            return cls.context

    @classmethod
    def forked(cls):
        """In the child: nothing of the parent's is its own, but it may make groups of its own."""
        cls.lock, cls.context, cls.threads = threading.RLock(), None, weakref.WeakSet()

    @classmethod
    def at_exit(cls):
        """Ends the groups that the script left open. Every wait in here is short; threads are daemons."""
        threads = list(cls.threads)
        for act in (_Thread.close, _Thread.abandon):
            for thread in threads:
                act(thread)
            deadline = time.monotonic() + _EXIT_GRACE_S
            have_ended = [thread.join(deadline - time.monotonic()) for thread in threads]
            deadline += _LEAVE_S
            have_ended = [has_ended or thread.is_leaving and thread.join(deadline - time.monotonic())
                          for has_ended, thread in zip(have_ended, threads)]
        if cls.context is not None and all(have_ended):
            cls.library.sml_context_destroy(cls.context)
            cls.context = None
        gloo.end()


class _Thread:
    """A group's daemon thread over a queue of its own, started by the first thing to do."""

    def __init__(self):
        self.pid, self.thread, self.is_closing, self.is_leaving = os.getpid(), None, False, False
        self.changed = threading.Condition(threading.RLock())  # reentrant: a finalizer may run anywhere
        _Process.threads.add(self)

    def start(self):
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="switchml", daemon=True)
            self.thread.start()
        self.changed.notify_all()

    def close(self):
        """What was submitted is still completed; then the thread ends."""
        if os.getpid() == self.pid:
            with self.changed:
                self.is_closing = True
                self.changed.notify_all()

    def abandon(self):
        """Nothing that is outstanding is waited for any longer."""

    def join(self, timeout_s):
        if self.thread is not None:
            self.thread.join(max(timeout_s, 0.001))
        return not (self.thread and self.thread.is_alive())

    def _next(self, items):
        """The oldest item, left where it is; None when it is time to end."""
        with self.changed:
            while not items and not self.is_closing:
                self.changed.wait()
            return items[0] if items else None


# ---- What ranks tell each other before there is a job --------------------------------------------------

class _Exchange:
    """All-gather of small byte strings over the group's store. It polls: a blocking wait would hold the
    lock of the store's only connection, and with it every other user of the store in this process."""

    def __init__(self, store, rank, size, timeout_s):
        self.store, self.rank, self.size, self.timeout_s = store, rank, size, timeout_s
        self.num_rounds = 0
        self.is_cancelled = False
        self.error = None

    def gather(self, data):
        base = f"{self.num_rounds}/"
        self.num_rounds += 1
        self.store.set(base + str(self.rank), data.hex())
        self.store.add(base + "n", 1)
        deadline, pause_s = time.monotonic() + self.timeout_s, 0.0005
        while self.store.add(base + "n", 0) < self.size:
            if self.is_cancelled:
                raise SwitchMLError("the process is ending")
            if time.monotonic() > deadline:
                raise SwitchMLError(f"not all {self.size} ranks of the group made this call within its timeout of "
                                    f"{self.timeout_s:g} s; do all ranks make the same collective calls?")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)
        gathered = [bytes.fromhex(self.store.get(base + str(rank)).decode()) for rank in range(self.size)]
        self.store.add(base + "read", 1)
        return gathered

    def settle(self):
        """Before an error that may end this process, and with it the store: lets the others read, too."""
        deadline = time.monotonic() + _SETTLE_S
        try:
            while (self.store.add(f"{self.num_rounds - 1}/read", 0) < self.size and time.monotonic() < deadline):
                time.sleep(0.002)
        except RuntimeError:
            pass  # the store is gone already

    def callback(self):
        """This exchange as switchml.h's sml_allgather_fn."""
        def allgather(_user, data_in, data_out, num_bytes):
            try:
                gathered = self.gather(ctypes.string_at(data_in, num_bytes))
                if any(len(data) != num_bytes for data in gathered):
                    raise SwitchMLError("ranks sent different amounts in the exchange before the join; "
                                        "do all ranks run the same version of SwitchML?")
                ctypes.memmove(data_out, b"".join(gathered), num_bytes * self.size)
                return 0
            except Exception as error:  # pylint: disable=broad-except  # must not leave through C
                self.error = error
                return 1
        return JobOptions.ALLGATHER(allgather)


def _agree(exchange):
    """Whether the group offloads, the same on all its ranks: (why it does not or "", whether it must); and the ranks'
    addresses on the way to rank 0's host."""
    problem = ""
    try:
        _Process.load()
    except SwitchMLError as load_error:
        problem = str(load_error)
    mine = {"disable": _is_set("SWITCHML_DISABLE"), "require": _is_set("SWITCHML_REQUIRE"),
            "aggregator": os.environ.get("SWITCHML_AGGREGATOR", ""), "problem": problem,
            "address": gloo.own_address(os.environ.get("MASTER_ADDR", "localhost"))}
    ranks = [json.loads(data) for data in exchange.gather(json.dumps(mine).encode())]
    is_required, why_off = any(rank["require"] for rank in ranks), _why_off(ranks)
    if why_off and is_required:
        exchange.settle()
        raise SwitchMLError(f"SWITCHML_REQUIRE=1, but {why_off}")
    if why_off and exchange.rank == 0 and not any(rank["disable"] for rank in ranks):
        warnings.warn(f"switchml: all-reduce goes through Gloo: {why_off}", RuntimeWarning, stacklevel=4)
    return why_off, is_required, [rank["address"] for rank in ranks]


def _why_off(ranks):
    def those(test):
        found = [str(number) for number, rank in enumerate(ranks) if test(rank)]
        return "all ranks" if len(found) == len(ranks) else "rank " + ", ".join(found[:MAX_NAMED_RANKS])
    if any(rank["disable"] for rank in ranks):
        return f"SWITCHML_DISABLE=1 is set on {those(lambda rank: rank['disable'])}"
    for number, rank in enumerate(ranks):
        if rank["problem"]:
            return f"on rank {number} {rank['problem']}"
    if len({rank["aggregator"] for rank in ranks}) > 1:
        return ("SWITCHML_AGGREGATOR is not what it is on rank 0 on "
                + those(lambda rank: rank["aggregator"] != ranks[0]["aggregator"])
                + "; set it to the same on all ranks, or on none")
    return ""


def _is_set(name):
    return os.environ.get(name, "0").lower() not in ("", "0", "no", "false", "off")


# ---- The asynchronous path -----------------------------------------------------------------------------

class _Part:
    """One tensor of a call: what the library reads and writes. Lent to it until the operation ended."""

    def __init__(self, tensor):
        self.tensor = tensor.detach()
        self.buffer = self.tensor.resolve_neg().contiguous()
        self.handle = None

    def copy_back(self):
        if self.buffer.data_ptr() != self.tensor.data_ptr():
            self.tensor.copy_(self.buffer)


class _Promise:
    """A torch future, and the Work made of it, that this file ends."""
    of_work = weakref.WeakKeyDictionary()

    def __init__(self, result):
        self.result, self.error = result, None
        self.ended = torch.futures.Future()
        # An exception only becomes the future's own error, for C++ (DDP) too, by leaving a callback.
        self.future = self.ended.then(self._outcome)

    def _outcome(self, _ended=None):
        if self.error is not None:
            raise self.error
        return self.result

    def work(self):
        work = _c10d._create_work_from_future(self.future)
        self.of_work[work] = self
        return work

    def hasten(self):
        """Somebody is about to wait."""


def _wait_and_raise(work, *arguments, **keywords):
    """Work.wait() for works made of futures: torch's own forgets to raise the future's error."""
    if work in _Promise.of_work:
        _Promise.of_work[work].hasten()
    result = _torch_wait(work, *arguments, **keywords)
    if work in _Promise.of_work:
        _Promise.of_work[work]._outcome()
    return result


_torch_wait, _c10d.Work.wait = _c10d.Work.wait, _wait_and_raise


class _Finisher(_Thread):
    """Does what is left to do after Gloo calls. Not on Gloo's own threads: Python code on a thread that
    outlives the interpreter crashes the process."""

    def __init__(self):
        super().__init__()
        self.items = collections.deque()

    def add(self, work, result, function):
        promise = _Promise(result)
        with self.changed:
            self.items.append((work, function, promise))
            self.start()
        return promise.work()

    def _run(self):
        with torch.no_grad():
            while self._next(self.items):
                work, function, promise = self.items.popleft()
                try:
                    work.wait()
                    function()
                except Exception as problem:  # pylint: disable=broad-except  # the future must end
                    promise.error = problem
                promise.ended.set_result(None)
                del work, function, promise


class _Call(_Promise):
    """One all-reduce call: one tensor, or a coalesced list of them."""

    def __init__(self, offload, tensors, is_average):
        super().__init__(tensors)
        self.offload, self.is_average = offload, is_average
        self.parts = [_Part(tensor) for tensor in tensors]
        self.num_called = 0     # parts handed to the library, in order
        self.num_submitted = 0  # of them, that no open batch holds
        self.uses_gloo = False

    def hasten(self):
        if self.offload.is_coalescing:
            self.offload.hasten(self)


class _Edge:
    """Among the calls: a range of coalesced ones begins or ends here."""

    def __init__(self, is_begin):
        self.is_begin = is_begin


class _Offload(_Thread):
    """The SwitchML side of one group: its job, its calls in order, and the thread that completes them."""

    def __init__(self, store, rank, size, timeout, is_required):
        super().__init__()
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.is_required = is_required
        self.exchange = _Exchange(_c10d.PrefixStore("job", store), rank, size, timeout.total_seconds())
        self.calls = collections.deque()      # not ended, oldest first
        self.unsubmitted = collections.deque()  # the newest of them: not all parts are with the library; and edges
        self.is_coalescing, self.is_in_range = False, False  # as the script goes, and as the library is called
        self.batch = None                     # the calls of the parts in the library's open batch
        self.library, self.job = None, None
        self.gloo = None                      # stands in when the job could not be had, or for huge tensors
        self.error = None                     # the first failure; every later call gets it
        self.counters = {"offloaded_calls": 0, "fallback_calls": 0, "failed_calls": 0, "max_in_flight": 0}
        self.last_stats = {}

    def submit(self, tensors, is_average):
        call = _Call(self, tensors, is_average)
        with self.changed:
            self.raise_if_failed()
            if self.is_closing:
                raise SwitchMLError("the process group has been destroyed")
            self.calls.append(call)
            self.unsubmitted.append(call)
            self._submit_ready()
            self.start()
        return call.work()

    def coalesce(self, is_begin):
        """From here on calls share packets, or no longer. On all ranks alike, as the calls."""
        with self.changed:
            if self.is_coalescing != is_begin:
                self.is_coalescing = is_begin
                self.unsubmitted.append(_Edge(is_begin))
                self._submit_ready()

    def hasten(self, call):
        """A wait within a range ends it for the calls so far: they would wait for each other otherwise."""
        with self.changed:
            if self.is_coalescing and call.num_submitted < len(call.parts):
                self.coalesce(False)
                self.coalesce(True)

    def close(self):
        if os.getpid() == self.pid:
            self.coalesce(False)
        super().close()

    def raise_if_failed(self):
        if self.error is not None:
            raise SwitchMLError(f"the group failed before: {self.error}", self.error.status, self.error.ranks,
                                self.error.operation)

    def abandon(self):
        """At exit: what is still outstanding is over, here and on the other ranks."""
        self.exchange.is_cancelled = True
        with self.changed:
            if self.job is not None and self.calls:
                self.library.sml_job_abort(self.job, f"rank {self.rank} ended with operations outstanding".encode())

    def stats(self):
        with self.changed:
            return {**self.counters, **self._read_stats()}

    def _read_stats(self):
        stats = sized(Stats)
        if self.job is None or self.library.sml_job_stats(self.job, ctypes.byref(stats)) != 0:
            return self.last_stats
        return {name: getattr(stats, name) for name, _ in Stats._fields_[1:]}

    # With self.changed held.

    def _submit_ready(self):
        """Hands calls to the library in their order, as far as it takes them."""
        while self.job is not None and self.unsubmitted:
            call = self.unsubmitted[0]
            if isinstance(call, _Edge):
                self.unsubmitted.popleft()
                self.is_in_range = call.is_begin
                if not call.is_begin:
                    self._end_batch()
                continue
            if not call.uses_gloo and call.error is None and not self._submit(call):
                return
            self.unsubmitted.popleft()
            num_in_flight = sum(1 for other in self.calls if other.num_submitted > 0)
            self.counters["max_in_flight"] = max(self.counters["max_in_flight"], num_in_flight)

    def _submit(self, call):
        """False: the library has no operation free now. Anything else that goes wrong is in call.error."""
        reduction, sml_type = int(call.is_average), _SML_TYPE[call.parts[0].tensor.dtype]
        if call.num_submitted == 0 and not all(
            self.library.sml_supported(self.job, sml_type, reduction, part.buffer.numel()) for part in call.parts):
            if self.is_required:
                call.error = SwitchMLError("SWITCHML_REQUIRE=1, but SwitchML does not take a tensor of this size")
            call.uses_gloo = True
            return True
        for part in call.parts[call.num_called:]:
            if self.batch is None and (self.is_in_range or len(call.parts) > 1):
                self.batch = []
                self.library.sml_batch_begin(self.job)
            handle = ctypes.c_void_p()
            address = part.buffer.data_ptr() or ctypes.addressof(handle)  # 0 elements: any address will do
            status = self.library.sml_allreduce(self.job, address, address, part.buffer.numel(), sml_type, reduction,
                                                None, ctypes.byref(handle))
            if status == _BUSY:
                return False
            if status != 0:
                call.error = self._job_error() or thread_error(self.library, status)
                self._end_batch()
                return True
            part.handle = handle
            call.num_called += 1
            if self.batch is None:
                call.num_submitted += 1
            else:
                self.batch.append(call)
                if len(self.batch) == _BATCH_TENSORS:
                    self._end_batch()
        if not self.is_in_range:
            self._end_batch()
        return True

    def _end_batch(self):
        """A batch's operations know by themselves if they fail."""
        if self.batch is not None:
            self.library.sml_batch_end(self.job)
            for call in self.batch:
                call.num_submitted += 1
            self.batch = None
            self.changed.notify_all()

    def _job_error(self):
        error = sized(Error)
        self.library.sml_job_error(self.job, ctypes.byref(error))
        return described_error(self.library, error) if error.status != 0 else None

    def _run(self):
        with torch.no_grad():
            if self._next(self.calls):
                self._join()
            while self._next(self.calls):
                self._complete(self.calls[0])
            self._leave()

    def _join(self):
        """Collective. Afterwards there is a job, or a Gloo group on every rank, or self.error."""
        try:
            error = self._create_job()
        except Exception as problem:  # pylint: disable=broad-except  # the store, mostly: this rank alone
            self.error = problem if isinstance(problem, SwitchMLError) else SwitchMLError(str(problem))
            return
        if error is not None and self.is_required:
            self.exchange.settle()
            self.error = error
        elif error is not None:
            if self.rank == 0:
                warnings.warn(f"switchml: this group's all-reduce goes through Gloo: {error}", RuntimeWarning)
            with self.changed:
                for call in self.calls:
                    call.uses_gloo = True

    def _create_job(self):
        """None, or the error that every rank got."""
        problem, token = "", secrets.token_hex(4)
        try:
            context = _Process.open_context()
        except SwitchMLError as error:
            problem = str(error)
        ranks = [json.loads(data) for data in self.exchange.gather(json.dumps([problem, token]).encode())]
        for rank, (problem, _) in enumerate(ranks):
            if problem:
                return SwitchMLError(f"rank {rank}: {problem}")
        library = _Process.library
        master = f"{os.environ.get('MASTER_ADDR', 'local')}:{os.environ.get('MASTER_PORT', '0')}"
        options, callback, job = sized(JobOptions), self.exchange.callback(), ctypes.c_void_p()
        aggregator = os.environ.get("SWITCHML_AGGREGATOR")
        options.aggregator = aggregator.encode() if aggregator else b""
        options.name = f"torch-{ranks[0][1]}-{master}".encode()[:63]
        options.rank, options.world_size, options.allgather = self.rank, self.size, callback
        options.join_timeout_ns = int(min(self.timeout.total_seconds(), _JOIN_TIMEOUT_S) * _NS)
        options.operation_timeout_ns = int(self.timeout.total_seconds() * _NS)
        status = library.sml_job_create(context, ctypes.byref(options), ctypes.byref(job))
        if self.exchange.error is not None:
            raise self.exchange.error
        if status != 0:
            return thread_error(library, status)
        with self.changed:
            self.library, self.job = library, job
            self._submit_ready()
        return None

    def _complete(self, call):
        try:
            if call.error is None and self.error is not None and call.num_called == 0:
                call.error = self.error
            if call.error is None and (call.uses_gloo or self.job is None):
                self._reduce_by_gloo(call)
            else:
                self._wait_for(call)
            if call.error is None:
                for part in call.parts:
                    part.copy_back()
        except Exception as problem:  # pylint: disable=broad-except  # the future must end, whatever happened
            call.error = call.error or SwitchMLError(f"{type(problem).__name__}: {problem}")
        with self.changed:
            self.calls.popleft()
            if call in self.unsubmitted:  # with the edges before it, if there is no job
                while self.unsubmitted.popleft() is not call:
                    pass
            self.error = self.error or call.error
            self.counters["failed_calls" if call.error else "fallback_calls" if call.uses_gloo or self.job is None
                          else "offloaded_calls"] += 1
            self._submit_ready()
        call.ended.set_result(None)

    def _wait_for(self, call):
        """Waits for every part, so that the library has given all buffers back."""
        num_waited = 0
        while num_waited < len(call.parts):
            if num_waited == call.num_submitted:
                with self.changed:
                    self._submit_ready()
                    # Other groups hold all operations of the context, or the script is within a coalesced range.
                    if call.error is None and num_waited == call.num_submitted:
                        self.changed.wait(0.001 if self.batch is None else 0.02)
                        if self.batch is not None and self._job_error() is not None:
                            self._end_batch()
                if call.error is not None and num_waited == call.num_submitted:
                    return
                continue
            handle = call.parts[num_waited].handle
            while self.library.sml_operation_wait(handle, 10 * _NS) == _IN_PROGRESS:
                pass
            error = sized(Error)
            self.library.sml_operation_error(handle, ctypes.byref(error))
            if error.status != 0 and call.error is None:
                call.error = described_error(self.library, error)
            self.library.sml_operation_release(handle)
            call.parts[num_waited].handle = None
            num_waited += 1

    def _reduce_by_gloo(self, call):
        """In a Gloo group of its own, so that these calls need no order with the script's other ones."""
        if self.gloo is None:
            self.gloo = _c10d.ProcessGroupGloo(_c10d.PrefixStore("gloo", self.store), self.rank, self.size,
                                               timeout=self.timeout)
        for part in call.parts:
            gloo.remember([part.buffer])
            self.gloo.allreduce([part.buffer]).wait()
            if call.is_average:
                part.buffer.div_(self.size)

    def _leave(self):
        with self.changed:
            job, self.last_stats = self.job, self._read_stats()
            self.job = None
        self.gloo = None
        self.is_leaving = True
        if job is not None:
            self.library.sml_job_destroy(job)


# ---- The process group ---------------------------------------------------------------------------------

class SwitchMLGroup(dist.ProcessGroup):
    """A torch.distributed process group: all-reduce through SwitchML, everything else through Gloo."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._pid = os.getpid()
        store = _c10d.PrefixStore("switchml", store)
        why_off, is_required, addresses = _agree(_Exchange(_c10d.PrefixStore("settings", store), rank, size,
                                                           timeout.total_seconds()))
        self._inner = gloo.make_group(_c10d.PrefixStore("other", store), rank, size, timeout, addresses)
        self._offload, self._finisher, self._num_gloo_allreduces = None, _Finisher(), 0
        weakref.finalize(self, self._finisher.close).atexit = False
        if not why_off:
            self._offload = _Offload(store, rank, size, timeout, is_required)
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
        return self._allreduce("allreduce", tensors, opts or _c10d.AllreduceOptions(), len(tensors) == 1)

    def allreduce_coalesced(self, tensors, opts=None):
        return self._allreduce("allreduce_coalesced", tensors, opts or _c10d.AllreduceCoalescedOptions(), True)

    def _allreduce(self, method, tensors, opts, is_one_each):
        """is_one_each: every tensor is summed with its like of the other ranks, not with its neighbours."""
        inner, op, tensors = self._gloo(), opts.reduceOp, list(tensors)
        for tensor in tensors:
            gloo.check_reduction(tensor.dtype, op, "all-reduce")
        if (is_one_each and (op == ReduceOp.SUM or op == ReduceOp.AVG) and len({t.dtype for t in tensors}) == 1
                and all(tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.dtype in _SML_TYPE
                        for tensor in tensors)):
            if self._offload is not None:
                return self._offload.submit(tensors, op == ReduceOp.AVG)
            self._num_gloo_allreduces += 1
        return self._reduce_by_gloo(getattr(inner, method), tensors, opts, True)

    def reduce(self, tensors, opts):
        inner = self._gloo()
        for tensor in tensors:
            gloo.check_reduction(tensor.dtype, opts.reduceOp, "reduce")
        return self._reduce_by_gloo(inner.reduce, list(tensors), opts, opts.rootRank == self.rank())

    def _reduce_by_gloo(self, method, tensors, opts, is_result_here):
        copies, divisor = [], 1
        if opts.reduceOp == ReduceOp.AVG:  # Gloo has no average
            opts.reduceOp, divisor = ReduceOp.SUM, self.size() if is_result_here else 1
        dense = gloo.contiguous(tensors, copies)
        return self._finish(method(dense, opts), tensors, copies, dense if divisor > 1 else (), divisor)

    def _finish(self, work, result, copies, divided=(), divisor=1):
        """What is left to do when Gloo is done: divide sums into averages, put copies back in place."""
        gloo.remember([*result, *divided, *(copy for _, copy in copies)])

        def finish():
            for tensor in divided:
                tensor.detach().div_(divisor)
            for tensor, copy in copies:
                tensor.detach().copy_(copy)
        return self._finisher.add(work, result, finish) if copies or divided else work

    def barrier(self, opts=None):
        return self._gloo().barrier(opts or _c10d.BarrierOptions())

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
    has_future = method not in ("send", "recv", "recv_anysource")  # these want contiguous tensors, and say so

    def call(self, *arguments, **keywords):
        inner, copies = self._gloo(), []
        tensors = list(gloo.tensors_in([arguments, list(keywords.values())]))
        for tensor in tensors:
            gloo.check_type(tensor.dtype, method.strip("_"))
        if has_future:
            arguments = gloo.contiguous(arguments, copies)
            keywords = {name: gloo.contiguous(value, copies) for name, value in keywords.items()}
        return self._finish(getattr(inner, method)(*arguments, **keywords), tensors, copies)
    call.__name__ = method
    return call


for _method in ("broadcast", "allgather", "_allgather_base", "allgather_coalesced",
                "allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
                "reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "send", "recv", "recv_anysource",
                "monitored_barrier", "_set_sequence_number_for_group", "_get_sequence_number_for_group"):
    if hasattr(_c10d.ProcessGroupGloo, _method):
        setattr(SwitchMLGroup, _method, _pass_to_gloo(_method))


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


def dump_trace(path):
    """Writes what this process's flight recorders hold, the last events of each engine thread and job, to a file for
    `switchml trace`. At any time, from any thread, also while collectives hang: on a signal, or from a watchdog."""
    if _Process.context is None:
        raise SwitchMLError("nothing is recorded yet: no group of this process has called SwitchML")
    status = _Process.library.sml_context_dump_trace(_Process.context, os.fsencode(path))
    if status != 0:
        raise thread_error(_Process.library, status)


dist.Backend.register_backend("switchml", SwitchMLGroup,
                              **({"devices": ["cpu"]} if int(torch.__version__.split(".")[0]) >= 2 else {}))
os.register_at_fork(after_in_child=_Process.forked)
atexit.register(_Process.at_exit)
