# SPDX-License-Identifier: Apache-2.0
"""Numbers and structs of switchml.h. Made by tools/python_api.py: change the header."""
import ctypes

ALLGATHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

SML_MAX_NAMED_RANKS = 16

SML_OK = 0
SML_IN_PROGRESS = 1
SML_ERR_INVALID_ARGUMENT = -1
SML_ERR_UNSUPPORTED = -2
SML_ERR_NO_MEMORY = -3
SML_ERR_BUSY = -4
SML_ERR_SYSTEM = -5
SML_ERR_UNREACHABLE = -6
SML_ERR_REFUSED = -7
SML_ERR_VERSION = -8
SML_ERR_MTU = -9
SML_ERR_TIMEOUT = -10
SML_ERR_RANK_LOST = -11
SML_ERR_AGGREGATOR_LOST = -12
SML_ERR_MISMATCH = -13
SML_ERR_ABORTED = -14
SML_ERR_NOT_CONFIGURED = -15
SML_ERR_FORKED = -16
SML_ERR_PROTOCOL = -17
SML_ERR_INTEGRITY = -18
SML_ERR_KEY = -19

SML_FLOAT32 = 0
SML_INT32 = 1
SML_FLOAT16 = 2
SML_BFLOAT16 = 3
SML_FLOAT64 = 4
SML_INT64 = 5
SML_INT8 = 6
SML_UINT8 = 7
SML_UINT32 = 8
SML_UINT64 = 9

SML_SUM = 0
SML_AVG = 1
SML_MIN = 2
SML_MAX = 3
SML_PRODUCT = 4
SML_BAND = 5
SML_BOR = 6
SML_LAND = 7
SML_LOR = 8


class JobOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("aggregator", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("allgather", ALLGATHER),
        ("allgather_user", ctypes.c_void_p),
        ("join_timeout_ns", ctypes.c_uint64),
        ("operation_timeout_ns", ctypes.c_uint64),
        ("lease_ns", ctypes.c_uint64),
        ("num_slots", ctypes.c_uint32),
        ("max_datagram_bytes", ctypes.c_uint32),
        ("check", ctypes.c_uint32),
        ("key_file", ctypes.c_char_p),
        ("key_name", ctypes.c_char_p),
        ("retry_ns", ctypes.c_uint64),
        ("no_shared_memory", ctypes.c_uint32),
        ("no_multicast", ctypes.c_uint32),
        ("float_bits", ctypes.c_uint32),
        ("float64_bits", ctypes.c_uint32),
        ("exact", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class OperationOptions(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("key", ctypes.c_uint64),
        ("timeout_ns", ctypes.c_uint64),
        ("starts", ctypes.c_void_p),
        ("num_starts", ctypes.c_size_t),
        ("exact", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class Error(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("num_ranks", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32 * SML_MAX_NAMED_RANKS),
        ("operation", ctypes.c_uint64),
        ("detail", ctypes.c_char * 512),
    ]


class Stats(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_size_t),
        ("operations_submitted", ctypes.c_uint64),
        ("operations_completed", ctypes.c_uint64),
        ("operations_failed", ctypes.c_uint64),
        ("tensor_bytes", ctypes.c_uint64),
        ("tx_packets", ctypes.c_uint64),
        ("tx_bytes", ctypes.c_uint64),
        ("rx_packets", ctypes.c_uint64),
        ("rx_bytes", ctypes.c_uint64),
        ("chunks_completed", ctypes.c_uint64),
        ("retransmissions", ctypes.c_uint64),
        ("probes", ctypes.c_uint64),
        ("dropped_packets", ctypes.c_uint64),
        ("system_calls", ctypes.c_uint64),
        ("srtt_ns", ctypes.c_uint64),
        ("rto_ns", ctypes.c_uint64),
        ("num_lanes", ctypes.c_uint32),
        ("num_slots", ctypes.c_uint32),
        ("chunk_bytes", ctypes.c_uint32),
        ("has_segmentation_offload", ctypes.c_uint32),
        ("check_failures", ctypes.c_uint64),
        ("key_failures", ctypes.c_uint64),
        ("rejoins", ctypes.c_uint64),
        ("retained_bytes", ctypes.c_uint64),
        ("num_local_ranks", ctypes.c_uint32),
        ("join_rtt_ns", ctypes.c_uint64),
        ("slots_why", ctypes.c_uint32),
        ("window_chunks", ctypes.c_uint32),
        ("window_reductions", ctypes.c_uint64),
        ("ecn_marks", ctypes.c_uint64),
        ("needless_repeats", ctypes.c_uint64),
        ("busiest_slot_chunks", ctypes.c_uint32),
        ("lost_results", ctypes.c_uint64),
        ("unsent_packets", ctypes.c_uint64),
        ("unsent_errno", ctypes.c_uint32),
    ]
