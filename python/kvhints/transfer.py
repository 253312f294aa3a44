"""Blocks from another worker: sequences, the reuse tree, the transceiver, prefetches that are polled."""

import atexit
import ctypes
import enum
import weakref
from dataclasses import dataclass
from typing import Any, List, Optional
from typing import Sequence as Items

from . import _native
from ._native import IN_PROGRESS, NOT_FOUND, OK, Handle, Owned, Size, check, lib, new, text
from .hints import Context
from .keys import KeyRing
from .planning import Plan

WINDOW_FULL = 0
_ARBITER = 1
_LOOPBACK, _UCX = 1, 2
_HOST_MEMORY = 1
_STRICT, _BEST_EFFORT = 1, 2
_ANYBODY = 1


def _array(kind: Any, values: Items[int]) -> Any:
    return (kind * len(values))(*values)


class Sequence(Owned):
    """What a request's tokens mean for reuse: blocks with hashes and names."""

    _destroy = staticmethod(lib.kvh_sequence_destroy)

    def __init__(self, tokens_per_block: int, tokens: Items[int], namespace: bytes) -> None:
        params = _native.sized(_native.SequenceParamsStruct)
        params.tokens_per_block = tokens_per_block
        params.tokens = _array(ctypes.c_int32, tokens)
        params.token_count = len(tokens)
        params.namespace_bytes = text(namespace)
        super().__init__(new(lib.kvh_sequence_create, ctypes.byref(params)))
        self.tokens_per_block = tokens_per_block

    def __len__(self) -> int:
        """Blocks, a partial last one included."""
        return lib.kvh_sequence_block_count(self._handle)

    def block_hashes(self) -> List[int]:
        """The hash of each block."""
        hashes, count = (ctypes.c_uint64 * len(self))(), Size()
        check(lib.kvh_sequence_block_hashes(self._handle, hashes, len(hashes), ctypes.byref(count)))
        return list(hashes[: count.value])


class ReuseTree(Owned):
    """Which blocks hold which content, beside the host's own block manager (arbiter mode)."""

    _destroy = staticmethod(lib.kvh_reuse_tree_destroy)

    def __init__(
        self,
        context: Context,
        tokens_per_block: int,
        mode: int = _ARBITER,
        primary_blocks: int = 0,
        secondary_blocks: int = 0,
    ) -> None:
        """For owner mode see kvhints.owner."""
        params = _native.sized(_native.ReuseTreeParamsStruct)
        params.tokens_per_block, params.mode = tokens_per_block, mode
        params.primary_blocks, params.secondary_blocks = primary_blocks, secondary_blocks
        super().__init__(new(lib.kvh_reuse_tree_create, context._handle, ctypes.byref(params)))

    def store(self, sequence: Sequence, first_block: int, block_ids: Items[int]) -> List[int]:
        """Stores complete blocks; what the tree holds there afterwards, -1 for nothing."""
        ids = _array(ctypes.c_int32, block_ids)
        held = (ctypes.c_int32 * len(ids))()
        check(lib.kvh_reuse_tree_store(self._handle, WINDOW_FULL, sequence._handle, first_block, ids, len(ids), held))
        return list(held)

    def match(self, sequence: Sequence, max_tokens: int) -> int:
        """Tokens of the longest stored prefix."""
        matched = Size()
        check(lib.kvh_reuse_tree_match(self._handle, WINDOW_FULL, sequence._handle, max_tokens, ctypes.byref(matched)))
        return matched.value

    def evict(self, block_id: int) -> bool:
        """Takes a block out; False while it is protected, or when it is not there."""
        return check(lib.kvh_reuse_tree_evict(self._handle, WINDOW_FULL, block_id)) == OK


@dataclass(frozen=True)
class CacheLayout:
    """What a block is made of. data_type and attention are KVH_DATA_* and KVH_ATTENTION_*."""

    kv_heads_per_layer: Items[int]
    head_size: int
    data_type: int
    attention: int = 1


@dataclass(frozen=True)
class Pool:
    """Memory of the host: block i lies at base + i * block_bytes. It must outlive the transceiver;
    `keep` is held for as long, such as the tensor or buffer that owns the memory."""

    base: int
    block_bytes: int
    block_count: int
    keep: Any = None


