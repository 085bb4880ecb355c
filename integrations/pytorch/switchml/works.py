# SPDX-License-Identifier: Apache-2.0
"""Handles of calls: what torch waits for, and gets the reason of a failure from."""
import collections
import datetime
import time
import weakref

import torch
from torch._C import _distributed_c10d as _c10d

from . import cuda, gloo, staging
from .library import SwitchMLError
from .process import Process, Thread


class Promise:
    """A torch future, and the Work made of it, that this package ends. C++ (DDP) may hold either for as long as it likes:
    nothing of them is Python's alone."""
    of_work = weakref.WeakKeyDictionary()

    def __init__(self, result):
        self.result, self.error, self.has_ended = result, None, False
        self.wait_for, self.is_recorded = None, False
        self.on_device = [tensor for tensor in gloo.tensors_in(result) if staging.is_staged(tensor)]
        self.events = []  # by device: the result is there
        devices = {cuda.api.device_of(tensor) for tensor in self.on_device}
        self.ended = cuda.api.future(devices) if devices else torch.futures.Future()
        # An exception only becomes the future's own error, for C++ (DDP) too, by leaving a callback.
        self.future = self.ended.then(self.outcome)

    def outcome(self, _ended=None):
        if self.error is not None:
            raise self.error
        return self.result

    def end(self, error=None):
        """The result is there once the streams on which results come back to the devices have done what they have."""
        if self.on_device and error is None:
            self.events = staging.marks_of_up_streams(self.on_device)
        self.error, self.has_ended = error, True
        if not Process.enter_torch():
            return
        try:
            with staging.as_current(staging.up_streams(self.on_device)):
                # A future orders streams by the tensors in its value.
                self.ended.set_result(self.result if self.on_device and error is None else None)
        finally:
            Process.leave_torch()

    def join_streams(self):
        for device, event in self.events:
            cuda.api.wait(cuda.api.current_stream(device), event)

    def end_record(self, record):
        """The future ends when a profiler's record of it has."""
        self.is_recorded = True
        self.future = torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, self.future)

    def wait_until_ended(self, timeout_s):
        deadline, pause_s = time.monotonic() + timeout_s, 0.0002
        while not self.has_ended:
            if time.monotonic() >= deadline:
                raise SwitchMLError(f"the call has not ended within the {timeout_s:g} s of this wait", "timed out")
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.005)

    def work(self, wait_for=None):
        """wait_for(timeout_s): what a wait of Python code does first; it raises after timeout_s, if that is not None."""
        work = _c10d._create_work_from_future(self.future)
        self.wait_for = wait_for
        self.of_work[work] = self
        return work


_SLICE_S = 0.05
_calls_of = weakref.WeakKeyDictionary()  # of Gloo's works: the Calls of their group


def watch_wait(work, calls):
    """Gloo's work is waited for as long as its group has not failed."""
    _calls_of[work] = calls


def _wait_for_gloo(work, calls, timeout):
    timeout_s = timeout.total_seconds() if timeout is not None else 0
    deadline = time.monotonic() + timeout_s if timeout_s > 0 else None
    while True:
        limit_s = _SLICE_S if deadline is None else min(_SLICE_S, max(deadline - time.monotonic(), 0.001))
        try:
            return _torch_wait(work, datetime.timedelta(seconds=limit_s))
        except RuntimeError:
            if not work.is_completed():
                calls.raise_if_failed()
                if deadline is not None and time.monotonic() >= deadline:
                    raise
                continue
        try:  # it ended as the slice did, or failed
            return _torch_wait(work)
        except RuntimeError as error:
            reason = calls.why(error)
            if reason is error:
                raise
        raise reason


def _wait_and_raise(work, timeout=None):
    """Work.wait() for works made of futures: torch's own forgets to raise the future's error, and knows no time limit."""
    promise = Promise.of_work.get(work)
    if promise is None:
        calls = _calls_of.get(work)
        if calls is not None:
            return _wait_for_gloo(work, calls, timeout)
        return _torch_wait(work) if timeout is None else _torch_wait(work, timeout)
    timeout_s = timeout.total_seconds() if timeout is not None else 0
    if promise.wait_for is not None:
        promise.wait_for(timeout_s if timeout_s > 0 else None)
    elif timeout_s > 0:
        promise.wait_until_ended(timeout_s)
    # It may have ended while its callbacks stand behind the one that waits here.
    result = True if promise.has_ended and not promise.is_recorded else _torch_wait(work)
    promise.outcome()
    promise.join_streams()
    return result


def _result(work):
    promise = Promise.of_work.get(work)
    if promise is None:
        return _torch_result(work)
    if not promise.has_ended:  # as Gloo has it
        raise RuntimeError("Work needs to be completed before calling result(). Should call wait() before result().")
    promise.outcome()
    return promise.result


