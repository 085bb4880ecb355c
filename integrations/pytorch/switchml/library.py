# SPDX-License-Identifier: Apache-2.0
"""libswitchml through ctypes: switchml.h, as far as it is used here, and its errors as exceptions."""
import ctypes
import os

from .api import SML_MAX_NAMED_RANKS


class SwitchMLError(RuntimeError):
    """Why an operation or a group failed: status (libswitchml's name of it), the ranks that are to blame
    or missing, and the number of the operation in the group's order."""

    def __init__(self, text, status="", ranks=(), operation=None):
        super().__init__(text)
        self.status, self.ranks, self.operation = status, tuple(ranks), operation


def sized(struct_type):
    return struct_type(struct_bytes=ctypes.sizeof(struct_type))


_P, _I, _Z, _U64, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_char_p
_SIGNATURES = {
    "sml_status_string": (_S, _I), "sml_error_detail": (_S,),
    "sml_context_create": (_I, _P, _P), "sml_context_destroy": (None, _P),
    "sml_context_dump_trace": (_I, _P, _S),
    "sml_job_create": (_I, _P, _P, _P), "sml_job_destroy": (None, _P), "sml_job_abort": (_I, _P, _S),
    "sml_job_error": (_I, _P, _P), "sml_job_stats": (_I, _P, _P), "sml_supported": (_I, _P, _I, _I, _Z),
    "sml_allreduce": (_I, _P, _P, _P, _Z, _I, _I, _P, _P), "sml_all_gather": (_I, _P, _P, _P, _Z, _P, _P, _P),
    "sml_reduce_scatter": (_I, _P, _P, _P, _Z, _P, _I, _I, _P, _P), "sml_operation_wait": (_I, _P, _U64),
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
    ranks = list(error.ranks[:min(error.num_ranks, SML_MAX_NAMED_RANKS)])
    name = library.sml_status_string(error.status).decode()
    text = error.detail.decode(errors="replace") or name
    if ranks:
        text += f" [rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}]"
    return SwitchMLError(f"{text} ({name})", name, ranks, error.operation)
