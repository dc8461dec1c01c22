"""Authentication of requests: a client makes one proof per session, and the server checks it in every request.

    Authorization: Secagg <client>:<130 hexadecimal digits>

A client with a certified key signs the session's description as the server showed it, and the newest message form that
the client supports. Nobody else can make this proof, and a session with another description refuses it. Without keys, a
name belongs to the first client that claims it. This is only sound among clients that mutual TLS has authenticated.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from hmac import compare_digest
from itertools import chain
from types import MappingProxyType
from typing import Final, Protocol

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined
from secagg.errors import AuthenticationFailed, InvalidParameters
from secagg.identifiers import ClientId
from secagg.session.certificates import SIGNATURE_BYTES, Authority, Certificate, SigningKey, VerifiedIdentity
from secagg.wire import FORM

from .tls import is_loopback

SCHEME: Final = "Secagg"
PROOF_BYTES: Final = 1 + SIGNATURE_BYTES
"""The newest form that the client supports, and a signature."""
_HEADER: Final = re.compile(rf"{SCHEME} (0|[1-9][0-9]{{0,19}}):([0-9a-f]{{{2 * PROOF_BYTES}}})", re.ASCII)
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{16,256}", re.ASCII)
_IDS: Final = 1 << 64
_NAMES: Final = 1 << 16
_NONE: Final[Mapping[ClientId, bytes]] = MappingProxyType({})


class Prover(Confined):
    """Prover of a client's name in a session."""

    def __init__(self, client: ClientId, coins: Coins, signing_key: SigningKey | None = None) -> None:
        """Prove a name with a key; without one, claim it with bytes drawn for each session."""
        self.client, self._coins, self._key = client, coins, signing_key

    def proof(self, shown: bytes) -> bytes:
        """Return the proof for a session with this description; without a key, a different one each time."""
        if self._key is None:
            return bytes([FORM]) + bytes(self._coins.draw(SIGNATURE_BYTES))
        return bytes([FORM]) + self._key.sign(Label.HTTP_PROOF, shown, self.client.encode(), bytes([FORM]))

    def __repr__(self) -> str:
        return f"<Prover of {self.client}>"


def header_of(client: ClientId, proof: bytes) -> str:
    """Return the value of ``Authorization``."""
    return f"{SCHEME} {client.value}:{proof.hex()}"


def read_header(text: str) -> tuple[ClientId, bytes] | None:
    """Return the claimed client of a request, and the proof; None for any other text."""
    found = _HEADER.fullmatch(text)
    if found is None or (number := int(found[1])) >= _IDS:
        return None
    return ClientId(number), bytes.fromhex(found[2])


class Admission(Protocol):
    """Checks proofs for a server, in one thread; by default it has neither claims nor seats."""

    def admits(self, shown: bytes, client: ClientId, proof: bytes) -> bool:
        """Whether this is the client's proof for the session."""
        ...

    def claim_of(self, client: ClientId) -> bytes | None:
        """Return the digest of a client's first admitted proof, which must outlive this process."""
        del client
        return None

    def release(self, client: ClientId) -> None:
        """Release a name under which nothing was sent; without keys, another client may take it."""
        del client

    def seat(self, shown: bytes, proof: bytes) -> ClientId | None:
        """Return a free name, or the name of this proof; None if no name is free."""
        del shown, proof
        return None


class Operators:
    """Access control for operators: this machine, or the holder of a token."""

    def __init__(self, token: str | None = None, *, is_behind_proxy: bool = False) -> None:
        """Use a token, if given; behind a proxy every request comes from this machine, so a token is needed."""
        if token is not None and not _TOKEN.fullmatch(token):
            raise InvalidParameters("a token needs 16 letters, digits or -._~+/ or more; try: openssl rand -hex 32")
        self.has_token = token is not None
        self._token, self._is_near_enough = f"Bearer {token}".encode(), not (self.has_token or is_behind_proxy)

    def admits(self, host: str, authorization: str) -> bool:
        """Whether a request comes from an operator."""
        is_told = self.has_token and compare_digest(self._token, authorization.encode())
        return is_told or (self._is_near_enough and is_loopback(host))


class Certified(Admission):
    """Admission of clients that an authority certified, by their signatures."""

    def __init__(self, authority: bytes, certificates: Mapping[ClientId, Certificate]) -> None:
        """Use a roster's certificates, which are verified on first use."""
        self._authority, self._certificates = Authority(authority), certificates
        self._good = dict[ClientId, tuple[bytes, bytes]]()

    def admits(self, shown: bytes, client: ClientId, proof: bytes) -> bool:
        good = self._good.get(client)
        if good is not None and good[0] == shown and compare_digest(good[1], proof):
            return True  # Another proof may be valid too, if the client's newest form has changed.
        try:
            identity: VerifiedIdentity = self._authority.verify(self._certificates[client])
            form, signature = proof[:1], proof[1:]
            identity.verify(signature, Label.HTTP_PROOF, shown, client.encode(), form)
        except (KeyError, AuthenticationFailed):
            return False
        self._good[client] = shown, proof
        return True


class FirstCome:
    """Admission of the first proof for each name in a session."""

    def __init__(
        self, invited: Collection[ClientId] | None = None, shown: bytes = b"", known: Mapping[ClientId, bytes] = _NONE
    ) -> None:
        """Start, or take over another process's session; without ``invited`` only the number of names is limited."""
        self._invited, self._digests, self._shown = invited, dict(known), shown
        self._owners = {digest: client for client, digest in known.items()}
        self._free, self._returned, self._admitted = self._names(), set[ClientId](), set(known)

    def admits(self, shown: bytes, client: ClientId, proof: bytes) -> bool:
        self._begin(shown)
        is_known = client in self._digests
        if not is_known and not self._has_room_for(client):
            return False
        digest = hashlib.sha256(proof).digest()
        if not is_known:
            self._claim(client, digest)
        return compare_digest(self._digests[client], digest)

    def claim_of(self, client: ClientId) -> bytes | None:
        return self._digests.get(client)

    def release(self, client: ClientId) -> None:
        self._owners.pop(self._digests.pop(client, b""), None)
        if self._invited is not None:
            self._returned.add(client)

    def seat(self, shown: bytes, proof: bytes) -> ClientId | None:
        """Return the lowest free name of those invited."""
        self._begin(shown)
        digest = hashlib.sha256(proof).digest()
        if (own := self._owners.get(digest)) is not None:
            return own
        names = chain(sorted(self._returned), self._free)
        free = next((client for client in names if client not in self._digests), None)
        self._returned.clear() if free is None else self._returned.discard(free)
        if free is not None:
            self._claim(free, digest)
        return free

    def _has_room_for(self, client: ClientId) -> bool:
        """Whether a client may claim a name; released names count too: their clients are remembered elsewhere."""
        if self._invited is not None:
            return client in self._invited
        return client in self._admitted or len(self._admitted) < _NAMES

    def _claim(self, client: ClientId, digest: bytes) -> None:
        self._digests[client] = digest
        self._admitted.add(client)
        self._owners.setdefault(digest, client)

    def _names(self) -> Iterator[ClientId]:
        """Iterate over the names only once, however many requests ask for seats."""
        yield from sorted(self._invited or ())

    def _begin(self, shown: bytes) -> None:
        if shown != self._shown:
            self._shown = shown
            self._free = self._names()
            self._admitted.clear()
            self._returned.clear()
            self._digests.clear()
            self._owners.clear()
