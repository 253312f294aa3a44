"""Fetching in the shape that a Python transceiver asks of a backend.

    attempt = backend.fetch(request_id, plan, tokens, block_ids, first_block)
    backend.poll(attempt)             IN_PROGRESS, then DELIVERED, FAILED or CANCELLED, for good
    backend.is_memory_lent(attempt)   whether the blocks still belong to the fetch
    backend.claim(attempt)            takes what was delivered

Never waits: the executor polls between its iterations. A miss is a FAILED attempt with the reason
"content_miss": the request is prefilled as if there had been no hint.
"""

import enum
from dataclasses import dataclass
from typing import List, Optional
from typing import Sequence as Items

from .planning import Plan
from .transfer import OutcomeKind, Prefetch, Sequence, Transceiver


class AttemptStatus(enum.Enum):
    """What a fetch came to."""

    IN_PROGRESS = "in_progress"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass
class FetchAttempt:
    """One fetch of one request."""

    request_id: int
    prefetch: Prefetch
    reason: str = ""
    token_end: int = 0
    is_claimed: bool = False


class FetchBackend:
    """Fetches blocks of the requests of one rank."""

    def __init__(self, transceiver: Transceiver, tokens_per_block: int, namespace: bytes) -> None:
        self._transceiver = transceiver
        self._tokens_per_block = tokens_per_block
        self._namespace = namespace

    def fetch(
        self,
        request_id: int,
        plan: Optional[Plan],
        tokens: Items[int],
        block_ids: Items[int],
        first_block: int = 0,
        source_state: bytes = b"",
    ) -> Optional[FetchAttempt]:
        """Begins; the blocks are lent from here on. None: there is nothing to fetch, and nothing lent."""
        sequence = Sequence(self._tokens_per_block, tokens, self._namespace)
        prefetch = self._transceiver.begin(sequence, block_ids, plan, source_state, first_block)
        return None if prefetch is None else FetchAttempt(request_id, prefetch)

    def poll(self, attempt: FetchAttempt) -> AttemptStatus:
        """What the fetch came to; never changes once it is not IN_PROGRESS."""
        outcome = attempt.prefetch.outcome()
        if outcome is None:
            return AttemptStatus.IN_PROGRESS
        if outcome.kind is OutcomeKind.DELIVERED:
            attempt.token_end = outcome.token_end
            return AttemptStatus.DELIVERED
        if outcome.kind is OutcomeKind.CANCELLED:
            return AttemptStatus.CANCELLED
        attempt.reason = outcome.reason or outcome.kind.name.lower()
        return AttemptStatus.FAILED

    def is_memory_lent(self, attempt: FetchAttempt) -> bool:
        """Whether the library may still touch the blocks. Only when it does not may they be used for
        something else, whatever the status is."""
        return not attempt.prefetch.is_quiesced

    def cancel(self, attempt: FetchAttempt) -> None:
        """Asks for an end; the status and the memory follow."""
        attempt.prefetch.cancel()

    def claim(self, attempt: FetchAttempt) -> List[int]:
        """The delivered blocks, once; none where it was not delivered, or waited too long."""
        blocks = attempt.prefetch.claim()
        attempt.is_claimed = bool(blocks)
        return blocks
