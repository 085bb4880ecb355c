# SPDX-License-Identifier: Apache-2.0
"""One job of the library's: which calls are for it, how ranks make it, and its operations. What the library says when
something fails is a SwitchMLError here."""
import ctypes
import json
import os
import secrets

import torch
from torch.distributed import ReduceOp

from . import api, gloo, staging
from .library import SwitchMLError, described_error, sized, thread_error
from .process import Process

SML_TYPE = {torch.float32: api.SML_FLOAT32, torch.int32: api.SML_INT32, torch.float16: api.SML_FLOAT16,
            torch.bfloat16: api.SML_BFLOAT16, torch.float64: api.SML_FLOAT64, torch.int64: api.SML_INT64,
            torch.int8: api.SML_INT8, torch.uint8: api.SML_UINT8, torch.bool: api.SML_UINT8}
_REDUCTIONS = {name: getattr(api, f"SML_{name}") for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR")}
_OF_FLOATS = (api.SML_SUM, api.SML_AVG, api.SML_MIN, api.SML_MAX)
_OF_TRUTHS = {api.SML_SUM: api.SML_LOR, api.SML_MAX: api.SML_LOR, api.SML_BOR: api.SML_LOR,
              api.SML_PRODUCT: api.SML_LAND, api.SML_MIN: api.SML_LAND, api.SML_BAND: api.SML_LAND}
NS = 1_000_000_000
_JOIN_TIMEOUT_S = 60  # every rank is known to be there when the join starts


def _of_type(dtype, reduction, has_float64):
    if dtype is torch.bool:
        return _OF_TRUTHS.get(reduction)
    is_sum = reduction in (api.SML_SUM, api.SML_AVG)
    if dtype.is_floating_point:
        is_offered, is_wider = reduction in _OF_FLOATS and (not is_sum or dtype != torch.float64 or has_float64), not is_sum
    else:
        is_offered, is_wider = reduction != api.SML_AVG, is_sum or reduction == api.SML_PRODUCT
    # Some reductions of a byte or two take twice as much of a link: those are Gloo's if it knows the type.
    is_wider = is_wider and dtype in (torch.float16, torch.bfloat16, torch.int8, torch.uint8)
    return reduction if is_offered and not (is_wider and gloo.takes(dtype)) else None


def reduction_for(tensors, op, has_float64):
    """The library's number of the reduction, or None: the call is none for SwitchML. From facts that are equal on all
    ranks. has_float64: as settings.agree()."""
    first = tensors[0].dtype if tensors else None
    reduction = next((number for name, number in _REDUCTIONS.items() if op == getattr(ReduceOp, name)), None)
    if first not in SML_TYPE or reduction is None or not all(
            tensor.dtype == first and tensor.layout == torch.strided
            and (tensor.device.type == "cpu" or staging.is_staged(tensor)) for tensor in tensors):
        return None
    return _of_type(first, reduction, has_float64)


class CannotJoin(Exception):
    """There is no job, on any rank, for a reason that all of them got."""

    def __init__(self, error):
        super().__init__(str(error))
        self.error = error


class Busy(Exception):
    """The library has no operation free now."""


class Job:
    """This rank's part in it. Operations are called in the same order on all ranks."""

    def __init__(self, library, handle):
        self.library, self.handle = library, handle

    @classmethod
    def join(cls, exchange, rank, size, timeout_s):
        """Collective. Raises CannotJoin on all ranks alike, anything else on this one alone."""
        problem, token = "", secrets.token_hex(4)
        try:
            context = Process.open_context()
        except SwitchMLError as error:
            problem = str(error)
        ranks = [json.loads(data) for data in exchange.gather(json.dumps([problem, token]).encode())]
        for number, (problem, _) in enumerate(ranks):
            if problem:
                raise CannotJoin(SwitchMLError(f"rank {number}: {problem}"))
        library = Process.library
        master = f"{os.environ.get('MASTER_ADDR', 'local')}:{os.environ.get('MASTER_PORT', '0')}"
        options, callback, handle = sized(api.JobOptions), exchange.callback(), ctypes.c_void_p()
        aggregator = os.environ.get("SWITCHML_AGGREGATOR")
        options.aggregator = aggregator.encode() if aggregator else b""
        options.name = f"torch-{ranks[0][1]}-{master}".encode()[:63]
        options.rank, options.world_size, options.allgather = rank, size, callback
        options.join_timeout_ns = int(min(timeout_s, _JOIN_TIMEOUT_S) * NS)
        options.operation_timeout_ns = int(timeout_s * NS)
        status = library.sml_job_create(context, ctypes.byref(options), ctypes.byref(handle))
        if exchange.error is not None:
            raise exchange.error
        if status != 0:
            raise CannotJoin(thread_error(library, status))
        return cls(library, handle)

    def leave(self):
        self.library.sml_job_destroy(self.handle)

    def abort(self, why):
        """For all ranks: what is outstanding ends."""
        self.library.sml_job_abort(self.handle, str(why).encode())

    def error(self):
        """Why the job has ended, or None."""
        error = sized(api.Error)
        self.library.sml_job_error(self.handle, ctypes.byref(error))
        return described_error(self.library, error) if error.status != 0 else None

    def stats(self):
        """The library's counters, or None."""
        stats = sized(api.Stats)
        if self.library.sml_job_stats(self.handle, ctypes.byref(stats)) != 0:
            return None
        return {name: getattr(stats, name) for name, _ in api.Stats._fields_[1:]}

    def takes(self, dtype, count, reduction):
        return self.library.sml_supported(self.handle, SML_TYPE[dtype], reduction, count)

    def begin(self, name, key, starts, *arguments):
        """The library's function of that name: what comes between the job and the options. Tensors are lent until ended().
        Returns the operation. Raises Busy, or why not. key: tells apart calls that are alike. starts: where tensors begin in
        the one, or None."""
        handle, options = ctypes.c_void_p(), sized(api.OperationOptions)
        options.key = key or 0
        if starts is not None:
            array = (ctypes.c_size_t * len(starts))(*starts)
            options.starts, options.num_starts = ctypes.addressof(array), len(starts)
        arguments = [each.data_ptr() or ctypes.addressof(handle) if isinstance(each, torch.Tensor) else each
                     for each in arguments]  # 0 elements: any address will do
        status = getattr(self.library, f"sml_{name}")(self.handle, *arguments, ctypes.byref(options), ctypes.byref(handle))
        if status == api.SML_ERR_BUSY:
            raise Busy
        if status != 0:
            raise self.error() or thread_error(self.library, status)
        return handle

    def ended(self, operation, limit_ns):
        """Waits for an operation, for so long. (False, None): it is under way. (True, its error or None): it is over."""
        library = self.library
        status = library.sml_operation_wait(operation, limit_ns)
        if status == api.SML_IN_PROGRESS:
            return False, None
        problem = None
        if status != 0:
            error = sized(api.Error)
            library.sml_operation_error(operation, ctypes.byref(error))
            problem = described_error(library, error)
        library.sml_operation_release(operation)
        return True, problem

    def begin_batch(self):
        """Operations until end_batch() may share packets."""
        self.library.sml_batch_begin(self.handle)

    def end_batch(self):
        """A batch's operations know by themselves if they fail."""
        self.library.sml_batch_end(self.handle)
