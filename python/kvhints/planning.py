"""What to do about a hint: candidates, the binding table, one decision."""

import ctypes
import enum
from dataclasses import dataclass
from typing import Iterator, Optional, Tuple, Union

from . import _native
from ._native import Handle, Owned, check, lib, new, text
from .hints import Context, Snapshot

_YES, _NO = 1, 2
_NAMED_FETCH = 2


class RequestKind(enum.IntEnum):
    """What a request is, as far as hints care."""

    CONTEXT = 1
    GENERATION_ONLY = 2
    OTHER = 3


class Capabilities(Owned):
    """What the code of each family of backends understands."""

    _destroy = staticmethod(lib.kvh_capabilities_destroy)

    def __init__(self) -> None:
        super().__init__(new(lib.kvh_capabilities_create))

    def add(self, family: str, action_type: str, action_version: str) -> None:
        """A family understands actions of that type and version."""
        words = [word.encode() for word in (family, action_type, action_version)]
        check(lib.kvh_capabilities_add(self._handle, *(text(word) for word in words)))


@dataclass(frozen=True)
class Candidate:
    """An action that a family could serve."""

    action_index: int
    families: Tuple[str, ...]


class Candidates(Owned):
    """The actions of a hint that some family could serve."""

    _destroy = staticmethod(lib.kvh_candidates_destroy)

    def __init__(self, snapshot: Snapshot, capabilities: Capabilities) -> None:
        super().__init__(new(lib.kvh_candidates_collect, snapshot._handle, capabilities._handle))
        counts = _native.CandidateCounts()
        check(lib.kvh_candidates_counts(self._handle, ctypes.byref(counts)))
        self._count: int = counts.candidates
        self.unknown_type: int = counts.unknown_type
        self.version_unmatched: int = counts.version_unmatched

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Candidate:
        if not 0 <= index < len(self):
            raise IndexError(index)
        action, families = _native.Size(), _native.Size()
        check(lib.kvh_candidates_get(self._handle, index, ctypes.byref(action), ctypes.byref(families)))
        return Candidate(action.value, tuple(self._family(index, at) for at in range(families.value)))

    def __iter__(self) -> Iterator[Candidate]:
        return (self[index] for index in range(len(self)))

    def _family(self, index: int, family_index: int) -> str:
        family = _native.Text()
        check(lib.kvh_candidates_family(self._handle, index, family_index, ctypes.byref(family)))
        return family.copy().decode()


class BindingTable(Owned):
    """Which binding may fetch from which endpoint, for which namespace."""

    _destroy = staticmethod(lib.kvh_binding_table_destroy)

    def __init__(self, configuration: Union[bytes, str]) -> None:
        raw = configuration.encode() if isinstance(configuration, str) else bytes(configuration)
        table, error = Handle(), Handle()
        status = lib.kvh_binding_table_load(raw, len(raw), ctypes.byref(table), ctypes.byref(error))
        check(status, error)
        super().__init__(table)


@dataclass(frozen=True)
class RequestProfile:
    """What of a request matters to the decision."""

    kind: RequestKind
    has_lora: bool
    required_handoff: bool
    namespace: bytes


@dataclass(frozen=True)
class Fetch:
    """What a plan says to fetch."""

    binding_id: str
    endpoint: str
    action_index: int
    last_block_hash: int
    block_count: int
    then_paired_source: bool
    envelope: bytes


class Plan(Owned):
    """One decision about a request's optional reuse."""

    _destroy = staticmethod(lib.kvh_plan_destroy)

    @classmethod
    def decide(
        cls,
        context: Context,
        snapshot: Optional[Snapshot],
        capabilities: Capabilities,
        table: BindingTable,
        profile: RequestProfile,
    ) -> "Plan":
        """Decides for one request; once, on one rank."""
        params = _native.sized(_native.RequestProfileStruct)
        params.kind = int(profile.kind)
        params.has_lora = _YES if profile.has_lora else _NO
        params.required_handoff = _YES if profile.required_handoff else _NO
        params.namespace_bytes = text(profile.namespace)
        hint = None if snapshot is None else snapshot._handle
        arguments = (context._handle, hint, capabilities._handle, table._handle, ctypes.byref(params))
        return cls(new(lib.kvh_plan_decide, *arguments))

    @classmethod
    def from_bytes(cls, data: bytes) -> "Plan":
        """A plan that another rank made."""
        plan, error = Handle(), Handle()
        check(lib.kvh_plan_from_bytes(data, len(data), ctypes.byref(plan), ctypes.byref(error)), error)
        return cls(plan)

    def to_bytes(self) -> bytes:
        """The plan for other ranks."""
        return _native.buffer_bytes(new(lib.kvh_plan_to_bytes, self._handle))

    @property
    def is_fetch(self) -> bool:
        """Whether there is something to fetch."""
        return lib.kvh_plan_kind(self._handle) == _NAMED_FETCH

    @property
    def refusal(self) -> str:
        """Why there is not; "none" for a fetch."""
        return lib.kvh_refusal_string(lib.kvh_plan_reason(self._handle)).decode()

    def fetch(self) -> Optional[Fetch]:
        """What to fetch; None for a local plan."""
        if not self.is_fetch:
            return None
        value = _native.sized(_native.PlanFetchStruct)
        check(lib.kvh_plan_fetch(self._handle, ctypes.byref(value)))
        return Fetch(
            value.binding_id.copy().decode(),
            value.endpoint.copy().decode(),
            value.action_index,
            value.last_block_hash,
            value.block_count,
            bool(value.flags & 1),
            value.envelope.copy(),
        )
