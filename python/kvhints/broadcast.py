"""One decision on every rank: a batch of requests, broadcast over MPI or inside a process."""

import ctypes
from dataclasses import dataclass
from typing import Any, List, Optional

from . import _native
from ._native import Handle, Owned, check, lib, new, text
from .hints import Context, Snapshot
from .planning import Plan

_HAS_PARENT = 1
_FULL, _DECIDED = 1, 2


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as every rank has it."""

    id: int
    body: bytes
    snapshot: Optional[Snapshot]
    plan: Optional[Plan]
    parent: Optional[int]


class Batch(Owned):
    """The requests of one round, in order; filled on rank 0."""

    _destroy = staticmethod(lib.kvh_batch_destroy)

    def __init__(self, handle: Optional["ctypes.c_void_p"] = None) -> None:
        super().__init__(new(lib.kvh_batch_create) if handle is None else handle)
        # Bodies are borrowed by the library until the round is over.
        self._bodies: List[bytes] = []

    def add(
        self,
        id: int,
        body: bytes,
        snapshot: Optional[Snapshot] = None,
        plan: Optional[Plan] = None,
        parent: Optional[int] = None,
    ) -> None:
        """Adds a request; without a snapshot of its own it has its parent's."""
        body = bytes(body)
        request = _native.sized(_native.BatchRequestStruct)
        request.id = id
        request.body = text(body)
        request.snapshot = None if snapshot is None else snapshot._handle
        request.plan = None if plan is None else plan._handle
        if parent is not None:
            request.flags, request.parent = _HAS_PARENT, parent
        check(lib.kvh_batch_add(self._handle, ctypes.byref(request)))
        self._bodies.append(body)

    def __len__(self) -> int:
        return lib.kvh_batch_count(self._handle)

    def __getitem__(self, index: int) -> ReceivedRequest:
        if not 0 <= index < len(self):
            raise IndexError(index)
        request = _native.sized(_native.BatchRequestStruct)
        check(lib.kvh_batch_get(self._handle, index, ctypes.byref(request)))
        snapshot, plan = None, None
        if request.snapshot is not None:
            snapshot = Snapshot(Handle(lib.kvh_snapshot_retain(request.snapshot)))
        if request.plan is not None:
            # The batch owns its plans: a copy may outlive it.
            plan = Plan.from_bytes(_native.buffer_bytes(new(lib.kvh_plan_to_bytes, request.plan)))
        parent = request.parent if request.flags & _HAS_PARENT else None
        return ReceivedRequest(request.id, request.body.copy(), snapshot, plan, parent)


class Communicator(Owned):
    """The ranks of one worker. Calls are collective."""

    _destroy = staticmethod(lib.kvh_communicator_destroy)

    @classmethod
    def from_mpi4py(
        cls, context: Context, communicator: Any, tensor_size: int = 0, decided: bool = True, deadline_s: float = 0
    ) -> "Communicator":
        """Over the ranks of an mpi4py communicator, which is duplicated. Collective."""
        params = _native.sized(_native.CommunicatorParamsStruct)
        params.tensor_size = tensor_size
        params.mode = _mode(decided)
        params.deadline_ns = int(deadline_s * 1e9)
        out, error = Handle(), Handle()
        status = lib.kvh_communicator_create_mpi(
            context._handle, ctypes.byref(params), communicator.py2f(), ctypes.byref(out), ctypes.byref(error)
        )
        check(status, error)
        return cls(out)

    @classmethod
    def of_one(cls, context: Context) -> "Communicator":
        """For a worker of one rank: needs no MPI."""
        group = new(lib.kvh_local_group_create, 1)
        try:
            params = _native.sized(_native.CommunicatorParamsStruct)
            arguments = (context._handle, group, 0, ctypes.byref(params))
            return cls(new(lib.kvh_communicator_create_local, *arguments))
        finally:
            lib.kvh_local_group_destroy(group)

    @property
    def rank(self) -> int:
        """This rank."""
        return lib.kvh_communicator_rank(self._handle)

    def __len__(self) -> int:
        return lib.kvh_communicator_size(self._handle)

    def broadcast(self, batch: Optional[Batch]) -> Batch:
        """One round: rank 0 gives a batch and gets it back, the others give None and get it."""
        received = Handle()
        given = None if batch is None else batch._handle
        check(lib.kvh_broadcast(self._handle, given, ctypes.byref(received)))
        return Batch(received) if batch is None else batch

    def close(self) -> None:
        """Ends the communicator on all ranks, before MPI is finalised. Collective."""
        check(lib.kvh_communicator_close(self._handle))


def _mode(decided: bool) -> int:
    return _DECIDED if decided else _FULL
