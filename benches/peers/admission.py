"""Admission beside its peers in Python: what engines do today with pydantic and with msgspec.

usage: admission.py INPUT_DIR ROUNDS    (inputs from `admission write`)

Prints lines of: case, subject, bytes, least and median microseconds. Subjects take turns within
each round, inputs within each turn, as in admission.cpp.
"""

import json
import pathlib
import statistics
import sys
import time
from typing import Any

import msgpack
import msgspec
import pydantic
import pydantic_core

CANONICAL_MAX_BYTES = 65_536


class Refused(Exception):
    pass


class Action(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", frozen=True)
    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, Any]


class Envelope(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", frozen=True)
    protocol_version: str
    message_id: str
    actions: list[Action]


def with_pydantic(raw: bytes) -> bytes:
    """A server's order: parse the body, look at the version, bound, validate, encode, bound again,
    and see that the decoder and MessagePack take it."""
    value = json.loads(raw)
    if not isinstance(value, dict) or value.get("protocol_version") != "0.1":
        raise Refused
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    if len(compact) > CANONICAL_MAX_BYTES:
        raise Refused
    kept = Envelope.model_validate(value).model_dump_json().encode()
    if len(kept) > CANONICAL_MAX_BYTES:
        raise Refused
    msgpack.packb(pydantic_core.from_json(kept))
    return kept


class ActionStruct(msgspec.Struct, frozen=True):
    action_id: str
    action_type: str
    action_version: str
    payload: dict[str, Any]


class EnvelopeStruct(msgspec.Struct, frozen=True):
    protocol_version: str
    message_id: str
    actions: list[ActionStruct]


DECODER = msgspec.json.Decoder(EnvelopeStruct)
ENCODER = msgspec.json.Encoder()
PACKER = msgspec.msgpack.Encoder()


def with_msgspec(raw: bytes) -> bytes:
    envelope = DECODER.decode(raw)
    if envelope.protocol_version != "0.1":
        raise Refused
    kept = ENCODER.encode(envelope)
    if len(kept) > CANONICAL_MAX_BYTES:
        raise Refused
    PACKER.encode(envelope)
    return kept


SUBJECTS = {"pydantic": with_pydantic, "msgspec": with_msgspec}


def main() -> None:
    folder, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    cases: dict[str, list[bytes]] = {}
    for path in sorted(folder.glob("*.json")):
        cases.setdefault(path.name.split(".")[0].replace("_", " "), []).append(path.read_bytes())
    for name, texts in cases.items():
        # A few milliseconds: short enough that many samples are not interrupted.
        turns = max(1, 60_000 // len(texts[0]))
        variant = 0
        times: dict[str, list[float]] = {subject: [] for subject in SUBJECTS}
        for _ in range(rounds):
            for subject, admit in SUBJECTS.items():
                start = time.perf_counter_ns()
                for turn in range(turns):
                    admit(texts[(variant + turn) % len(texts)])
                times[subject].append((time.perf_counter_ns() - start) / turns / 1000)
            variant += turns
        for subject, found in times.items():
            least, median = min(found), statistics.median(found)
            print(name, subject, len(texts[0]), f"{least:.3f}", f"{median:.3f}", sep="\t", flush=True)


if __name__ == "__main__":
    main()
