"""The metrics of a library as Prometheus text, for the tests beside this file."""

import ctypes
import sys


def metrics_of(path):
    """The exposition of a context that admitted one hint and refused a malformed one."""
    library = ctypes.CDLL(path)
    size, context = ctypes.c_size_t, ctypes.c_void_p()
    if library.kvh_context_create(None, ctypes.byref(context)) != 0:
        sys.exit("no context")
    verdict, snapshot = ctypes.c_int32(), ctypes.c_void_p()
    for hint in (b'{"protocol_version":"0.1","message_id":"m","actions":[]}', b"{"):
        status = library.kvh_admit(context, 2, hint, size(len(hint)), ctypes.byref(verdict),
                                   ctypes.byref(snapshot))
        if status != 0:
            sys.exit("kvh_admit failed")
        library.kvh_snapshot_release(snapshot)
    length = size()
    library.kvh_context_metrics(context, None, size(0), ctypes.byref(length))
    text = ctypes.create_string_buffer(length.value + 64)
    if library.kvh_context_metrics(context, text, size(len(text)), ctypes.byref(length)) != 0:
        sys.exit("kvh_context_metrics failed")
    library.kvh_context_destroy(context)
    return text.raw[:length.value].decode()
