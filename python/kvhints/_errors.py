"""What a failed call raises."""


class Error(Exception):
    """A call of the library failed. `status` is one of KVH_ERR_* of kvhints.h."""

    # KVH_ERR_BODY: no body of a request.
    BODY = -6

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{text} ({status})")
        self.status = status
