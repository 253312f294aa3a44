"""The shared library: where it is, the structs and signatures of what is called, owned handles.

Structs repeat kvhints.h; a test compares them with what a C compiler says of the header.
"""

import ctypes
import ctypes.util
import os
import sys
from typing import Any, Callable, List, Optional

from ._errors import Error

ABI_VERSION = 1
SONAME = "libkvhints.so.0"

OK, IN_PROGRESS, NOT_FOUND, BUSY = 0, 1, 2, 3
ERR_TOO_SMALL = -4
ERR_UNSUPPORTED = -22

Handle = ctypes.c_void_p
Size = ctypes.c_size_t


class Text(ctypes.Structure):
    """kvh_str_t and kvh_bytes_t: borrowed bytes."""

    _fields_ = [("data", ctypes.c_void_p), ("len", Size)]

    def copy(self) -> bytes:
        """The bytes, copied."""
        return ctypes.string_at(self.data, self.len) if self.len else b""


class ActionStruct(ctypes.Structure):
    """kvh_action_t."""

    _fields_ = [("id", Text), ("type", Text), ("version", Text), ("payload", Text), ("json", Text)]


class ContextParamsStruct(ctypes.Structure):
    """kvh_context_params_t."""

    _fields_ = [
        ("struct_size", Size),
        ("trust_http_hints", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("clock_monotonic_ns", ctypes.c_void_p),
        ("clock_unix_seconds", ctypes.c_void_p),
        ("clock_user_data", ctypes.c_void_p),
        ("clock_destroy", ctypes.c_void_p),
        ("body_max_bytes", Size),
        ("key_ring", Handle),
    ]


class KeyRingParamsStruct(ctypes.Structure):
    """kvh_key_ring_params_t."""

    _fields_ = [
        ("struct_size", Size),
        ("audience", Text),
        ("expiry", ctypes.c_uint32),
        ("admissions_max", ctypes.c_uint32),
        ("replay_entries_max", Size),
    ]


class SigningParamsStruct(ctypes.Structure):
    """kvh_signing_params_t."""

    _fields_ = [
        ("struct_size", Size),
        ("key_id", Text),
        ("expiry_unix_seconds", ctypes.c_uint64),
        ("audience", Text),
        ("nonce", Text),
    ]


class LogRecordStruct(ctypes.Structure):
    """kvh_log_record_t."""

    _fields_ = [
        ("struct_size", Size),
        ("level", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("event", Text),
        ("message", Text),
        ("fields", Text),
        ("left_out", ctypes.c_uint64),
        ("time_ns", ctypes.c_uint64),
    ]


class CandidateCounts(ctypes.Structure):
    """kvh_candidate_counts_t."""

    _fields_ = [("candidates", Size), ("unknown_type", Size), ("version_unmatched", Size)]


class RequestProfileStruct(ctypes.Structure):
    """kvh_request_profile_t."""

    _fields_ = [
        ("struct_size", Size),
        ("kind", ctypes.c_uint32),
        ("has_lora", ctypes.c_uint32),
        ("required_handoff", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("namespace_bytes", Text),
    ]


class PlanFetchStruct(ctypes.Structure):
    """kvh_plan_fetch_t."""

    _fields_ = [
        ("struct_size", Size),
        ("binding_id", Text),
        ("endpoint", Text),
        ("action_index", Size),
        ("last_block_hash", ctypes.c_uint64),
        ("block_count", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("envelope", Text),
    ]


class BatchRequestStruct(ctypes.Structure):
    """kvh_batch_request_t."""

    _fields_ = [
        ("struct_size", Size),
        ("id", ctypes.c_uint64),
        ("body", Text),
        ("snapshot", Handle),
        ("plan", Handle),
        ("flags", ctypes.c_uint32),
        ("parent", ctypes.c_uint32),
    ]


class CommunicatorParamsStruct(ctypes.Structure):
    """kvh_communicator_params_t."""

    _fields_ = [
        ("struct_size", Size),
        ("tensor_size", ctypes.c_uint32),
        ("pipeline_size", ctypes.c_uint32),
        ("context_size", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
        ("chunk_bytes", ctypes.c_uint32),
        ("pipeline_sends", ctypes.c_uint32),
        ("deadline_ns", ctypes.c_uint64),
        ("hint_form", ctypes.c_uint32),
        ("node_window", ctypes.c_uint32),
        ("first_message_bytes", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class SequenceParamsStruct(ctypes.Structure):
    """kvh_sequence_params_t."""

    _fields_ = [
        ("struct_size", Size),
        ("tokens_per_block", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("token_count", Size),
        ("extra_ids", ctypes.c_void_p),
        ("lora_id", ctypes.c_uint64),
        ("salt", ctypes.c_uint64),
        ("mm_items", ctypes.c_void_p),
        ("mm_item_count", Size),
        ("namespace_bytes", Text),
        ("salt_bytes", Text),
        ("adapter_digest", Text),
    ]


class ReuseTreeParamsStruct(ctypes.Structure):
    """kvh_reuse_tree_params_t."""

    _fields_ = [
        ("struct_size", Size),
        ("tokens_per_block", ctypes.c_uint32),
        ("mode", ctypes.c_uint32),
        ("windows", ctypes.c_void_p),
        ("window_count", Size),
        ("primary_blocks", ctypes.c_int32),
        ("secondary_blocks", ctypes.c_int32),
        ("event_capacity", Size),
    ]


class RequestParamsStruct(ctypes.Structure):
    """kvh_request_params_t."""

    _fields_ = [
        ("struct_size", Size),
        ("sequence", Handle),
        ("max_matched_tokens", Size),
        ("retention", ctypes.c_void_p),
        ("retention_count", Size),
    ]


class BlockCopyStruct(ctypes.Structure):
    """kvh_block_copy_t."""

    _fields_ = [
        ("struct_size", Size),
        ("window", ctypes.c_int32),
        ("block_id", ctypes.c_int32),
        ("reason", ctypes.c_uint32),
        ("from_tier", ctypes.c_uint32),
        ("from_slot", ctypes.c_uint32),
        ("to_tier", ctypes.c_uint32),
        ("to_slot", ctypes.c_uint32),
        ("token_count", ctypes.c_uint32),
    ]


class RefreshedStruct(ctypes.Structure):
    """kvh_reuse_tree_refreshed_t."""

    _fields_ = [
        ("struct_size", Size),
        ("priorities_expired", Size),
        ("leases_expired", Size),
        ("oldest_pin_age_ns", ctypes.c_uint64),
    ]


class TransceiverParamsStruct(ctypes.Structure):
    """kvh_transceiver_params_t."""

    _fields_ = [
        ("struct_size", Size),
        ("transport", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("loopback", Handle),
        ("wires", Text),
        ("network_devices", Text),
        ("listen_address", Text),
        ("namespace_bytes", Text),
        ("tensor_parallel", ctypes.c_uint32),
        ("pipeline_parallel", ctypes.c_uint32),
        ("context_parallel", ctypes.c_uint32),
        ("attention_data_parallel", ctypes.c_uint32),
        ("layers_per_pipeline_rank", ctypes.POINTER(ctypes.c_uint32)),
        ("pipeline_rank_count", Size),
        ("kv_heads_per_layer", ctypes.POINTER(ctypes.c_uint32)),
        ("layer_count", Size),
        ("head_size", ctypes.c_uint32),
        ("data_type", ctypes.c_uint32),
        ("attention", ctypes.c_uint32),
        ("window", ctypes.c_int32),
        ("pool_memory", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("pool_base", ctypes.c_void_p),
        ("block_bytes", Size),
        ("block_count", Size),
        ("max_destinations", ctypes.c_uint32),
        ("max_requests", ctypes.c_uint32),
        ("max_bytes_in_flight", ctypes.c_uint64),
        ("max_hold_time_ns", ctypes.c_uint64),
        ("max_sources", ctypes.c_uint32),
        ("max_prefetches", ctypes.c_uint32),
        ("max_staging_bytes", ctypes.c_uint64),
        ("peer_keys", Handle),
        ("peer_key_id", Text),
        ("unauthenticated_peers", ctypes.c_uint32),
        ("reserved_2", ctypes.c_uint32),
        ("block_owner", Handle),
        ("cuda_stream", ctypes.c_void_p),
        ("cuda_ready_event", ctypes.c_void_p),
        ("thread_cores", ctypes.POINTER(ctypes.c_uint32)),
        ("thread_core_count", Size),
    ]


class PrefetchParamsStruct(ctypes.Structure):
    """kvh_prefetch_params_t."""

    _fields_ = [
        ("struct_size", Size),
        ("policy", ctypes.c_uint32),
        ("source_attention_data_rank", ctypes.c_uint32),
        ("plan", Handle),
        ("sequence", Handle),
        ("source_state", Text),
        ("first_block", Size),
        ("max_tokens", Size),
        ("block_ids", ctypes.POINTER(ctypes.c_int32)),
        ("block_id_count", Size),
        ("metadata_deadline_ns", ctypes.c_uint64),
        ("transfer_deadline_ns", ctypes.c_uint64),
        ("abandonment_deadline_ns", ctypes.c_uint64),
        ("source_requirement", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
    ]


class PrefetchOutcomeStruct(ctypes.Structure):
    """kvh_prefetch_outcome_t."""

    _fields_ = [
        ("struct_size", Size),
        ("kind", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("token_end", Size),
        ("block_count", Size),
        ("reason", ctypes.c_char_p),
    ]


# C names of the structs above, for the test that compares them with the header.
STRUCTS = {
    "kvh_str_t": Text,
    "kvh_bytes_t": Text,
    "kvh_action_t": ActionStruct,
    "kvh_context_params_t": ContextParamsStruct,
    "kvh_key_ring_params_t": KeyRingParamsStruct,
    "kvh_signing_params_t": SigningParamsStruct,
    "kvh_log_record_t": LogRecordStruct,
    "kvh_candidate_counts_t": CandidateCounts,
    "kvh_request_profile_t": RequestProfileStruct,
    "kvh_plan_fetch_t": PlanFetchStruct,
    "kvh_batch_request_t": BatchRequestStruct,
    "kvh_communicator_params_t": CommunicatorParamsStruct,
    "kvh_sequence_params_t": SequenceParamsStruct,
    "kvh_reuse_tree_params_t": ReuseTreeParamsStruct,
    "kvh_request_params_t": RequestParamsStruct,
    "kvh_block_copy_t": BlockCopyStruct,
    "kvh_reuse_tree_refreshed_t": RefreshedStruct,
    "kvh_transceiver_params_t": TransceiverParamsStruct,
    "kvh_prefetch_params_t": PrefetchParamsStruct,
    "kvh_prefetch_outcome_t": PrefetchOutcomeStruct,
}


def sized(struct: Callable[[], Any]) -> Any:
    """A parameter or output struct, zero but for its size."""
    value = struct()
    value.struct_size = ctypes.sizeof(value)
    return value


def text(value: bytes) -> Text:
    """Borrows bytes; the caller keeps them alive during the call."""
    return Text(ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p), len(value))


_P = ctypes.POINTER
_OUT = _P(Handle)
# Return type, then arguments; a status where the return type is c_int32.
_SIGNATURES = {
    "kvh_abi_version": (ctypes.c_uint32,),
    "kvh_version_string": (ctypes.c_char_p,),
    "kvh_status_string": (ctypes.c_char_p, ctypes.c_int32),
    "kvh_context_create": (ctypes.c_int32, ctypes.c_void_p, _OUT),
    "kvh_context_destroy": (None, Handle),
    "kvh_context_metrics": (ctypes.c_int32, Handle, ctypes.c_char_p, Size, _P(Size)),
    "kvh_context_status": (ctypes.c_int32, Handle, ctypes.c_char_p, Size, _P(Size)),
    "kvh_context_poison_location": (ctypes.c_int32, Handle, ctypes.c_char_p, Size, _P(Size)),
    # The functions are log.py's, which knows their types.
    "kvh_context_set_log": (ctypes.c_int32, Handle, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
    "kvh_key_ring_create": (ctypes.c_int32, _P(KeyRingParamsStruct), _OUT, _OUT),
    "kvh_key_ring_add": (ctypes.c_int32, Handle, Text, Text, _OUT),
    "kvh_key_ring_remove": (ctypes.c_int32, Handle, Text),
    "kvh_key_ring_sign": (ctypes.c_int32, Handle, Handle, _P(SigningParamsStruct), _OUT, _OUT),
    "kvh_key_ring_destroy": (None, Handle),
    "kvh_admit": (ctypes.c_int32, Handle, ctypes.c_int32, ctypes.c_char_p, Size, _P(ctypes.c_int32), _OUT),
    "kvh_admit_msgpack": (ctypes.c_int32, Handle, ctypes.c_int32, ctypes.c_char_p, Size, _P(ctypes.c_int32), _OUT),
    "kvh_admit_body": (ctypes.c_int32, Handle, ctypes.c_int32, ctypes.c_char_p, Size, _P(ctypes.c_int32), _OUT, _OUT),
    "kvh_admit_body_msgpack": (
        ctypes.c_int32, Handle, ctypes.c_int32, ctypes.c_char_p, Size, _P(ctypes.c_int32), _OUT, _OUT,
    ),
    "kvh_buffer_bytes": (Text, Handle),
    "kvh_buffer_release": (None, Handle),
    "kvh_snapshot_retain": (Handle, Handle),
    "kvh_snapshot_release": (None, Handle),
    "kvh_snapshot_json": (Text, Handle),
    "kvh_snapshot_message_id": (Text, Handle),
    "kvh_snapshot_action_count": (Size, Handle),
    "kvh_snapshot_action": (ctypes.c_int32, Handle, Size, _P(ActionStruct)),
    "kvh_snapshot_one_action": (ctypes.c_int32, Handle, Size, _OUT),
    "kvh_snapshot_msgpack": (ctypes.c_int32, Handle, _OUT),
    "kvh_capabilities_create": (ctypes.c_int32, _OUT),
    "kvh_capabilities_add": (ctypes.c_int32, Handle, Text, Text, Text),
    "kvh_capabilities_destroy": (None, Handle),
    "kvh_candidates_collect": (ctypes.c_int32, Handle, Handle, _OUT),
    "kvh_candidates_counts": (ctypes.c_int32, Handle, _P(CandidateCounts)),
    "kvh_candidates_get": (ctypes.c_int32, Handle, Size, _P(Size), _P(Size)),
    "kvh_candidates_family": (ctypes.c_int32, Handle, Size, Size, _P(Text)),
    "kvh_candidates_destroy": (None, Handle),
    "kvh_binding_table_load": (ctypes.c_int32, ctypes.c_char_p, Size, _OUT, _OUT),
    "kvh_binding_table_destroy": (None, Handle),
    "kvh_plan_decide": (ctypes.c_int32, Handle, Handle, Handle, Handle, _P(RequestProfileStruct), _OUT),
    "kvh_plan_kind": (ctypes.c_int32, Handle),
    "kvh_plan_reason": (ctypes.c_int32, Handle),
    "kvh_refusal_string": (ctypes.c_char_p, ctypes.c_int32),
    "kvh_plan_fetch": (ctypes.c_int32, Handle, _P(PlanFetchStruct)),
    "kvh_plan_to_bytes": (ctypes.c_int32, Handle, _OUT),
    "kvh_plan_from_bytes": (ctypes.c_int32, ctypes.c_char_p, Size, _OUT, _OUT),
    "kvh_plan_destroy": (None, Handle),
    "kvh_batch_create": (ctypes.c_int32, _OUT),
    "kvh_batch_add": (ctypes.c_int32, Handle, _P(BatchRequestStruct)),
    "kvh_batch_count": (Size, Handle),
    "kvh_batch_get": (ctypes.c_int32, Handle, Size, _P(BatchRequestStruct)),
    "kvh_batch_destroy": (None, Handle),
    "kvh_local_group_create": (ctypes.c_int32, ctypes.c_uint32, _OUT),
    "kvh_local_group_destroy": (None, Handle),
    "kvh_communicator_create_local": (ctypes.c_int32, Handle, Handle, ctypes.c_uint32, _P(CommunicatorParamsStruct), _OUT),
    "kvh_communicator_create_mpi": (ctypes.c_int32, Handle, _P(CommunicatorParamsStruct), ctypes.c_int64, _OUT, _OUT),
    "kvh_communicator_rank": (ctypes.c_uint32, Handle),
    "kvh_communicator_size": (ctypes.c_uint32, Handle),
    "kvh_communicator_close": (ctypes.c_int32, Handle),
    "kvh_communicator_destroy": (None, Handle),
    "kvh_broadcast": (ctypes.c_int32, Handle, Handle, _OUT),
    "kvh_sequence_create": (ctypes.c_int32, _P(SequenceParamsStruct), _OUT),
    "kvh_sequence_block_count": (Size, Handle),
    "kvh_sequence_block_hashes": (ctypes.c_int32, Handle, _P(ctypes.c_uint64), Size, _P(Size)),
    "kvh_sequence_destroy": (None, Handle),
    "kvh_reuse_tree_create": (ctypes.c_int32, Handle, _P(ReuseTreeParamsStruct), _OUT),
    "kvh_reuse_tree_destroy": (None, Handle),
    "kvh_reuse_tree_store": (
        ctypes.c_int32, Handle, ctypes.c_int32, Handle, Size, _P(ctypes.c_int32), Size, _P(ctypes.c_int32),
    ),
    "kvh_reuse_tree_match": (ctypes.c_int32, Handle, ctypes.c_int32, Handle, Size, _P(Size)),
    "kvh_reuse_tree_evict": (ctypes.c_int32, Handle, ctypes.c_int32, ctypes.c_int32),
    "kvh_reuse_tree_free_count": (ctypes.c_int32, Handle, ctypes.c_int32, ctypes.c_uint32, _P(Size)),
    "kvh_reuse_tree_block_place": (
        ctypes.c_int32, Handle, ctypes.c_int32, ctypes.c_int32, _P(ctypes.c_uint32), _P(ctypes.c_uint32),
    ),
    "kvh_reuse_tree_copies": (ctypes.c_int32, Handle, _P(BlockCopyStruct), Size, _P(Size)),
    "kvh_reuse_tree_copied": (ctypes.c_int32, Handle, Size),
    "kvh_reuse_tree_refresh": (ctypes.c_int32, Handle, _P(RefreshedStruct)),
    "kvh_request_add": (ctypes.c_int32, Handle, _P(RequestParamsStruct), _OUT),
    "kvh_request_matched_tokens": (Size, Handle),
    "kvh_request_blocks": (
        ctypes.c_int32, Handle, ctypes.c_int32, _P(Size), _P(ctypes.c_int32), Size, _P(Size),
    ),
    "kvh_request_grow": (ctypes.c_int32, Handle, Size, ctypes.c_int32, ctypes.c_uint64),
    "kvh_request_store_context": (ctypes.c_int32, Handle, Handle, Size),
    "kvh_request_finish": (ctypes.c_int32, Handle, Handle, Size),
    "kvh_request_destroy": (None, Handle),
    "kvh_loopback_create": (ctypes.c_int32, Handle, _OUT),
    "kvh_loopback_destroy": (None, Handle),
    "kvh_transceiver_create": (ctypes.c_int32, Handle, Handle, _P(TransceiverParamsStruct), _OUT, _OUT),
    "kvh_transceiver_allow": (ctypes.c_int32, Handle, Text, _P(Text), Size, _OUT),
    "kvh_transceiver_rank_entry": (ctypes.c_int32, Handle, _OUT),
    "kvh_transceiver_set_state": (ctypes.c_int32, Handle, _P(Text), Size, _OUT),
    "kvh_transceiver_state": (ctypes.c_int32, Handle, _OUT),
    "kvh_transceiver_serve_http": (ctypes.c_int32, Handle, Text, ctypes.c_uint16, _P(ctypes.c_uint16), _OUT),
    "kvh_transceiver_serve_tcp": (ctypes.c_int32, Handle, Text, ctypes.c_uint16, _P(ctypes.c_uint16), _OUT),
    "kvh_transceiver_wires": (ctypes.c_int32, Handle, ctypes.c_char_p, Size, _P(Size)),
    "kvh_transceiver_destroy": (None, Handle),
    "kvh_prefetch_begin": (ctypes.c_int32, Handle, _P(PrefetchParamsStruct), _OUT),
    "kvh_prefetch_poll": (ctypes.c_int32, Handle, _P(ctypes.c_uint32)),
    "kvh_prefetch_outcome": (ctypes.c_int32, Handle, _P(PrefetchOutcomeStruct)),
    "kvh_prefetch_cancel": (ctypes.c_int32, Handle),
    "kvh_prefetch_quiesced": (ctypes.c_int32, Handle),
    "kvh_prefetch_claim": (ctypes.c_int32, Handle, _P(Size)),
    "kvh_prefetch_number": (ctypes.c_uint64, Handle),
    "kvh_prefetch_destroy": (None, Handle),
    "kvh_error_message": (Text, Handle),
    "kvh_error_destroy": (None, Handle),
}


def _places() -> List[str]:
    """Where the library may be, the first one first."""
    chosen = os.environ.get("KVHINTS_LIBRARY")
    if chosen:
        return [chosen]
    installed = os.path.join(sys.prefix, "lib", SONAME)
    return ([installed] if os.path.exists(installed) else []) + [SONAME]


def _open() -> "tuple[ctypes.CDLL, str]":
    problems = []
    for place in _places():
        try:
            return ctypes.CDLL(place), place
        except OSError as error:
            problems.append(str(error))
    raise ImportError(
        "expected libkvhints to be installed, found none: set KVHINTS_LIBRARY to the path of "
        f"{SONAME}, or add its folder to LD_LIBRARY_PATH ({'; '.join(problems)})"
    )


lib, _path = _open()
for _name, (_result, *_arguments) in _SIGNATURES.items():
    _function = getattr(lib, _name)
    _function.restype = _result
    _function.argtypes = _arguments
if lib.kvh_abi_version() < ABI_VERSION:
    raise ImportError(
        f"expected libkvhints with ABI {ABI_VERSION} or newer, found {lib.kvh_abi_version()} at {_path}"
    )


def library_path() -> str:
    """Where the library was found."""
    return _path


def check(status: int, error: Optional["ctypes.c_void_p"] = None) -> int:
    """The status, unless it is an error, which is raised with the library's own words."""
    if status >= 0:
        return status
    words = lib.kvh_status_string(status).decode()
    if error is not None and error.value:
        words = lib.kvh_error_message(error).copy().decode("utf-8", "replace")
        lib.kvh_error_destroy(error)
    raise Error(status, words)


class Owned:
    """A handle that is destroyed with its object."""

    _destroy: Callable[[Any], None]

    def __init__(self, handle: "ctypes.c_void_p") -> None:
        self._handle: Any = handle.value

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            self._destroy(handle)


def new(call: Callable[..., int], *arguments: Any) -> "ctypes.c_void_p":
    """The handle that a call gives through its last argument."""
    out = Handle()
    check(call(*arguments, ctypes.byref(out)))
    return out


def buffer_bytes(handle: "ctypes.c_void_p") -> bytes:
    """The bytes of a kvh_buffer_t, which is released."""
    try:
        return lib.kvh_buffer_bytes(handle).copy()
    finally:
        lib.kvh_buffer_release(handle)


def growing_text(call: Callable[..., int], handle: Any) -> str:
    """A text that may grow between the call that tells its length and the one that fills it."""
    length = Size()
    check(call(handle, None, 0, ctypes.byref(length)))
    while True:
        room = ctypes.create_string_buffer(length.value + 64)
        status = call(handle, room, len(room), ctypes.byref(length))
        if status != ERR_TOO_SMALL:
            check(status)
            return room.raw[: length.value].decode()
