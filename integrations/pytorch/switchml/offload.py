# SPDX-License-Identifier: Apache-2.0
"""The SwitchML side of one group: its job, its calls in order, and who completes them.

A call that torch waits for at once is completed by the thread that waits, with no hand-over to another. Any other has
a promise, and is completed by a thread of the group, if no wait of Python code comes first. Whoever completes a call
first completes those before it. Collectives that Gloo does stand among the calls as steps, and begin in their turn.
"""
import collections
import itertools
import os
import threading
import time
import warnings

import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from . import gloo, staging
from .api import SML_AVG, SML_SUM
from .job import NS, Busy, CannotJoin, Job
from .library import SwitchMLError
from .parts import Call, Edge, Step, of_thread
from .process import Process, Thread, is_main_thread
from .settings import Exchange
from .works import CallWork, Promise, watch_wait

_BATCH_TENSORS = 64  # at most, in one batch: a small part of what a context has room for
_COPY_NS = 200_000   # between two looks at a copy while others are summed
_TICK_S = 0.05       # so long a call is left to whoever may still wait for it
_PATIENCE_S = 2      # with a callback, before later promises end without it


class Offload(Thread):
    """One group's job, made by its first call."""

    def __init__(self, store, rank, size, timeout, is_required, numbered=None):
        super().__init__()
        self.numbered = numbered  # the group's Calls, where it has any
        self.ended, self.callback_since = collections.deque(), None  # calls whose promises are due; since when one ends
        self.store, self.rank, self.size, self.timeout = store, rank, size, timeout
        self.is_required, self.is_first = is_required, False
        self.exchange = Exchange(_c10d.PrefixStore("job", store), rank, size, timeout.total_seconds())
        self.copies = staging.Queue()         # pieces of calls on tensors of GPUs
        self.calls = collections.deque()      # not ended, oldest first
        self.unsubmitted = collections.deque()  # the newest of them: not all parts are with the library; and edges
        self.is_coalescing, self.is_in_range, self.num_edges = False, False, 0  # as the script goes, as the library is called
        self.batch = None                     # the calls of the parts in the library's open batch
        self.job = None
        self.has_joined = False               # or failed to, which self.error or a Gloo group then says
        self.completer = None                 # who completes the oldest call
        self.num_attending = 0                # threads of the group that are not in a callback
        self.stand_ins = []                   # those beside the first one
        self.num_waiters, self.num_promises, self.num_in_flight = 0, 0, 0
        self.num_calls, self.last_stats = 0, {}
        self.is_asleep, self.seen, self.num_seen = False, None, 0  # the thread; when it last looked: the oldest call, all
        self.gloo = None                      # stands in when the job could not be had, or for huge tensors
        self.error = None                     # the first failure; every later call gets it
        self.counters = {"offloaded_calls": 0, "fallback_calls": 0, "failed_calls": 0, "max_in_flight": 0}

    def submit(self, tensors, reduction, called, is_waited_for=False, result=None):
        """A call on tensors, or parts, of one type. is_waited_for: at once, by torch's Python code. result: what its future
        has, if that is not the tensors."""
        call = self._call(tensors, reduction, is_waited_for, tensors if result is None else result, called)
        if is_waited_for:
            return CallWork(call)

        def wait_for(timeout_s):
            self.wait_for(call, timeout_s)
            call.join_streams()
        return call.promise.work(wait_for)

    def submit_for_future(self, tensors, reduction, result, starts=None):
        """The future alone, which has `result` in the end. starts: as Call's."""
        return self._call(tensors, reduction, False, result, starts=starts).promise.future

    def submit_recorded(self, tensors, reduction, called, result, record):
        """A call that no thread completes but one of the group, as a profiler wants it."""
        return self._call(tensors, reduction, False, result, called, record).promise.work()

    def put_behind(self, begin, result, finisher, called):
        """A collective that Gloo does: begin() is called when the calls so far have ended, and returns Gloo's Work and
        what the finisher does after it."""
        step = Step(begin, finisher, Promise(result), called)
        with self.changed:
            self.raise_if_failed()
            self.hasten()
            self.calls.append(step)
            self.numbered.is_queued()
            self.num_promises += 1
            self._stand_in()
            self.changed.notify_all()
        return step.promise.work()

    def _call(self, tensors, reduction, is_waited_for, result, called=None, record=None, starts=None):
        try:
            call = Call(self, tensors, reduction, result, called, starts)
        except RuntimeError as problem:
            if any(map(staging.is_staged, gloo.tensors_in(tensors))):
                self.fail(staging.copy_error(self.rank, problem))
            raise
        if not is_waited_for:
            call.promise = Promise(call.result)
            if record is not None:
                call.promise.end_record(record)
        with self.changed:
            self.raise_if_failed()
            if self.is_closing:
                raise SwitchMLError("the process group has been destroyed")
            self.calls.append(call)
            if self.numbered is not None:
                self.numbered.is_queued()
            self.num_calls += 1
            self.unsubmitted.append(call)
            if call.crossings:
                self.copies.add(call.crossings, [part.piece for part in call.parts if part.piece is not None],
                                self.num_edges if self.is_coalescing else None)
                self._start_copies(call)
            if self.job is not None:
                self._submit_ready()
            if self.thread is None:
                self.start()
            if not is_waited_for:
                self.num_promises += 1
                self._stand_in()
                self.changed.notify_all()
            elif self.is_asleep or self.unsubmitted:
                self.changed.notify_all()
        return call

    def coalesce(self, is_begin):
        """From here on calls share packets, or no longer. On all ranks alike, as the calls."""
        with self.changed:
            if self.is_coalescing != is_begin:
                self.is_coalescing, self.num_edges = is_begin, self.num_edges + 1
                self.unsubmitted.append(Edge(is_begin))
                if self.job is not None:
                    self._submit_ready()

    def hasten(self, num_edges=None):
        """A wait, or a call that Gloo does, ends a range for its calls so far: they would wait for each other otherwise."""
        if self.is_coalescing and num_edges in (None, self.num_edges):
            with self.changed:
                self.coalesce(False)
                self.coalesce(True)

    def close(self):
        if os.getpid() == self.pid:
            self.coalesce(False)
        super().close()

    def join(self, timeout_s):
        deadline = time.monotonic() + timeout_s
        for thread in self.stand_ins:
            thread.join(max(deadline - time.monotonic(), 0.001))
        has_ended = super().join(deadline - time.monotonic())
        return has_ended and not any(thread.is_alive() for thread in self.stand_ins)

    def raise_if_failed(self):
        if self.error is not None:
            raise SwitchMLError(f"the group failed before: {self.error}", self.error.status, self.error.ranks,
                                self.error.operation)

    def has_steps(self):
        with self.changed:
            return any(isinstance(call, Step) for call in self.calls)

    def oldest_called(self):
        try:
            return self.calls[0].called
        except IndexError:
            return None

    def fail(self, error):
        """For a reason from outside: on all ranks. Ends what is outstanding."""
        with self.changed:
            self.error = self.error or error
            self.exchange.is_cancelled = True
            if self.gloo is not None:
                gloo.keep_for_ever(self.gloo)
            if self.job is not None:
                self.job.abort(error)
            self.changed.notify_all()

    def job_error(self):
        with self.changed:
            return self.error or (self.job.error() if self.job is not None else None)

    def abandon(self):
        """At exit: what is still outstanding is over, here and on the other ranks."""
        self.exchange.is_cancelled = True
        with self.changed:
            if self.job is not None and self.calls:
                self.job.abort(f"rank {self.rank} ended with operations outstanding")

    def stats(self):
        with self.changed:
            return {**self.counters, **self._read_stats()}

    def _read_stats(self):
        stats = self.job.stats() if self.job is not None else None
        return self.last_stats if stats is None else stats

    # ---- Handing calls to the library, with self.changed held and a job there ----------------------------

    def _submit_ready(self):
        """Hands calls to the library in their order, as far as it takes them."""
        while self.unsubmitted:
            call = self.unsubmitted[0]
            if isinstance(call, Edge):
                self.unsubmitted.popleft()
                self.is_in_range = call.is_begin
                if not call.is_begin:
                    self._end_batch()
                continue
            was_called = call.num_called > 0
            has_gone = call.uses_gloo or call.error is not None or self._submit(call)
            if not was_called and call.num_called > 0:
                self.num_in_flight += 1
                self.counters["max_in_flight"] = max(self.counters["max_in_flight"], self.num_in_flight)
            if not has_gone:
                return
            self.unsubmitted.popleft()

    def _submit(self, call):
        """False: the library has no operation free now, or the host not the tensor yet. Anything else that goes wrong
        is in call.error."""
        job, parts = self.job, call.parts
        if call.num_called == 0 and not all(part.is_taken(job, call.reduction) for part in parts):
            if self.is_required and call.reduction in (SML_SUM, SML_AVG):
                call.error = SwitchMLError("SWITCHML_REQUIRE=1, but SwitchML does not take a tensor of this size and type")
            call.uses_gloo = True
            return True
        for part in parts[call.num_called:]:
            if part.is_large():
                self._end_batch()
            if part.piece is not None and not self._is_on_host(call, part):
                return call.error is not None
            call.is_clear = call.is_clear or not self._is_in_use(call)
            if not call.is_clear:
                return False
            if self.batch is None and (self.is_in_range or len(parts) > 1) and not part.is_large():
                self.batch = []
                job.begin_batch()
            try:
                part.operation = part.begin(job, call)
            except Busy:
                return False
            except SwitchMLError as error:
                call.error = error
                self._end_batch()
                return True
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

    def _is_in_use(self, call):
        """Whether a call before it has not given back yet what this one reads or writes. Not one in an open batch: that would
        wait for this one."""
        before = itertools.takewhile(lambda each: each is not call, self.calls)
        return any(each.low < call.high and call.low < each.high and each.num_submitted == each.num_called and call.overlaps(each)
                   for each in before)

    def _start_copies(self, call):
        """To the host, of this and other calls. False: the device has failed, which is in call.error."""
        try:
            with self.changed:
                self.copies.start()
        except Exception as problem:  # pylint: disable=broad-except
            self._fail_by_copy(call, problem)
        return call.error is None

    def _is_on_host(self, call, part):
        """Whether the part's copy has ended. False with call.error: it never will."""
        try:
            if self._start_copies(call) and part.piece.is_ready():
                call.is_late_at = None
                return True
        except Exception as problem:  # pylint: disable=broad-except
            self._fail_by_copy(call, problem)
        call.is_late_at = call.is_late_at or time.monotonic() + self.timeout.total_seconds()
        if call.error is None and time.monotonic() > call.is_late_at:
            self._fail_by_copy(call, part.piece.why_late())
        if call.error is not None:
            self._end_batch()
        return False

    def _fail_by_copy(self, call, problem):
        """The job ends, so that no other rank waits for what this one cannot send."""
        call.error = call.error or staging.copy_error(self.rank, problem, bool(call.crossings))
        if self.job is not None:
            self.job.abort(call.error)

    def _end_batch(self):
        if self.batch is not None:
            self.job.end_batch()
            for call in self.batch:
                call.num_submitted += 1
            self.batch = None
            self.changed.notify_all()

    # ---- Completing calls ---------------------------------------------------------------------------------

    def wait_for(self, call, timeout_s=None):
        """Returns when the call has ended, however; raises after timeout_s."""
        if os.getpid() != self.pid:
            raise SwitchMLError("this call was made by the parent of this forked process", "forked")
        self.hasten(call.num_edges)
        deadline, me = None if timeout_s is None else time.monotonic() + timeout_s, object()
        try:
            while not call.is_ended:
                self._wait_or_complete(call, deadline, me)
                if deadline is not None and not call.is_ended and time.monotonic() >= deadline:
                    raise call.late(timeout_s)
        except BaseException:  # a signal handler's may come anywhere
            self.let_go()
            with self.changed:
                self.completer = None if self.completer is me else self.completer
            raise

    def _wait_or_complete(self, call, deadline, me):
        with self.changed:
            is_mine = self.has_joined and self.completer is None and not call.is_ended
            if is_mine:
                self.completer, oldest = me, self.calls[0]
            elif not call.is_ended:
                self.num_waiters += 1
                self.changed.wait(1 if deadline is None else max(0.0, min(1, deadline - time.monotonic())))
                self.num_waiters -= 1
        if is_mine:
            self._complete(oldest, deadline)

    def wait_for_all(self, timeout_s):
        for call in list(self.calls)[-1:]:
            self.wait_for(call, timeout_s)

    def _run(self):
        of_thread.attends = id(self)  # itself it would hold for longer than at_exit() waits
        self._join()
        with self.changed:
            self.has_joined = True
            self.num_attending += 1
            self.changed.notify_all()
        while self._attend():
            pass
        self._leave()

    def _stand_in(self):
        """A callback runs on the thread that completed its call, and may wait for a later one: another thread attends
        meanwhile, and stays. With self.changed held."""
        if self.has_joined and self.num_attending == 0 and (self.calls or self.ended):
            self.num_attending += 1
            self.stand_ins.append(threading.Thread(target=self._attend_too, name="switchml", daemon=True))
            self.stand_ins[-1].start()

    def _attend_too(self):
        of_thread.attends = id(self)
        while self._attend():
            pass

    def _attend(self):
        """Completes the oldest call if that is this thread's to do. False: it is time to end."""
        if self.ended:
            self._end_promises()
        with self.changed:
            oldest = self.calls[0] if self.calls else None
            if oldest is None and self.is_closing and not self.ended:
                return False
            if oldest is None or self.completer is not None or not (
                    self.num_promises or self.is_closing or self.unsubmitted or oldest is self.seen):
                # Only after a tick without any call does it sleep until it is woken: waking it costs more than a call.
                self.is_asleep = oldest is None and self.num_seen == self.num_calls and not self.ended
                self.seen, self.num_seen = oldest, self.num_calls
                self.changed.wait(None if self.is_asleep else _TICK_S)
                self.is_asleep = False
                return True
            self.completer = object()
        self._complete(oldest)
        return True

    def _complete(self, call, deadline=None):
        """Ends the oldest call, by the completer; or gives up at the deadline."""
        has_ended = False
        try:
            try:
                has_ended = self._finish(call, deadline)
            except Exception as problem:  # pylint: disable=broad-except  # it must end, whatever happened
                if self.job is not None and not call.uses_gloo and call.num_waited < len(call.parts) and is_main_thread():
                    raise  # a signal handler's: the library still has the tensors
                call.error = call.error or SwitchMLError(f"{type(problem).__name__}: {problem}")
                has_ended = True
        finally:
            with self.changed:
                self.completer = None
                if has_ended:
                    self._forget(call)
                if self.num_waiters or self.num_promises or self.is_closing:
                    self.changed.notify_all()
            if has_ended and call.promise is not None and not call.is_of_callback:
                self.ended.append(call)
        if has_ended and call.promise is not None and call.is_of_callback:
            self._end_promise(call)  # the callback may wait for it
        self._end_promises()

    def _end_promises(self):
        """What was added to the futures of calls runs one at a time, in the order of the calls, and may take its time. But
        not for ever: it may wait for a future whose turn comes after it."""
        while True:
            with self.changed:
                if not self.ended or (self.callback_since is not None
                                      and time.monotonic() < self.callback_since + _PATIENCE_S):
                    return
                call, self.callback_since = self.ended.popleft(), time.monotonic()
            try:
                self._end_promise(call)
            finally:
                with self.changed:
                    self.callback_since = None

    def _end_promise(self, call):
        is_attendant = getattr(of_thread, "attends", None) == id(self)
        with self.changed:
            self.num_attending -= is_attendant
            self._stand_in()
        outer, of_thread.runs = getattr(of_thread, "runs", None), self
        try:
            call.end_promise()
        finally:
            of_thread.runs = outer
            with self.changed:
                self.num_attending += is_attendant

    def _forget(self, call):
        """It has ended. With self.changed held."""
        self.calls.popleft()
        if self.unsubmitted and call in self.unsubmitted:  # with the edges before it, if there is no job
            while self.unsubmitted.popleft() is not call:
                pass
        if call.num_called > 0:
            self.num_in_flight -= 1
        if call.promise is not None:
            self.num_promises -= 1
        if not isinstance(call, Step):
            self._count(call)
        call.is_ended = True
        if self.job is not None and self.unsubmitted:
            self._submit_ready()

    def _count(self, call):
        if call.error is not None:
            self.error = self.error or call.error
            self.counters["failed_calls"] += 1
        else:
            self.counters["fallback_calls" if call.uses_gloo or self.job is None else "offloaded_calls"] += 1
        if call.promise is not None:
            call.promise.error, call.promise.has_ended = call.error, True

    def _finish(self, call, deadline):
        """False: the deadline came first."""
        if isinstance(call, Step):
            self.raise_if_failed()
            call.take()
            return True
        if self.error is not None and call.error is None and call.num_called == 0:
            call.error = self.error
        if call.error is None and (call.uses_gloo or self.job is None):
            if deadline is not None:  # Gloo's call has none: the thread does it
                time.sleep(0.0002)
                return False
            self._reduce_by_gloo(call)
        elif not self._wait_for_parts(call, deadline):
            return False
        if call.error is not None:
            call.error = self.error or self._reason_for(call.error)
        if call.error is not None and call.crossings:
            with self.changed:
                self.copies.drop([part.piece for part in call.parts if part.piece is not None])
        return True

    def _wait_for_parts(self, call, deadline):
        """Waits for every part, so that the library has given all buffers back."""
        while call.num_waited < len(call.parts):
            if call.num_waited == call.num_submitted:
                if call.error is not None:
                    return True
                with self.changed:
                    self._submit_waiting(call)
                if call.num_waited == call.num_submitted and deadline is not None and time.monotonic() >= deadline:
                    return False
                continue
            part = call.parts[call.num_waited]
            limit_ns = NS if deadline is None else min(NS, max(0, int((deadline - time.monotonic()) * NS)))
            if self.unsubmitted and self._is_next_staged():
                limit_ns = min(limit_ns, _COPY_NS)
            has_ended, error = self.job.ended(part.operation, limit_ns)
            if not has_ended:
                if self.unsubmitted:
                    with self.changed:
                        self._submit_ready()
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                continue
            if error is not None and call.error is None:
                call.error = error
            part.operation = None
            call.num_waited += 1
            if call.error is None:
                self._take_result(call, part)
        return True

    def _take_result(self, call, part):
        try:
            part.take_result()
        except Exception as problem:  # pylint: disable=broad-except  # the other parts are lent to the library
            self._fail_by_copy(call, problem)
        if part.piece is not None and self.unsubmitted and self.job is not None:
            with self.changed:
                self._submit_ready()

    def _is_next_staged(self):
        try:
            return bool(self.unsubmitted[0].crossings)
        except (IndexError, AttributeError):  # another thread has submitted it, or it is an edge
            return False

    def _submit_waiting(self, call):
        """The oldest call is not with the library: other groups hold all operations of the context, or the script is
        within a coalesced range, or the device has not copied a tensor yet. With self.changed held."""
        self._submit_ready()
        if call.error is not None or call.num_waited < call.num_submitted:
            return
        self.num_waiters += 1
        self.changed.wait(0.02 if self.batch is not None else call.pause_s() if call.crossings else 0.001)
        self.num_waiters -= 1
        if self.batch is not None and self.job.error() is not None:
            self._end_batch()

    def _reduce_by_gloo(self, call):
        """In a Gloo group of its own, so that these calls need no order with the script's other ones."""
        if self.gloo is None:
            self.gloo = gloo.make_beside_others(_c10d.PrefixStore("gloo", self.store), self.rank, self.size, self.timeout)
        for part in call.parts:
            while part.piece is not None and not self._is_on_host(call, part):
                if call.error is not None:
                    return
                time.sleep(call.pause_s())
            part.by_gloo(self.gloo, call.reduction, self._watched)
            self._take_result(call, part)

    def _reason_for(self, error):
        """The group's reason, if it has one already."""
        return self.numbered.why(error) if self.numbered is not None else error

    def _watched(self, work):
        if self.numbered is not None:
            watch_wait(work, self.numbered)
        return work

    # ---- The job ------------------------------------------------------------------------------------------

    def _join(self):
        """Collective. Afterwards there is a job, or a Gloo group on every rank, or self.error."""
        self.is_first = (dist.get_rank() if dist.is_initialized() else self.rank) == 0  # who says in the end what was summed
        try:
            job = Job.join(self.exchange, self.rank, self.size, self.timeout.total_seconds())
            with self.changed:
                self.job = job
                self._submit_ready()
        except CannotJoin as problem:
            self._do_without(problem.error)
        except Exception as problem:  # pylint: disable=broad-except  # the store, mostly: this rank alone
            self.error = self.error or (problem if isinstance(problem, SwitchMLError) else SwitchMLError(str(problem)))

    def _do_without(self, error):
        if self.is_required:
            self.exchange.settle()
            self.error = error
            return
        if self.rank == 0:
            warnings.warn(f"switchml: this group's all-reduce goes through Gloo: {error}", RuntimeWarning)
        with self.changed:
            for call in self.calls:
                call.uses_gloo = True

    def _leave(self):
        with self.changed:
            job, self.last_stats = self.job, self._read_stats()
            self.job = None
        if self.is_first and not self.error and not self.calls and not self.counters["failed_calls"]:
            Process.add_totals({**self.counters, **self.last_stats})
        self.gloo = self.seen = None  # a call has its Offload
        self.is_leaving = True
        if job is not None:
            job.leave()
