# SPDX-License-Identifier: Apache-2.0
"""A stand-in for switchml/cuda.py on a machine without a GPU, and what tests do to tensors "on the device" on either.

The stand-in does what CUDA allows, as late as CUDA may. What a stream gets is done only when somebody waits for it: the
host for an event, or the operation of another stream that is done then. Device memory and pinned memory are the host's.
So a copy that nobody orders after what it reads finds old bits, and memory that is used again too early gives wrong sums.
What late work does not show is checked: tensors that a stream uses must be kept for it.
"""
import contextlib
import os
import threading

_PATIENCE = 3     # questions whether an event is over until it is
_GARBAGE = 255    # bytes of new memory: NaN as floats
_SLEEP_CYCLES = 3_000_000  # about 2 ms, before each kernel of a test on a GPU


def _storage(tensor):
    return (tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()).data_ptr()


class _Operation:
    __slots__ = "function", "before"

    def __init__(self, function, before):
        self.function, self.before = function, before  # before: what is done first; None when this one is done

    def run(self):
        todo = [self]
        while todo:
            if todo[-1].before is None:
                todo.pop()
                continue
            open_ones = [each for each in todo[-1].before if each.before is not None]
            if open_ones:
                todo += open_ones
                continue
            operation = todo.pop()
            operation.before = None
            function, operation.function = operation.function, None
            if function is not None:
                function()


class _Event:
    def __init__(self, operation):
        self.operation, self.num_asked = operation, 0


class _Stream:
    def __init__(self, device, is_callers=False):
        self.device, self.is_callers, self.last = device, is_callers, None


class Standin:
    """With the methods of cuda.Cuda. Devices are numbers. is_eager: any tensor is on device 0, and what callers' streams wait
    for happens at once, as if each operation of the script came right then: for scripts whose kernels are torch's own."""

    def __init__(self, is_eager=False):
        import torch  # pylint: disable=import-outside-toplevel  # only ranks need it
        self.torch, self.is_eager = torch, is_eager
        self.lock, self.mine = threading.RLock(), threading.local()
        self.main, self.devices, self.held = {}, {}, []
        self.num_pinned_bytes, self.unkept = 0, {}

    # ---- What switchml/cuda.py has -----------------------------------------------------------------------

    def device_of(self, tensor):
        return self.devices.get(_storage(tensor), 0 if self.is_eager else None)

    def new_stream(self, device):
        return _Stream(device)

    def current_stream(self, device):
        with self.lock:
            own = getattr(self.mine, "streams", {}).get(device)
            return own or self.main.setdefault(device, _Stream(device, True))

    @contextlib.contextmanager
    def as_current(self, stream):
        before = getattr(self.mine, "streams", {})
        self.mine.streams = {**before, stream.device: stream}
        try:
            yield
        finally:
            self.mine.streams = before

    def mark(self, stream):
        with self.lock:
            return _Event(stream.last)

    def wait(self, stream, event):
        self._enqueue(stream, None, event.operation)

    def is_over(self, event):
        with self.lock:
            if event.operation is not None and event.operation.before is not None:
                event.num_asked += 1
                if event.num_asked <= _PATIENCE:
                    return False
                event.operation.run()
            return True

    def synchronize(self, event):
        with self.lock:
            if event.operation is not None:
                event.operation.run()

    def copy(self, stream, to, source):
        mode = self.torch.inference_mode(self.torch.is_inference_mode_enabled())  # of the thread that asks for it

        def run():
            with mode:
                to.copy_(source)
        with self.lock:
            if not stream.is_callers:
                for tensor in to, source:
                    if self.device_of(tensor) is not None and not self._is_pinned(tensor):
                        self.unkept[_storage(tensor), stream] = tuple(tensor.shape)
            self._enqueue(stream, run)

    def new_like(self, tensor):
        return self.tensor(self.torch.empty(tensor.shape, dtype=tensor.dtype), self.device_of(tensor), True)

    def keep(self, tensor, stream):
        with self.lock:
            self.unkept.pop((_storage(tensor), stream), None)

    def pinned(self, num_bytes):
        memory = self.torch.full((num_bytes,), _GARBAGE, dtype=self.torch.uint8)
        with self.lock:
            self.num_pinned_bytes += num_bytes
            self.devices[_storage(memory)] = None
        return memory

    def future(self, _devices):
        return _future_class(self)()

    # ---- What tests do ---------------------------------------------------------------------------------------

    def _is_pinned(self, tensor):
        return self.devices.get(_storage(tensor), 0) is None

    def _enqueue(self, stream, function, *before):
        with self.lock:
            operation = _Operation(function, [each for each in (stream.last, *before) if each is not None])
            stream.last = operation
            if self.is_eager and stream.is_callers:
                operation.run()

    def tensor(self, values, device=0, is_garbage=False):
        """Of a device, from one of the host."""
        made = values.clone()
        if is_garbage and made.numel():
            made.view(-1).view(self.torch.uint8).fill_(_GARBAGE)
        with self.lock:
            self.held.append(made)  # so that no other gets its address
            self.devices[_storage(made)] = device
        return made

    def host_tensor(self, tensor):
        """A copy in the host's memory."""
        made = tensor.detach().clone()
        with self.lock:
            self.held.append(made)
            self.devices[_storage(made)] = None
        return made

    def kernel(self, device, function):
        """Some time later, in the order of the current stream."""
        self._enqueue(self.current_stream(device), function)

    def look(self, tensor):
        """What the current stream sees."""
        with self.lock:
            self.synchronize(self.mark(self.current_stream(self.device_of(tensor))))
            return tensor.detach().clone()

    def side_stream(self, device):
        """A stream of the script's own."""
        return _Stream(device, True)

    def follower(self, device):
        """A function that lets the then current stream wait for what the current one has now."""
        event = self.mark(self.current_stream(device))
        return lambda: self.wait(self.current_stream(device), event)

    def wait_for_future(self, work):
        """As a script does, or C++."""
        from switchml.works import Promise  # pylint: disable=import-outside-toplevel
        value = work.get_future().wait()
        for device, event in getattr(Promise.of_work[work].ended, "events", {}).items():
            self.wait(self.current_stream(device), event)
        return value

    def gloo(self, inner):
        """Gloo's group for tensors of the device: it copies them after what the current stream has."""
        device = self

        class Gloo:
            def __getattr__(self, name):
                method = getattr(inner, name)

                def call(*arguments):
                    device.synchronize(device.mark(device.current_stream(0)))
                    return method(*arguments)
                return call
        return Gloo()

    def problems(self):
        return [f"a stream used a tensor of shape {shape}, whose memory was not kept for it" for shape in self.unkept.values()]


