"""Which correlations there are in a round of index sharing, and for which uploads they may be used: no cryptography.

Batches of a dealer are received, asked about once, and taken or rejected, like uploads and in the same messages. An
upload is asked about when the batch of its client was taken; until then it does not count among those that wait. A
client has one correlation in a round. If its batch was rejected it is burnt, and the client has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from secagg.errors import Misuse, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.protocols.two_servers.round_rules import Entry, RoundRules, RoundState, Standing

from .dealt_correlations import DEALER

_OPEN = (Standing.RECEIVED, Standing.ASKED)


class DealingRules(RoundRules):
    """The rules of one round at one server, with batches of correlations beside the uploads."""

    def __init__(
        self, *, minimum_cohort: int, maximum_cohort: int, maximum_rejections: int, weights: Sequence[int]
    ) -> None:
        """Begin to collect."""
        super().__init__(
            minimum_cohort=minimum_cohort,
            maximum_cohort=maximum_cohort,
            maximum_rejections=maximum_rejections,
            weights=weights,
        )
        self._batches = dict[bytes, Standing]()
        self._dealt = dict[ClientId, bytes]()

    def require_new_batch(self, batch_id: bytes, clients: Sequence[ClientId]) -> bool:
        """Say whether a batch is new, or the same that came before.

        Raises:
            PeerMisbehaved: a client of it was dealt for before, in a batch that was taken, rejected or neither.
            Misuse: the round does not collect any more.
        """
        self.require(RoundState.COLLECTING)
        if batch_id in self._batches:
            return False
        if not self._dealt.keys().isdisjoint(clients):
            raise PeerMisbehaved(
                "a batch is dealt for a client that was dealt for before, and a client has one correlation in a round",
                reason=Reason.ALREADY_ANSWERED,
                round_name="deal",
            )
        return True

    def receive_batch(self, batch_id: bytes, clients: Sequence[ClientId]) -> None:
        """Remember a new batch."""
        if self.require_new_batch(batch_id, clients):
            self._batches[batch_id] = Standing.RECEIVED
            self._dealt.update(dict.fromkeys(clients, batch_id))

    def require_new(self, entry: Entry) -> bool:
        """Say whether an upload is new, or the same that came before.

        Raises:
            UnexpectedMessage: no correlation was dealt for its client, or it is burnt.
            PeerMisbehaved, Misuse: as without a dealer.
        """
        is_new = super().require_new(entry)
        batch_id = self._dealt.get(entry.client)
        if is_new and (batch_id is None or self._batches[batch_id] is Standing.REJECTED):
            raise UnexpectedMessage(
                expected="an upload of a client for whom correlations were dealt",
                received=f"an upload of {entry.client}",
                culprits=[entry.client],
            )
        return is_new

    def standing(self, upload_id: bytes) -> Standing | None:
        """Return how far an upload or a batch is; None if it never came."""
        return self._batches.get(upload_id) or super().standing(upload_id)

    def require_asked(self, upload_id: bytes) -> None:
        """Refuse to take what was not asked about, or was decided before."""
        if upload_id not in self._batches:
            super().require_asked(upload_id)
        elif self._batches[upload_id] is not Standing.ASKED:
            raise Misuse("only a batch that was asked about is taken, and only once")

    def entry(self, upload_id: bytes) -> Entry:
        """Return an upload that was received, or for a batch an entry in the dealer's name, of no weight."""
        return Entry(DEALER, upload_id, 0) if upload_id in self._batches else super().entry(upload_id)

    def waiting(self) -> tuple[bytes, ...]:
        """Return the batches that are not decided, and the uploads that are not and may be asked about."""
        batches = (batch_id for batch_id, standing in self._batches.items() if standing in _OPEN)
        return (*batches, *(upload for upload in super().waiting() if self.is_ready(self.entry(upload).client)))

    def is_ready(self, client: ClientId) -> bool:
        """Whether the batch of a client was taken."""
        batch_id = self._dealt.get(client)
        return batch_id is not None and self._batches[batch_id] is Standing.TAKEN

    def _move(self, upload_id: bytes, earlier: set[Standing], standing: Standing) -> None:
        if upload_id not in self._batches:
            super()._move(upload_id, earlier, standing)
            return
        self.require(RoundState.COLLECTING)
        if self._batches[upload_id] not in earlier:
            raise Misuse(f"a batch is {self._batches[upload_id].value}, and cannot become {standing.value}")
        self._batches[upload_id] = standing
