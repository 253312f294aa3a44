"""Broadcast as Python executors do it: requests and the attributes that Python keeps beside them are
pickled on rank 0, a header and the pickle are broadcast with mpi4py in chunks of 4 MiB (with two
pipeline stages: sent), and unpickled by all ranks, rank 0 among them. One trial of every case that concerns it.

    mpirun -n 2 python3 broadcast.py CASES_FILE     the same lines as broadcast.cpp prints
"""

import hashlib
import math
import pickle
import random
import sys
import time
from array import array

import numpy
from mpi4py import MPI

CHUNK_BYTES = 4 << 20
CONFIG = bytes(126)
world = MPI.COMM_WORLD
rank = world.Get_rank()


class Request:
    """A request whose state is one blob, as a native executor's request is."""

    __slots__ = (
        "tokens",
        "py_logits_post_processors",
        "py_multimodal_data",
        "py_scheduling_params",
        "py_num_logprobs",
        "py_disaggregated_params",
        "py_kv_hints",
    )

    def __init__(self, tokens):
        self.tokens = tokens

    def __getstate__(self):
        return self.tokens.tobytes() + CONFIG

    def __setstate__(self, state):
        self.tokens = array("i")
        self.tokens.frombytes(state[: -len(CONFIG)])


class Item:
    """What waits in the executor's queue: an id and a request."""

    def __init__(self, number, request):
        self.id = number
        self.request = request
        self.child_req_ids = None


class Hint:
    """An admitted hint: immutable bytes."""

    __slots__ = ("json",)

    def __init__(self, json):
        self.json = json

    def __reduce__(self):
        return Hint, (self.json,)


ATTRIBUTES = Request.__slots__[1:]


def collect(items):
    """The attributes that pickling a request leaves behind, by attribute and request."""
    collected = []
    for name in ATTRIBUTES:
        found = {item.id: getattr(item.request, name) for item in items if hasattr(item.request, name)}
        if found:
            collected.append((name, found))
    return collected


def attach(items, collected):
    for name, found in collected:
        for item in items:
            if item.id in found:
                setattr(item.request, name, found[item.id])


def give_message(data, pipeline):
    if pipeline:
        world.Send(data, dest=1)
    else:
        world.Bcast(data, root=0)


def take_message(data, pipeline):
    if pipeline:
        world.Recv(data, source=0)
    else:
        world.Bcast(data, root=0)


def give(items, pipeline):
    pickled = pickle.dumps((items, collect(items)), protocol=pickle.HIGHEST_PROTOCOL)
    header = numpy.array([1, len(pickled), math.ceil(len(pickled) / CHUNK_BYTES)], dtype=numpy.int64)
    give_message([header, MPI.INT64_T], pipeline)
    view = memoryview(pickled)
    for at in range(0, len(pickled), CHUNK_BYTES):
        give_message([view[at : at + CHUNK_BYTES], MPI.BYTE], pipeline)
    # What rank 0 goes on with is what the others got.
    attach(*pickle.loads(view))
    return len(pickled)


def take(pipeline):
    header = numpy.zeros(3, dtype=numpy.int64)
    take_message([header, MPI.INT64_T], pipeline)
    pickled = memoryview(bytearray(int(header[1])))
    for at in range(0, len(pickled), CHUNK_BYTES):
        take_message([pickled[at : at + CHUNK_BYTES], MPI.BYTE], pipeline)
    items, collected = pickle.loads(pickled)
    attach(items, collected)
    return items


def workload(tokens, batch, hint_kib):
    source = random.Random(tokens * 31 + batch * 7 + hint_kib)
    items = []
    for index in range(batch):
        request = Request(array("i", (source.randrange(128000) for _ in range(256))) * (tokens // 256))
        if hint_kib:
            request.py_kv_hints = Hint(source.randbytes(hint_kib * 1024))
        items.append(Item(1000 + index, request))
    return items


def digest(items):
    """Of every field; the library hashes at the speed of C."""
    state = hashlib.blake2b(digest_size=8)
    for item in items:
        state.update(item.id.to_bytes(8, "little"))
        state.update(item.request.tokens)
        hint = getattr(item.request, "py_kv_hints", None)
        state.update(hint.json if hint else b"-")
    return state.digest()


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else 0.0


def trial(kind, table, topology, tokens, batch, rate, broadcasts, hint_kib):
    pipeline = topology == "pp"
    items = workload(tokens, batch, hint_kib)
    expected = digest(items)

    def step():
        if rank == 0:
            return give(items, pipeline)
        got = take(pipeline)
        # A hash of all bytes would be most of what is measured: ids and lengths each time.
        assert len(got) == batch and all(len(item.request.tokens) == tokens for item in got)
        return got

    got = None
    for _ in range(5):
        got = step()
    if rank == 1 and digest(got) != expected:
        raise SystemExit("other bytes arrived")
    calls, lags = [], []
    world.Barrier()
    cpu_start, start = time.process_time(), time.perf_counter()
    for number in range(broadcasts):
        if rank == 0 and rate:
            due = start + number * batch / rate
            while time.perf_counter() < due:
                pass
            lags.append(time.perf_counter() - due)
        before = time.perf_counter()
        sent = step()
        if kind == "delivered":
            world.Barrier()
        calls.append(time.perf_counter() - before)
    cpu_end = time.process_time()
    world.Barrier()
    end = time.perf_counter()
    if rank == 0:
        count = broadcasts * batch
        fields = ["pickle", kind, table, topology, tokens, batch, f"{rate:.0f}", hint_kib, sent]
        fields += [f"{percentile(calls, 0.5) * 1e6:.3f}", f"{percentile(calls, 0.99) * 1e6:.3f}"]
        fields += [f"{count / (end - start):.1f}", f"{(cpu_end - cpu_start) * 1e6 / count:.3f}"]
        fields += [f"{percentile(lags, 0.99) * 1e3:.4f}"]
        print(*fields, sep="\t", flush=True)


with open(sys.argv[1], encoding="ascii") as cases:
    for line in cases:
        if line.startswith("#") or not line.strip():
            continue
        kind, table, topology, *numbers = line.split()
        if kind == "ways":
            continue
        tokens, batch, rate, broadcasts = map(int, numbers)
        for hint_kib in (0, 1, 64):
            trial(kind, table, topology, tokens, batch, rate, broadcasts, hint_kib)
