"""Hints: admission of bytes, of Python objects and of whole batches; what was admitted."""

import ctypes
import enum
import json
import math
from dataclasses import dataclass
from typing import Any, Iterator, List, Optional, Sequence, Union

from . import _native
from ._native import Handle, Owned, check, lib, new
from .keys import KeyRing
from .log import Log, LogLevel, set_log

# More containers inside of each other than any admitted hint has.
_DEPTH_MAX = 200
_INTEGERS = range(-(2**63), 2**64)


class Ingress(enum.IntEnum):
    """How a request came in."""

    HTTP = 1
    TRUSTED = 2


class Verdict(enum.IntEnum):
    """What admission said. Anything but ADMITTED means: go on without the hint."""

    ADMITTED = 0
    ABSENT = 1
    UNTRUSTED = 2
    UNKNOWN_VERSION = 3
    OVERSIZED = 4
    MALFORMED = 5


@dataclass(frozen=True)
class Action:
    """One action of a hint."""

    id: str
    type: str
    version: str
    payload: bytes
    json: bytes


class Snapshot(Owned):
    """An admitted hint; immutable, and shared freely."""

    _destroy = staticmethod(lib.kvh_snapshot_release)

    @property
    def json(self) -> bytes:
        """The canonical bytes."""
        return lib.kvh_snapshot_json(self._handle).copy()

    @property
    def message_id(self) -> str:
        """The envelope's message_id."""
        return lib.kvh_snapshot_message_id(self._handle).copy().decode()

    def __len__(self) -> int:
        return lib.kvh_snapshot_action_count(self._handle)

    def __getitem__(self, index: int) -> Action:
        if not 0 <= index < len(self):
            raise IndexError(index)
        action = _native.ActionStruct()
        check(lib.kvh_snapshot_action(self._handle, index, ctypes.byref(action)))
        return Action(
            action.id.copy().decode(),
            action.type.copy().decode(),
            action.version.copy().decode(),
            action.payload.copy(),
            action.json.copy(),
        )

    def __iter__(self) -> Iterator[Action]:
        return (self[index] for index in range(len(self)))

    def one_action(self, index: int) -> "Snapshot":
        """The envelope with that action alone."""
        return Snapshot(new(lib.kvh_snapshot_one_action, self._handle, index))

    def msgpack(self) -> bytes:
        """The envelope as MessagePack."""
        return _native.buffer_bytes(new(lib.kvh_snapshot_msgpack, self._handle))


@dataclass(frozen=True)
class Admission:
    """A verdict, and the snapshot where it is ADMITTED."""

    verdict: Verdict
    snapshot: Optional[Snapshot]


@dataclass(frozen=True)
class BodyAdmission:
    """A verdict, the snapshot where it is ADMITTED, and the request's body without its hint."""

    verdict: Verdict
    snapshot: Optional[Snapshot]
    body: bytes


def _is_json(value: Any, depth: int) -> bool:
    """Whether a Python object is a JSON value as it stands: json.dumps would bend keys to strings."""
    if depth > _DEPTH_MAX:
        return False
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return True
    if isinstance(value, int):
        return value in _INTEGERS
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, (list, tuple)):
        return all(_is_json(item, depth + 1) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item, depth + 1) for key, item in value.items())
    return False


def _as_json(value: Any) -> Optional[bytes]:
    """A Python object as JSON; None where it is none."""
    try:
        if not _is_json(value, 0):
            return None
        # With escapes, a lone surrogate becomes one that the library judges.
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()
    except (ValueError, TypeError, RecursionError):
        return None


# What is sure to be judged malformed: it counts in the metrics like any other.
_NO_JSON = b"{"


