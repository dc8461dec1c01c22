"""Identifiers of parties and sessions: small values without secrets."""

from __future__ import annotations

from dataclasses import dataclass

from secagg.errors import InvalidParameters
from secagg.errors import Party as Party  # noqa: PLC0414 -- exported from here

CLIENT_ID_BYTES = 8
CONTEXT_BYTES = 32
CONTEXT_TAG_BYTES = 8


@dataclass(frozen=True, slots=True, order=True)
class ClientId(Party):
    """One client of a session, as the platform numbers them: an integer below 2^64."""

    value: int

    def __post_init__(self) -> None:
        if type(self.value) is not int or not 0 <= self.value < 1 << (8 * CLIENT_ID_BYTES):
            raise InvalidParameters(f"a client id must be an integer in [0, 2^64); got {self.value!r}")

    def encode(self) -> bytes:
        """Return the encoding used in keys, signatures and messages."""
        return self.value.to_bytes(CLIENT_ID_BYTES, "big")

    def __str__(self) -> str:
        return f"client/{self.value}"


@dataclass(frozen=True, slots=True, order=True)
class ServerId(Party):
    """The server, or one of two servers in a two-server protocol."""

    index: int = 0

    def __post_init__(self) -> None:
        if type(self.index) is not int or self.index not in (0, 1):
            raise InvalidParameters(f"a server index must be 0 or 1; got {self.index!r}")

    def __str__(self) -> str:
        return f"server/{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class HolderId(Party):
    """One holder of shares: its position in the epoch that the authority signed."""

    position: int

    def __post_init__(self) -> None:
        if type(self.position) is not int or not 0 <= self.position < 1 << 16:
            raise InvalidParameters(f"a holder's position must be an integer in [0, 2^16); got {self.position!r}")

    def __str__(self) -> str:
        return f"holder/{self.position}"


@dataclass(frozen=True, slots=True)
class _Context:
    digest: bytes

    def __post_init__(self) -> None:
        if type(self.digest) is not bytes or len(self.digest) != CONTEXT_BYTES:
            got = f"{type(self.digest).__name__} of {len(self.digest)}"
            raise InvalidParameters(f"a context must be a digest of {CONTEXT_BYTES} bytes; got {got}")

    @property
    def tag(self) -> bytes:
        """Return the tag that messages begin with. It detects only accidents; keys and signatures bind the digest."""
        return self.digest[:CONTEXT_TAG_BYTES]


class AttemptContext(_Context):
    """Digest of one attempt's configuration (T0), which is known before any key is advertised."""

    __slots__ = ()


class SessionContext(_Context):
    """The digest of the attempt and of its roster (ctx), which every later key, nonce and signature is bound to."""

    __slots__ = ()
