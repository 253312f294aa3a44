"""Owner mode: the library manages the blocks, and the executor only fills them.

A request is added with its prompt, grows with each token, and is finished; where its blocks lie is asked by
id. The tree says which bytes have to be moved: after each call that takes blocks, make `copies` in order,
then say `copied`, before anything else is written.
"""

import ctypes
import enum
from dataclasses import dataclass
from typing import List, Optional, Tuple

from . import _native
from ._native import BUSY, Handle, Owned, Size, check, lib
from .hints import Context
from .transfer import WINDOW_FULL, ReuseTree, Sequence

_OWNER = 2
_ALL_OTHERS = ctypes.c_size_t(-1).value
PRIORITY_DEFAULT = 35


class Tier(enum.IntEnum):
    """Which memory a block lies in."""

    PRIMARY = 1
    SECONDARY = 2


class CopyReason(enum.IntEnum):
    """Why bytes move: to make room, to come back, or for a request that goes on differently."""

    OFFLOAD = 1
    ONBOARD = 2
    REUSE = 3


@dataclass(frozen=True)
class BlockCopy:
    """The first token_count tokens of a block go from a slot of one tier's pool to another slot."""

    block_id: int
    reason: CopyReason
    from_place: Tuple[Tier, int]
    to_place: Tuple[Tier, int]
    token_count: int


class OwnerTree(ReuseTree):
    """The tree that hands out the blocks 0 up to primary_blocks + secondary_blocks."""

    def __init__(
        self, context: Context, tokens_per_block: int, primary_blocks: int, secondary_blocks: int = 0
    ) -> None:
        super().__init__(context, tokens_per_block, _OWNER, primary_blocks, secondary_blocks)

    def add(self, prompt: Sequence) -> Optional["Request"]:
        """Finds what is stored of a prompt, and gives it a block for each of its blocks. None: not enough
        blocks are free, and nothing changed."""
        params = _native.sized(_native.RequestParamsStruct)
        params.sequence, params.max_matched_tokens = prompt._handle, _ALL_OTHERS
        out = Handle()
        if check(lib.kvh_request_add(self._handle, ctypes.byref(params), ctypes.byref(out))) == BUSY:
            return None
        return Request(out, self)

    def free_count(self, tier: Tier = Tier.PRIMARY) -> int:
        """Blocks that can be taken: nobody uses them, and no pin protects them."""
        count = Size()
        check(lib.kvh_reuse_tree_free_count(self._handle, WINDOW_FULL, int(tier), ctypes.byref(count)))
        return count.value

    def place(self, block_id: int) -> Tuple[Tier, int]:
        """The tier and the slot of its pool in which a block's bytes lie, once all copies are made."""
        tier, slot = ctypes.c_uint32(), ctypes.c_uint32()
        check(
            lib.kvh_reuse_tree_block_place(
                self._handle, WINDOW_FULL, block_id, ctypes.byref(tier), ctypes.byref(slot)
            )
        )
        return Tier(tier.value), slot.value

    def copies(self) -> List[BlockCopy]:
        """The copies that are to be made, in this order; listed until they are said to be made."""
        count = Size()
        check(lib.kvh_reuse_tree_copies(self._handle, None, 0, ctypes.byref(count)))
        room = (_native.BlockCopyStruct * count.value)()
        for copy in room:
            copy.struct_size = ctypes.sizeof(copy)
        check(lib.kvh_reuse_tree_copies(self._handle, room, len(room), ctypes.byref(count)))
        return [
            BlockCopy(
                copy.block_id,
                CopyReason(copy.reason),
                (Tier(copy.from_tier), copy.from_slot),
                (Tier(copy.to_tier), copy.to_slot),
                copy.token_count,
            )
            for copy in room[: count.value]
        ]

    def copied(self, count: int) -> None:
        """Says that the oldest copies are made."""
        check(lib.kvh_reuse_tree_copied(self._handle, count))

    def refresh(self) -> None:
        """To be called once an iteration of the executor: priorities and leases end by the clock."""
        refreshed = _native.sized(_native.RefreshedStruct)
        check(lib.kvh_reuse_tree_refresh(self._handle, ctypes.byref(refreshed)))


class Request(Owned):
    """A request and its blocks. Without `finish` they go back with it, and nothing is stored."""

    _destroy = staticmethod(lib.kvh_request_destroy)

    def __init__(self, handle: "ctypes.c_void_p", tree: OwnerTree) -> None:
        super().__init__(handle)
        self._tree = tree

    @property
    def matched_tokens(self) -> int:
        """Leading tokens of the prompt that need no computing."""
        return lib.kvh_request_matched_tokens(self._handle)

    def block_ids(self) -> List[int]:
        """Its blocks, in the order of the sequence."""
        first, count = Size(), Size()
        outputs = (self._handle, WINDOW_FULL, ctypes.byref(first))
        check(lib.kvh_request_blocks(*outputs, None, 0, ctypes.byref(count)))
        ids = (ctypes.c_int32 * count.value)()
        check(lib.kvh_request_blocks(*outputs, ids, len(ids), ctypes.byref(count)))
        return list(ids)

    def grow(self, token_count: int) -> bool:
        """Makes room for more tokens; False: not enough blocks are free, and nothing changed."""
        return check(lib.kvh_request_grow(self._handle, token_count, PRIORITY_DEFAULT, 0)) != BUSY

    def store_context(self, sequence: Sequence, token_count: int) -> None:
        """Stores the full blocks of the first tokens, whose bytes are complete; the request goes on."""
        check(lib.kvh_request_store_context(self._handle, sequence._handle, token_count))

    def finish(self, sequence: Sequence, token_count: int) -> None:
        """Stores the blocks of the first tokens, whose bytes are complete, and gives all blocks back. The last
        token that a model gave has no bytes."""
        check(lib.kvh_request_finish(self._handle, sequence._handle, token_count))
