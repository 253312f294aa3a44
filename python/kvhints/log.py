"""The library's log, handed to a function of the host.

The function runs on whatever thread has something to say, the library's own among them, which wait for it:
it has to be short. What it raises goes to sys.unraisablehook, and no further. The context keeps it, so it
must not keep the context.
"""

import ctypes
import enum
import itertools
import json
import logging
from dataclasses import dataclass
from typing import Any, Callable, Dict

from ._native import LogRecordStruct, check, lib


class LogLevel(enum.IntEnum):
    """How much is told."""

    ERROR = 1
    WARNING = 2
    INFO = 3
    DEBUG = 4


@dataclass(frozen=True)
class LogRecord:
    """One event. `fields` are numbers and words of the library, never a hint's contents; `left_out` counts
    records of this event that were not told, so that nobody can flood the log."""

    level: LogLevel
    event: str
    message: str
    fields: Dict[str, Any]
    left_out: int
    time_ns: int


Log = Callable[[LogRecord], None]

_LEVELS = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARNING: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.DEBUG: logging.DEBUG,
}


def log_to(logger: logging.Logger) -> Log:
    """A log that goes to one of Python's loggers; the record itself is there as `kvhints`."""

    def log(record: LogRecord) -> None:
        extra = {"kvhints": record}
        logger.log(_LEVELS[record.level], "%s: %s %s", record.event, record.message, record.fields, extra=extra)

    return log


# The library knows a log by a number: these two functions are the only ones that it calls, and they stay.
_logs: Dict[int, Log] = {}
_numbers = itertools.count(1)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(LogRecordStruct))
def _take(number: int, record: Any) -> None:
    told = record.contents
    _logs[number](
        LogRecord(
            LogLevel(told.level),
            told.event.copy().decode(),
            told.message.copy().decode(),
            json.loads(told.fields.copy()),
            told.left_out,
            told.time_ns,
        )
    )


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _forget(number: int) -> None:
    del _logs[number]


def set_log(context_handle: Any, level: LogLevel, log: Log) -> None:
    """Sends a context's log to a function, until the last object of the context is gone."""
    number = next(_numbers)
    _logs[number] = log
    # On an error the library forgets it as well.
    check(lib.kvh_context_set_log(context_handle, int(level), _take, number, _forget))
