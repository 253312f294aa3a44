"""Key rings: signatures of hints, and the keys by which workers know each other."""

import ctypes
from typing import TYPE_CHECKING, Optional

from . import _native
from ._native import NOT_FOUND, Handle, Owned, check, lib, text

if TYPE_CHECKING:
    from .hints import Snapshot

_EXPIRY_REQUIRED, _EXPIRY_OPTIONAL = 0, 1


class KeyRing(Owned):
    """Keys by their ids. Keys may come and go at any time, from any thread; contexts and transceivers that
    were given the ring go on with it. The library copies what it needs and never shows a secret."""

    _destroy = staticmethod(lib.kvh_key_ring_destroy)

    def __init__(self, audience: str = "", expires: bool = True, admissions_max: int = 0) -> None:
        """For hints: whom they must name (empty: any or none), whether they must expire, and how often one
        of them is admitted before it does (0: any number of times)."""
        params = _native.sized(_native.KeyRingParamsStruct)
        name = audience.encode()
        params.audience = text(name)
        params.expiry = _EXPIRY_REQUIRED if expires else _EXPIRY_OPTIONAL
        params.admissions_max = admissions_max
        out, error = Handle(), Handle()
        check(lib.kvh_key_ring_create(ctypes.byref(params), ctypes.byref(out), ctypes.byref(error)), error)
        super().__init__(out)

    def add(self, key_id: str, secret: bytes) -> None:
        """Adds a key, of 32 to 1,024 bytes."""
        name, secret, error = key_id.encode(), bytes(secret), Handle()
        check(lib.kvh_key_ring_add(self._handle, text(name), text(secret), ctypes.byref(error)), error)

    def remove(self, key_id: str) -> bool:
        """Takes a key out; False where there is none of that id."""
        name = key_id.encode()
        return check(lib.kvh_key_ring_remove(self._handle, text(name))) != NOT_FOUND

    def sign(
        self,
        envelope: "Snapshot",
        key_id: str,
        expiry_unix_seconds: int = 0,
        audience: str = "",
        nonce: str = "",
    ) -> Optional[bytes]:
        """The envelope's JSON with a signature, to be sent as it is; None where there is no such key."""
        words = [word.encode() for word in (key_id, audience, nonce)]
        params = _native.sized(_native.SigningParamsStruct)
        params.key_id, params.audience, params.nonce = (text(word) for word in words)
        params.expiry_unix_seconds = expiry_unix_seconds
        out, error = Handle(), Handle()
        status = lib.kvh_key_ring_sign(
            self._handle, envelope._handle, ctypes.byref(params), ctypes.byref(out), ctypes.byref(error)
        )
        return None if check(status, error) == NOT_FOUND else _native.buffer_bytes(out)
