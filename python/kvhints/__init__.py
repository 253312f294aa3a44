"""KV hints for Python executors: a face of libkvhints, without a compiler.

The library is found where it is installed: the path in KVHINTS_LIBRARY, the environment's lib folder,
then wherever the system's loader finds libkvhints.so.0. Contracts are those of kvhints.h; a call that
fails raises Error, and a hint that is not admitted is a verdict, never an exception.
"""

from ._errors import Error
from ._native import library_path
from .backend import AttemptStatus, FetchAttempt, FetchBackend
from .broadcast import Batch, Communicator, ReceivedRequest
from .hints import Action, Admission, BodyAdmission, Context, Ingress, Snapshot, Verdict
from .keys import KeyRing
from .log import LogLevel, LogRecord, log_to
from .owner import BlockCopy, CopyReason, OwnerTree, Request, Tier
from .planning import (
    BindingTable,
    Candidate,
    Candidates,
    Capabilities,
    Fetch,
    Plan,
    RequestKind,
    RequestProfile,
)
from .transfer import (
    CacheLayout,
    Loopback,
    Outcome,
    OutcomeKind,
    Pool,
    Prefetch,
    PrefetchState,
    ReuseTree,
    Sequence,
    Transceiver,
)

__all__ = [
    "Action",
    "Admission",
    "AttemptStatus",
    "Batch",
    "BindingTable",
    "BlockCopy",
    "BodyAdmission",
    "CacheLayout",
    "Candidate",
    "Candidates",
    "Capabilities",
    "Communicator",
    "Context",
    "CopyReason",
    "Error",
    "Fetch",
    "FetchAttempt",
    "FetchBackend",
    "Ingress",
    "KeyRing",
    "LogLevel",
    "LogRecord",
    "Loopback",
    "Outcome",
    "OutcomeKind",
    "OwnerTree",
    "Plan",
    "Pool",
    "Prefetch",
    "PrefetchState",
    "ReceivedRequest",
    "Request",
    "RequestKind",
    "RequestProfile",
    "ReuseTree",
    "Sequence",
    "Snapshot",
    "Tier",
    "Transceiver",
    "Verdict",
    "library_path",
    "log_to",
]
