"""The one-hot checks of several segments in the four steps of an exchange: commit, open, decide and open, decide."""

from __future__ import annotations

from collections.abc import Sequence

from secagg.crypto.secret import Confined
from secagg.errors import blaming
from secagg.protocols.two_servers.exchange import cut
from secagg.protocols.two_servers.one_hot.check import OneHotVerifier
from secagg.protocols.two_servers.one_hot.messages import OneHotCommitment, OneHotOpening


class OneHotExchange(Confined):
    """One server's verifiers of one upload, or of one dealt batch, one for each segment."""

    def __init__(self, verifiers: Sequence[OneHotVerifier]) -> None:
        """Take verifiers of one server."""
        self._verifiers = tuple(verifiers)
        self._commitment_sizes = [OneHotCommitment.encoded_bytes() for _ in verifiers]
        self._opening_sizes = [OneHotOpening.encoded_bytes(verifier.context.shape) for verifier in verifiers]

    def propose(self) -> bytes:
        """Commit to what server 1 will open."""
        return b"".join(verifier.commit() for verifier in self._verifiers)

    def answer(self, proposal: bytes | memoryview) -> bytes:
        """Commit to what server 0 opens, and open it against server 1's commitments."""
        commitments = self._cut(proposal, self._commitment_sizes)
        openings = [verifier.open(piece) for verifier, piece in zip(self._verifiers, commitments, strict=True)]
        return self.propose() + b"".join(openings)

    def conclude(self, answer: bytes | memoryview) -> bytes:
        """Decide upon server 0's openings, and open as server 1."""
        pieces, count = self._cut(answer, [*self._commitment_sizes, *self._opening_sizes]), len(self._verifiers)
        openings = [verifier.open(piece) for verifier, piece in zip(self._verifiers, pieces[:count], strict=True)]
        self._decide(pieces[count:])
        return b"".join(openings)

    def settle(self, conclusion: bytes | memoryview) -> None:
        """Decide upon server 1's openings, as server 0."""
        self._decide(self._cut(conclusion, self._opening_sizes))

    def _decide(self, openings: Sequence[bytes]) -> None:
        for verifier, opening in zip(self._verifiers, openings, strict=True):
            verifier.decide(opening)

    def _cut(self, blob: bytes | memoryview, sizes: Sequence[int]) -> list[bytes]:
        with blaming(*{verifier.peer for verifier in self._verifiers}):
            return [bytes(piece) for piece in cut(blob, sizes)]