class Context(Owned):
    """Configuration, metrics and clock; everything else belongs to one."""

    _destroy = staticmethod(lib.kvh_context_destroy)

    def __init__(
        self,
        trust_http_hints: Optional[bool] = None,
        key_ring: Optional[KeyRing] = None,
        log: Optional[Log] = None,
        log_level: LogLevel = LogLevel.INFO,
    ) -> None:
        """None trusts hints over HTTP as the environment says (TRTLLM_TRUST_KV_HINTS); with a key ring those
        are trusted that are signed. The log gets records up to a level: see kvhints.log."""
        params = _native.sized(_native.ContextParamsStruct)
        params.trust_http_hints = {None: 0, True: 1, False: 2}[trust_http_hints]
        params.key_ring = None if key_ring is None else key_ring._handle
        super().__init__(new(lib.kvh_context_create, ctypes.byref(params)))
        if log is not None:
            set_log(self._handle, log_level, log)

    def admit(self, ingress: Ingress, raw: Union[bytes, bytearray, memoryview, str, None]) -> Admission:
        """Judges the raw JSON of one hint; None is an absent one."""
        if isinstance(raw, str):
            # What is no Unicode text gets bytes that are no UTF-8.
            raw = raw.encode("utf-8", "surrogatepass")
        return self._judge(lib.kvh_admit, ingress, b"" if raw is None else bytes(raw))

    def admit_msgpack(self, ingress: Ingress, raw: bytes) -> Admission:
        """Judges one hint in MessagePack."""
        return self._judge(lib.kvh_admit_msgpack, ingress, bytes(raw))

    def admit_body(self, ingress: Ingress, body: bytes) -> BodyAdmission:
        """Takes the hint (the member kv_hints) out of a request's JSON body and judges it. What is no strict
        JSON object, or too long, raises Error with the status Error.BODY: answer the request with 400, and
        hand its body to no other parser."""
        return self._judge_body(lib.kvh_admit_body, ingress, body)

    def admit_body_msgpack(self, ingress: Ingress, body: bytes) -> BodyAdmission:
        """The same for a body in MessagePack."""
        return self._judge_body(lib.kvh_admit_body_msgpack, ingress, body)

    def admit_object(self, ingress: Ingress, value: Any) -> Admission:
        """Judges a hint that was parsed already: None is absent, what is no JSON is malformed."""
        if value is None:
            return self._judge(lib.kvh_admit, ingress, b"")
        raw = _as_json(value)
        return self._judge(lib.kvh_admit, ingress, _NO_JSON if raw is None else raw)

    def admit_batch(
        self, ingress: Ingress, envelopes: Union[None, dict, Sequence[Any]], prompt_count: int
    ) -> List[Admission]:
        """Hints of a batch of prompts: one envelope for all of them, or a list with one, or None, for
        each. A list of another length is the caller's mistake: ValueError."""
        if isinstance(envelopes, (list, tuple)):
            if len(envelopes) != prompt_count:
                raise ValueError(
                    f"expected one envelope for each of {prompt_count} prompts, found {len(envelopes)}: "
                    "give None for a prompt without"
                )
            return [self.admit_object(ingress, envelope) for envelope in envelopes]
        return [self.admit_object(ingress, envelopes)] * prompt_count

    def metrics(self) -> str:
        """Prometheus text."""
        return _native.growing_text(lib.kvh_context_metrics, self._handle)

    def status(self) -> Any:
        """What the context is doing: kvh_context_status, parsed."""
        return json.loads(_native.growing_text(lib.kvh_context_status, self._handle))

    def poison_location(self) -> str:
        """Where in the library's sources a fault poisoned the context; empty where none did."""
        return _native.growing_text(lib.kvh_context_poison_location, self._handle)

    def _judge_body(self, call: Any, ingress: Ingress, raw: bytes) -> BodyAdmission:
        verdict, snapshot, body, raw = ctypes.c_int32(), Handle(), Handle(), bytes(raw)
        outputs = (ctypes.byref(verdict), ctypes.byref(snapshot), ctypes.byref(body))
        check(call(self._handle, int(ingress), raw, len(raw), *outputs))
        admitted = Snapshot(snapshot) if snapshot.value else None
        return BodyAdmission(Verdict(verdict.value), admitted, _native.buffer_bytes(body))

    def _judge(self, call: Any, ingress: Ingress, raw: bytes) -> Admission:
        verdict, snapshot = ctypes.c_int32(), Handle()
        status = call(self._handle, int(ingress), raw, len(raw), ctypes.byref(verdict), ctypes.byref(snapshot))
        check(status)
        admitted = Snapshot(snapshot) if snapshot.value else None
        return Admission(Verdict(verdict.value), admitted)