def _asked(name, of_promise):
    """A method of Work whose answer, for works made of promises, is the promise's: torch's own may be later."""
    torchs = getattr(_c10d.Work, name)

    def method(work):
        promise = Promise.of_work.get(work)
        return torchs(work) if promise is None else of_promise(promise)
    setattr(_c10d.Work, name, method)


_torch_wait, _c10d.Work.wait = _c10d.Work.wait, _wait_and_raise
_torch_result, _c10d.Work.result = _c10d.Work.result, _result
_asked("exception", lambda promise: promise.error)
_asked("is_completed", lambda promise: promise.has_ended)
_asked("is_success", lambda promise: promise.has_ended and promise.error is None)


class Finisher(Thread):
    """Does what is left to do after Gloo calls. Not on Gloo's own threads: Python code on a thread that
    outlives the interpreter crashes the process."""

    def __init__(self):
        super().__init__()
        self.items = collections.deque()

    def add(self, work, function, promise):
        """When work has ended, function() is called, unless it is None, and the promise ends."""
        with self.changed:
            self.items.append((work, function, promise))
            self.start()
            self.changed.notify_all()

    def is_busy(self):
        """Whether some call's result is not in its place yet."""
        return bool(self.items)

    def _next(self):
        """Whether there is an item; if not it is time to end."""
        with self.changed:
            while not self.items and not self.is_closing:
                self.changed.wait()
            return bool(self.items)

    def _run(self):
        with torch.no_grad():
            while self._next():
                work, function, promise = self.items[0]
                problem = None
                try:
                    with staging.as_current(staging.up_streams(promise.on_device)):
                        work.wait()
                        if function is not None:
                            function()
                except Exception as error:  # pylint: disable=broad-except  # the future must end
                    problem = error
                self.items.popleft()  # before a callback of the promise's, which may wait for a barrier
                promise.end(problem)
                del work, function, promise, problem


class All:
    """What a finisher wants of a work: the end of several."""

    def __init__(self, several):
        self.several = several

    def wait(self, timeout_s=None):
        for work in self.several:
            work.wait(*(() if timeout_s is None else (datetime.timedelta(seconds=timeout_s),)))


def all_of(several, finisher):
    """A Work that ends when all of these have."""
    promise, all_ended = Promise([]), All(several)
    finisher.add(all_ended, None, promise)
    return promise.work(all_ended.wait)


class CppWork(_c10d.Work):
    """The handle of a call of C++'s (DDP, functional collectives), whose wait raises the group's reason. Torch's own Work
    of a future waits without a word about its error, as if the sum were there.

    C++ keeps its half of this object alone (torch 2.6 and older), and the other half is what can end a wait. So this one is
    kept until somebody has asked for the future, or until many later ones of the group have ended. That somebody has waited
    says nothing: functional collectives of several tensors wait for the one work once for each. What is kept of it by then
    is whether it failed, and weakly its tensors: Python code that has this handle may ask for the result."""
    _MAX_KEPT = 1024

    def __init__(self, work, kept):
        super().__init__()
        self.work, self.error, self.kept, self.tensors = work, None, kept, ()
        kept[id(self)] = self
        while len(kept) > self._MAX_KEPT:
            oldest = next(iter(list(kept.values())), None)
            if oldest is None or not oldest.is_completed():
                break
            oldest.let_go()

    def let_go(self):
        self.kept.pop(id(self), None)

    def wait(self, timeout=None):
        work = self.work
        if work is None:
            if self.error is not None:
                raise self.error
            return True
        try:
            result = work.wait() if timeout is None else work.wait(timeout)
        except Exception as error:
            if work.is_completed():
                self.work, self.error = None, error
            raise
        promise = Promise.of_work.get(work)
        tensors = promise.result if promise is not None else None
        if isinstance(tensors, (list, tuple)) and all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            self.tensors = [weakref.ref(tensor) for tensor in tensors]
        self.work = None
        return result

    def get_future(self):
        work = self.work
        future = super().get_future() if work is None else work.get_future()
        self.let_go()
        return future

    def result(self):
        work = self.work
        if work is not None:
            return work.result()
        tensors = [tensor() for tensor in self.tensors]
        return super().result() if not tensors or any(tensor is None for tensor in tensors) else tensors

    def exception(self):
        work = self.work
        return self.error if work is None else work.exception()

    def is_completed(self):
        work = self.work
        return work is None or work.is_completed()

    def is_success(self):
        work = self.work
        return self.error is None if work is None else work.is_success()


class CallWork(_c10d.Work):
    """The handle of a call that torch's own Python code waits for at once, on its own thread, and hands to nobody: C++
    would be left with half of this object, which nobody ends."""

    def __init__(self, call):
        super().__init__()
        self.call = call

    def wait(self, timeout=None):  # pylint: disable=unused-argument
        """Raises why the call failed, with the rank."""
        call = self.call
        call.offload.wait_for(call)
        if call.error is not None:
            raise call.error
        call.join_streams()
        return True
