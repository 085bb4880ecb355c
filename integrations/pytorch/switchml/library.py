# SPDX-License-Identifier: Apache-2.0
"""libswitchml through ctypes: switchml.h, as far as it is used here, and its errors as exceptions."""
import ctypes
import os

MAX_NAMED_RANKS = 16


class SwitchMLError(RuntimeError):
    """Why an operation or a group failed: status (libswitchml's name of it), the ranks that are to blame
    or missing, and the number of the operation in the group's order."""

    def __init__(self, text, status="", ranks=(), operation=None):
        super().__init__(text)
        self.status, self.ranks, self.operation = status, tuple(ranks), operation


class JobOptions(ctypes.Structure):
    ALLGATHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("aggregator", ctypes.c_char_p), ("name", ctypes.c_char_p),
                ("rank", ctypes.c_uint32), ("world_size", ctypes.c_uint32), ("allgather", ALLGATHER),
                ("allgather_user", ctypes.c_void_p), ("join_timeout_ns", ctypes.c_uint64),
                ("operation_timeout_ns", ctypes.c_uint64), ("lease_ns", ctypes.c_uint64),
                ("num_slots", ctypes.c_uint32), ("max_datagram_bytes", ctypes.c_uint32), ("check", ctypes.c_uint32),
                ("key_file", ctypes.c_char_p), ("key_name", ctypes.c_char_p), ("retry_ns", ctypes.c_uint64),
                ("no_shared_memory", ctypes.c_uint32), ("no_multicast", ctypes.c_uint32),
                ("float_bits", ctypes.c_uint32), ("float64_bits", ctypes.c_uint32)]


class Error(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("status", ctypes.c_int), ("num_ranks", ctypes.c_uint32),
                ("ranks", ctypes.c_uint32 * MAX_NAMED_RANKS), ("operation", ctypes.c_uint64),
                ("detail", ctypes.c_char * 512)]


class Stats(ctypes.Structure):
    _fields_ = ([("struct_bytes", ctypes.c_size_t)]
                + [(name, ctypes.c_uint64) for name in (
                  "operations_submitted", "operations_completed", "operations_failed", "tensor_bytes",
                  "tx_packets", "tx_bytes", "rx_packets", "rx_bytes", "chunks_completed", "retransmissions",
                  "probes", "dropped_packets", "system_calls", "srtt_ns", "rto_ns")]
                + [(name, ctypes.c_uint32) for name in (
                  "num_lanes", "num_slots", "chunk_bytes", "has_segmentation_offload")]
                + [(name, ctypes.c_uint64) for name in ("check_failures", "key_failures", "rejoins", "retained_bytes")]
                + [("num_local_ranks", ctypes.c_uint32), ("join_rtt_ns", ctypes.c_uint64)]
                + [(name, ctypes.c_uint32) for name in ("slots_why", "window_chunks")]
                + [(name, ctypes.c_uint64) for name in ("window_reductions", "ecn_marks", "needless_repeats")]
                + [("busiest_slot_chunks", ctypes.c_uint32), ("lost_results", ctypes.c_uint64)]
                + [("block_chunks", ctypes.c_uint32), ("unsent_packets", ctypes.c_uint64),
                   ("unsent_errno", ctypes.c_uint32)])


def sized(struct_type):
    return struct_type(struct_bytes=ctypes.sizeof(struct_type))


_P, _I, _Z, _U64, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_char_p
_SIGNATURES = {
    "sml_status_string": (_S, _I), "sml_error_detail": (_S,),
    "sml_context_create": (_I, _P, _P), "sml_context_destroy": (None, _P),
    "sml_context_dump_trace": (_I, _P, _S),
    "sml_job_create": (_I, _P, _P, _P), "sml_job_destroy": (None, _P), "sml_job_abort": (_I, _P, _S),
    "sml_job_error": (_I, _P, _P), "sml_job_stats": (_I, _P, _P), "sml_supported": (_I, _P, _I, _I, _Z),
    "sml_allreduce": (_I, _P, _P, _P, _Z, _I, _I, _P, _P), "sml_operation_wait": (_I, _P, _U64),
    "sml_operation_error": (_I, _P, _P), "sml_operation_release": (None, _P),
    "sml_batch_begin": (_I, _P), "sml_batch_end": (_I, _P)}


def _library_paths():
    """Of the installation, or of the source tree, that this module is of."""
    try:
        from switchml.installed import LIBRARY as path # pylint: disable=import-outside-toplevel
    except ImportError:
        path = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../../build/lib/libswitchml.so"))
    return [path] if os.path.exists(path) else []


def load_library():
    wanted, problems = os.environ.get("SWITCHML_LIBRARY"), []
    for candidate in [wanted] if wanted else _library_paths() + ["libswitchml.so.0"]:
        try:
            library = ctypes.CDLL(candidate)
            for name, (result, *arguments) in _SIGNATURES.items():
                function = getattr(library, name)
                function.restype, function.argtypes = result, arguments
            return library
        except (OSError, AttributeError) as problem:
            problems.append(str(problem))
    raise SwitchMLError("libswitchml cannot be loaded (" + "; ".join(problems)
                        + "); build it, or set SWITCHML_LIBRARY to its path")


def thread_error(library, status):
    """The error of a call that this thread just made."""
    name = library.sml_status_string(status).decode()
    return SwitchMLError(library.sml_error_detail().decode(errors="replace") or name, name)


def described_error(library, error):
    ranks = list(error.ranks[:min(error.num_ranks, MAX_NAMED_RANKS)])
    name = library.sml_status_string(error.status).decode()
    text = error.detail.decode(errors="replace") or name
    if ranks:
        text += f" [rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}]"
    return SwitchMLError(f"{text} ({name})", name, ranks, error.operation)
