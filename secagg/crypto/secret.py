"""The type of secrets: they cannot be printed, copied, pickled, hashed or compared in variable time."""

from __future__ import annotations

import hmac
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NoReturn, Self, SupportsIndex

from secagg.errors import InvalidParameters, Misuse, Reason

from .entropy import Coins

_ZEROS: Final = bytes(1 << 16)


class Confined:
    """Base of objects that hold secrets: they cannot be pickled or copied."""

    __slots__ = ()

    def __reduce_ex__(self, _: SupportsIndex) -> NoReturn:
        self._refuse()

    def __getstate__(self) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Misuse(
            f"{self!r} holds a secret and cannot be pickled, copied or iterated; pass the object itself",
            reason=Reason.SECRET_EXPOSURE,
        )


class Secret(Confined):
    """Secret bytes, redacted in output and overwritten when no longer needed.

    ``kind`` names what the bytes are, for error messages and ``repr``; it is public.

    Security: wiping overwrites only this object's buffer, not copies by the interpreter or a library; see
    LIMITATIONS.md.
    """

    __slots__ = ("_buffer", "_wiped", "kind")

    def __init__(self, kind: str, data: bytes | bytearray | memoryview) -> None:
        """Copy ``data`` into a new buffer; wipe ``data`` yourself if it is mutable."""
        self.kind = kind
        # Use a view, because a buffer made from the integer 32 would be a key of 32 zeros.
        try:
            self._buffer = _Buffer(memoryview(data))
        except TypeError:
            raise Misuse(f"a {kind} must be bytes; got {type(data).__name__}") from None
        self._wiped = False

    @classmethod
    def random(cls, kind: str, count: int, coins: Coins) -> Self:
        if count < 1:
            raise InvalidParameters(f"a secret must have at least one byte; got a count of {count}")
        drawn = draw_exactly(count, coins)
        try:
            return cls(kind, drawn)
        finally:
            overwrite(drawn)

    def expose(self) -> memoryview:
        """Return a read-only view of the bytes, for the one call that needs them.

        Security: the view reads as zeros after ``wipe``; do not keep it and do not copy it.
        """
        if self._wiped:
            raise Misuse(f"the {self.kind} was wiped and cannot be used again", reason=Reason.ALREADY_SPENT)
        return memoryview(self._buffer).toreadonly()

    def wipe(self) -> None:
        overwrite(self._buffer)
        self._wiped = True

    @property
    def is_wiped(self) -> bool:
        return self._wiped

    def __len__(self) -> int:
        return len(self._buffer)

    def __repr__(self) -> str:
        return f"<Secret {self.kind}, {len(self._buffer)} bytes{', wiped' if self._wiped else ''}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.expose(), other.expose())

    # A hash would let sets and dictionaries compare digests of secrets in variable time.
    __hash__ = None  # type: ignore[assignment]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __iter__(self) -> NoReturn:
        self._refuse()

    def __getitem__(self, _: object) -> NoReturn:
        self._refuse()


@contextmanager
def abandoned_on_error(*secrets: Secret) -> Generator[None]:
    """Overwrite secrets if the block raises; otherwise leave them to their owner."""
    try:
        yield
    except BaseException:
        for secret in secrets:
            secret.wipe()
        raise


class _Buffer(bytearray):
    """Bytes that are overwritten when the last reference is gone: the secret's, or a view's."""

    __slots__ = ()

    def __del__(self) -> None:
        overwrite(self)

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"

    __str__ = __repr__


def require_secret(value: object) -> None:
    """Require a ``Secret``; plain bytes could be copied and printed."""
    if not isinstance(value, Secret):
        raise Misuse(f"expected a Secret; got {type(value).__name__}")


def draw_exactly(count: int, coins: Coins) -> bytearray:
    """Draw coins and check their number; the caller overwrites them."""
    drawn = coins.draw(count)
    if type(drawn) is not bytearray:
        raise Misuse(f"coins must return a bytearray, which can be wiped; got {type(drawn).__name__}")
    if len(drawn) != count:
        returned = len(drawn)
        overwrite(drawn)
        raise Misuse(f"the coins returned {returned} bytes instead of {count}; fix their draw()")
    return drawn


def overwrite(buffer: bytearray) -> None:
    """Fill a buffer with zeros in place, without another buffer of its size."""
    view = memoryview(buffer)
    for start in range(0, len(view), len(_ZEROS)):
        part = view[start : start + len(_ZEROS)]
        part[:] = _ZEROS[: len(part)]