class Loopback(Owned):
    """Connects transceivers of one process."""

    _destroy = staticmethod(lib.kvh_loopback_destroy)

    def __init__(self, context: Context) -> None:
        super().__init__(new(lib.kvh_loopback_create, context._handle))


# Transceivers have threads, which touch the pool and call the log: they end before the interpreter does.
_living: "weakref.WeakSet[Transceiver]" = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    for transceiver in list(_living):
        transceiver.__del__()


class Transceiver(Owned):
    """This rank's end of all transfers: serves the blocks of its tree, and fetches others'."""

    _destroy = staticmethod(lib.kvh_transceiver_destroy)

    def __init__(
        self,
        context: Context,
        tree: ReuseTree,
        layout: CacheLayout,
        pool: Pool,
        namespace: bytes,
        loopback: Optional[Loopback] = None,
        rank: int = 0,
        tensor_parallel: int = 1,
        wires: str = "",
        network_devices: str = "",
        listen_address: str = "",
        serves_anybody: bool = False,
        peer_keys: Optional[KeyRing] = None,
        peer_key_id: str = "",
    ) -> None:
        """Over UCX, or over a loopback where one is given. With keys, peers prove to each other that they
        hold one, this side that of peer_key_id. Without, peers of other machines are served only if anybody
        is: the transport's network must then be one that only workers reach."""
        params = _native.sized(_native.TransceiverParamsStruct)
        params.transport = _UCX if loopback is None else _LOOPBACK
        params.loopback = None if loopback is None else loopback._handle
        params.rank = rank
        params.tensor_parallel = tensor_parallel
        words = [word.encode() for word in (wires, network_devices, listen_address, peer_key_id)]
        params.wires, params.network_devices, params.listen_address, params.peer_key_id = (
            text(word) for word in words
        )
        params.peer_keys = None if peer_keys is None else peer_keys._handle
        params.unauthenticated_peers = _ANYBODY if serves_anybody else 0
        params.namespace_bytes = text(namespace)
        params.kv_heads_per_layer = _array(ctypes.c_uint32, layout.kv_heads_per_layer)
        params.layer_count = len(layout.kv_heads_per_layer)
        params.head_size, params.data_type, params.attention = layout.head_size, layout.data_type, layout.attention
        params.window = WINDOW_FULL
        params.pool_memory = _HOST_MEMORY
        params.pool_base, params.block_bytes, params.block_count = pool.base, pool.block_bytes, pool.block_count
        out, error = Handle(), Handle()
        status = lib.kvh_transceiver_create(
            context._handle, tree._handle, ctypes.byref(params), ctypes.byref(out), ctypes.byref(error)
        )
        check(status, error)
        super().__init__(out)
        self._pool = pool
        _living.add(self)

    def allow(self, endpoint: str, address_ranges: Items[str] = ()) -> None:
        """Lets states be fetched from an endpoint, at addresses within the ranges; none: any."""
        words = [word.encode() for word in address_ranges]
        ranges = (_native.Text * len(words))(*(text(word) for word in words))
        name, error = endpoint.encode(), Handle()
        check(lib.kvh_transceiver_allow(self._handle, text(name), ranges, len(words), ctypes.byref(error)), error)

    def rank_entry(self) -> bytes:
        """This rank's part of the worker's state, to be gathered from all ranks."""
        return _native.buffer_bytes(new(lib.kvh_transceiver_rank_entry, self._handle))

    def set_state(self, entries: Items[bytes]) -> None:
        """Makes the worker's state of the entries of all ranks."""
        parts, error = (_native.Text * len(entries))(*(text(entry) for entry in entries)), Handle()
        check(lib.kvh_transceiver_set_state(self._handle, parts, len(entries), ctypes.byref(error)), error)

    def state(self) -> bytes:
        """The worker's state."""
        return _native.buffer_bytes(new(lib.kvh_transceiver_state, self._handle))

    def serve_http(self, address: str = "", port: int = 0) -> int:
        """Serves the worker's state over HTTP; the port."""
        return self._serve(lib.kvh_transceiver_serve_http, address, port)

    def serve_tcp(self, address: str = "", port: int = 0) -> int:
        """Serves the worker's state over TCP, for endpoints like tcp://host:port; the port."""
        return self._serve(lib.kvh_transceiver_serve_tcp, address, port)

    def _serve(self, call: Any, address: str, port: int) -> int:
        place, chosen, error = address.encode(), ctypes.c_uint16(), Handle()
        check(call(self._handle, text(place), port, ctypes.byref(chosen), ctypes.byref(error)), error)
        return chosen.value

    def wires(self) -> str:
        """Which ways lead to each source, for people to read."""
        return _native.growing_text(lib.kvh_transceiver_wires, self._handle)

    def begin(
        self,
        sequence: Sequence,
        block_ids: Items[int],
        plan: Optional[Plan] = None,
        source_state: bytes = b"",
        first_block: int = 0,
        max_tokens: int = 0,
        best_effort: bool = True,
        metadata_deadline_s: float = 0,
        transfer_deadline_s: float = 0,
        abandonment_deadline_s: float = 0,
    ) -> Optional["Prefetch"]:
        """Begins to fetch blocks into block_ids, which are lent until the prefetch is quiesced. None:
        there is nothing to fetch. Deadlines of 0 are the library's own."""
        params = _native.sized(_native.PrefetchParamsStruct)
        params.policy = _BEST_EFFORT if best_effort else _STRICT
        params.plan = None if plan is None else plan._handle
        params.sequence = sequence._handle
        params.source_state = text(source_state)
        params.first_block, params.max_tokens = first_block, max_tokens
        params.block_ids, params.block_id_count = _array(ctypes.c_int32, block_ids), len(block_ids)
        params.metadata_deadline_ns = int(metadata_deadline_s * 1e9)
        params.transfer_deadline_ns = int(transfer_deadline_s * 1e9)
        params.abandonment_deadline_ns = int(abandonment_deadline_s * 1e9)
        out = Handle()
        status = check(lib.kvh_prefetch_begin(self._handle, ctypes.byref(params), ctypes.byref(out)))
        if status == NOT_FOUND:
            return None
        if status != OK:
            raise _native.Error(status, "a block is still in use: wait until its prefetch is quiesced")
        # The transceiver stays while a prefetch of it does, and with it the pool's memory.
        return Prefetch(out, self, list(block_ids))