def _future_class(device):
    class Future(device.torch.futures.Future):
        """As torch's of devices: it has an event of the current stream of each device that its value has tensors on."""
        events = {}

        def set_result(self, result):
            values = result if isinstance(result, (list, tuple)) else [result]
            found = {device.device_of(value) for value in values if isinstance(value, device.torch.Tensor)} - {None}
            self.events = {each: device.mark(device.current_stream(each)) for each in found}
            for event in self.events.values() if device.is_eager else ():
                device.synchronize(event)  # C++, which waits for the future, does not know the stand-in
            super().set_result(result)
    return Future


class RealDevice:
    """The same for tests on a GPU. Kernels are late, because others that take long are before them."""

    def __init__(self):
        import torch  # pylint: disable=import-outside-toplevel  # only ranks need it
        from switchml import cuda  # pylint: disable=import-outside-toplevel
        self.torch, self.api, self.num_pinned_bytes = torch, cuda.api, 0
        make = cuda.api.pinned

        def pinned(num_bytes):
            self.num_pinned_bytes += num_bytes
            return make(num_bytes)
        cuda.api.pinned = pinned

    def _device(self, number):
        return self.torch.device("cuda", number % self.torch.cuda.device_count())

    def tensor(self, values, device=0):
        return values.to(self._device(device))

    def host_tensor(self, tensor):
        return tensor.detach().cpu()

    def kernel(self, device, function):
        with self.torch.cuda.device(self._device(device)):
            self.torch.cuda._sleep(_SLEEP_CYCLES)
            function()

    def look(self, tensor):
        return tensor.detach().cpu()

    def side_stream(self, device):
        return self.torch.cuda.Stream(self._device(device))

    def as_current(self, stream):
        return self.torch.cuda.stream(stream)

    def follower(self, device):
        event, device = self.torch.cuda.current_stream(self._device(device)).record_event(), self._device(device)
        return lambda: self.torch.cuda.current_stream(device).wait_event(event)

    def gloo(self, inner):
        return inner

    def wait_for_future(self, work):
        return work.get_future().wait()

    def problems(self):
        return []


def device_for_tests(is_eager=False):
    """SML_TEST_DEVICE=cuda: the first GPU. Otherwise the stand-in, which takes the place of switchml's CUDA calls."""
    from switchml import cuda  # pylint: disable=import-outside-toplevel
    if os.environ.get("SML_TEST_DEVICE") == "cuda":
        return RealDevice()
    cuda.api = Standin(is_eager)
    return cuda.api