class PrefetchState(enum.IntEnum):
    """Where the request stands."""

    CONTEXT_INIT = 0
    INIT = 1
    IN_PROGRESS = 2
    COMPLETE = 3


class OutcomeKind(enum.IntEnum):
    """How a prefetch ended."""

    DELIVERED = 1
    CONTENT_MISS = 2
    FAILED = 3
    CANCELLED = 4


@dataclass(frozen=True)
class Outcome:
    """How a prefetch ended; the request's KV is here up to token_end."""

    kind: OutcomeKind
    token_end: int
    block_count: int
    reason: str


class Prefetch(Owned):
    """One attempt. Polling takes nanoseconds and never waits."""

    _destroy = staticmethod(lib.kvh_prefetch_destroy)

    def __init__(self, handle: "ctypes.c_void_p", transceiver: Transceiver, block_ids: List[int]) -> None:
        super().__init__(handle)
        self._transceiver = transceiver
        self.block_ids = block_ids

    @property
    def number(self) -> int:
        """Its number in profiles, logs and the status."""
        return lib.kvh_prefetch_number(self._handle)

    @property
    def state(self) -> PrefetchState:
        """Where the request stands."""
        state = ctypes.c_uint32()
        check(lib.kvh_prefetch_poll(self._handle, ctypes.byref(state)))
        return PrefetchState(state.value)

    def outcome(self) -> Optional[Outcome]:
        """How it ended; None while it has not."""
        value = _native.sized(_native.PrefetchOutcomeStruct)
        if check(lib.kvh_prefetch_outcome(self._handle, ctypes.byref(value))) == IN_PROGRESS:
            return None
        return Outcome(OutcomeKind(value.kind), value.token_end, value.block_count, value.reason.decode())

    @property
    def is_quiesced(self) -> bool:
        """Whether the blocks can be used for something else."""
        return check(lib.kvh_prefetch_quiesced(self._handle)) == OK

    def cancel(self) -> None:
        """Asks for an end."""
        check(lib.kvh_prefetch_cancel(self._handle))

    def claim(self) -> List[int]:
        """Takes the delivered blocks, in order; none where there are none to take any more."""
        count = Size()
        if check(lib.kvh_prefetch_claim(self._handle, ctypes.byref(count))) != OK:
            return []
        return self.block_ids[: count.value]
