"""What the server does with the survivors' shares: recover one secret of each client, and the masks that follow.

A recovered secret is compared with what its owner published before: a self-mask seed with its commitment, a mask root
with the public key that it gives. Only if they differ are the shares examined. In active mode every share was committed
to, so one that does not fit names its holder, and if all fit their dealer is to blame. In semi-honest mode wrong shares
are located by their code, as long as they are few enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from hmac import compare_digest
from itertools import islice
from typing import Final

from secagg.crypto.key_agreement import KeyRole
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import LagrangeWeights, Share, correct
from secagg.errors import PeerError, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode

from .advertisement import VerifiedAdvertiser
from .client_set import ClientSet
from .commitments import SharedSecret, SharePlace, commit_to_self_mask
from .masking import MaskedVector, adds_pairwise_mask, pairwise_mask_key, self_mask_key
from .revealed_sets import Transcript
from .roster import Roster
from .round1_share_keys import RelayedShares
from .round4_unmasking import ROUND, RevealedShares, revealed_secret
from .suites import MaskKeys, key_suite

MASKS_PER_STEP: Final = 1024
"""Masks removed between two calls of the progress callback; their keys are in memory together."""
_CACHED_WEIGHTS: Final = 256
SignedKey = tuple[bool, Secret]
"""Whether the mask of a key is to be added, and the key."""


class Recovery:
    """The recovery of one session; it holds references, and makes secrets one at a time."""

    def __init__(  # noqa: PLR0913, PLR0917 -- everything the rounds have left
        self,
        roster: Roster,
        advertisers: Sequence[VerifiedAdvertiser],
        relayed: Mapping[int, RelayedShares],
        sharers: ClientSet,
        contributors: ClientSet,
        answers: Mapping[int, RevealedShares],
    ) -> None:
        self._roster = roster
        self._advertisers = advertisers
        self._relayed = relayed
        self._sharers = sharers
        self._contributors = contributors
        self._answers = answers
        self._suite = key_suite(roster.configuration.suite)
        self.faults = list[PeerError]()
        """What single clients did wrong without preventing the sum."""

    @property
    def mask_count(self) -> int:
        """How many masks are left in the sum of the uploads."""
        edges = (len(self._masked_with(dropped)) for dropped in self._dropped())
        return len(self._contributors) + sum(edges)

    def keys(self) -> Iterator[SignedKey]:
        """Recover the key of every mask that is left, one after another; the caller wipes each.

        Implements: [BIK+17] Fig. 4, Round 4, server, the reconstruction.
        Raises:
            ThresholdNotMet: too few shares of a secret that is needed were revealed.
            PeerMisbehaved: wrong shares prevent a recovery; ``culprits`` names those that the evidence names.
        """
        roster = self._roster
        for position in self._contributors:
            with self._recover(position) as seed:
                yield False, self_mask_key(seed, roster.clients[position], roster.context, roster.configuration)
        for position in self._dropped():
            with self._recover(position) as root:
                yield from self._edges_of(position, root)

    def _edges_of(self, dropped: int, root: Secret) -> Iterator[SignedKey]:
        roster, client = self._roster, self._roster.clients[dropped]
        attempt = roster.configuration.context
        keys = MaskKeys(client, self._suite.key_pair(root, KeyRole.MASK, attempt), root)
        try:
            for position in self._masked_with(dropped):
                contributor = roster.clients[position]
                with self._edge_seed(dropped, position, keys) as seed:
                    key = pairwise_mask_key(seed, client, contributor, roster.context, roster.configuration)
                yield not adds_pairwise_mask(contributor, client), key
        finally:
            keys.pair.wipe()

    def _edge_seed(self, dropped: int, contributor: int, keys: MaskKeys) -> Secret:
        roster, peer = self._roster, self._advertisers[contributor].keys
        if not self._suite.edge_bytes:
            return self._suite.seed_of_sent_edge(keys, peer, roster.context, b"")
        if not roster.graph.sends_edge_seed(dropped, contributor):
            edge = self._relayed[contributor].entry_to(dropped).edge
            try:
                return self._suite.seed_of_received_edge(keys, peer, roster.context, edge)
            except PeerError as error:
                error.culprits, error.round_name = frozenset({peer.client}), ROUND
                raise
        edge = self._relayed[dropped].entry_to(contributor).edge
        try:
            return self._suite.seed_of_sent_edge(keys, peer, roster.context, edge)
        except PeerMisbehaved as error:
            # The dropped client sealed another seed than its root gives. The contributor masked with the sealed one.
            error.culprits, error.round_name = frozenset({keys.client}), ROUND
            seed = self._answers[contributor].edge_seed_from(dropped) if contributor in self._answers else None
            if seed is None or not self._suite.check_revealed_seed(
                seed, keys.client, peer.client, roster.context, edge
            ):
                raise
            self.faults.append(error)
            return seed

    def _recover(self, dealer: int) -> Secret:
        """Recover the one secret of a client that its part in the session calls for."""
        secret = revealed_secret(dealer, self._contributors)
        shares, digests = list[Share](), list[bytes]()
        holders = self._roster.graph.neighbours(dealer)
        for point, holder in enumerate(holders, 1):
            revealed = self._answers[holder].share_of(dealer) if holder in self._answers else None
            if revealed is not None:
                shares.append(Share(point, revealed[0]))
                digests.append(revealed[1])
        threshold, client = self._roster.configuration.threshold, self._roster.clients[dealer]
        try:
            if len(shares) < threshold:
                raise ThresholdNotMet(
                    needed=threshold,
                    present=len(shares),
                    what=f"shares of the {secret.value.decode()} of {client}",
                    round_name=ROUND,
                )
            recovered = _combine(shares[:threshold], threshold, secret)
            if self._is_genuine(dealer, secret, recovered):
                return recovered
            recovered.wipe()
            return self._recover_despite_liars(dealer, secret, shares, digests)
        finally:
            for share in shares:
                share.wipe()

    def _recover_despite_liars(
        self, dealer: int, secret: SharedSecret, shares: list[Share], digests: list[bytes]
    ) -> Secret:
        """Find out whose shares are wrong, and recover the secret from the others if they are enough."""
        client, threshold = self._roster.clients[dealer], self._roster.configuration.threshold
        holders = self._roster.graph.neighbours(dealer)
        liars = set[ClientId]()
        if self._roster.configuration.mode is SecurityMode.ACTIVE:
            honest = list[Share]()
            for share, digest in zip(shares, digests, strict=True):
                holder = holders[share.point - 1]
                place = SharePlace(self._roster.context, client, self._roster.clients[holder], share.point)
                commitment = self._relayed[dealer].entry_to(holder).commitment
                if place.fits(share.value, secret, digest, commitment):
                    honest.append(share)
                else:
                    liars.add(self._roster.clients[holder])
            if len(honest) < threshold:
                raise self._wrong_shares(client, secret, liars)
            recovered = _combine(honest[:threshold], threshold, secret)
            culprits = {client, *liars}
        else:
            try:
                corrected = correct(shares, threshold=threshold, kind=secret.value.decode())
            except PeerMisbehaved:
                raise self._wrong_shares(client, secret, set()) from None
            recovered = corrected.secret
            # Without commitments nobody can tell a holder that lies from a dealer that dealt badly, so both are named;
            # where nothing can be corrected, nobody is.
            liars = {client, *(self._roster.clients[holders[point - 1]] for point in corrected.wrong_points)}
            culprits = set[ClientId]()
        if not self._is_genuine(dealer, secret, recovered):
            recovered.wipe()
            raise self._wrong_shares(client, secret, culprits)
        self.faults.append(self._wrong_shares(client, secret, liars))
        return recovered

    def _is_genuine(self, dealer: int, secret: SharedSecret, recovered: Secret) -> bool:
        advertiser, attempt = self._advertisers[dealer], self._roster.configuration.context
        if secret is SharedSecret.SELF_MASK_SEED:
            commitment = commit_to_self_mask(recovered, advertiser.keys.client, attempt)
            return compare_digest(commitment, advertiser.self_mask_commitment)
        pair = self._suite.key_pair(recovered, KeyRole.MASK, attempt)
        try:
            return compare_digest(pair.public_key.encoded, advertiser.keys.mask.encoded)
        finally:
            pair.wipe()

    def _dropped(self) -> Iterator[int]:
        """Go through those that shared keys and did not contribute, and whose masks some contributor has added."""
        for position in self._sharers:
            if position not in self._contributors and self._masked_with(position):
                yield position

    def _masked_with(self, dropped: int) -> list[int]:
        return [position for position in self._roster.graph.neighbours(dropped) if position in self._contributors]

    @staticmethod
    def _wrong_shares(client: ClientId, secret: SharedSecret, culprits: set[ClientId]) -> PeerMisbehaved:
        return PeerMisbehaved(
            f"shares of the {secret.value.decode()} of {client} do not give what it committed to",
            reason=Reason.COMMITMENT_MISMATCH,
            culprits=culprits,
            round_name=ROUND,
        )


def _combine(shares: Sequence[Share], threshold: int, secret: SharedSecret) -> Secret:
    weights = _weights(tuple(share.point for share in shares), threshold)
    return weights.combine(shares, kind=secret.value.decode())


@lru_cache(maxsize=_CACHED_WEIGHTS)
def _weights(points: tuple[int, ...], threshold: int) -> LagrangeWeights:
    """Prepare a reconstruction; most clients of a session have holders at the same points."""
    return LagrangeWeights.at_zero(points, threshold=threshold)


def transcript_of(roster: Roster, sharers: ClientSet, contributors: ClientSet) -> Transcript:
    """Return what a finished session shows of its contributors: who masked with whom, and what was recovered."""
    clients, neighbours_of = roster.clients, roster.graph.neighbours
    masked_with = {
        clients[position]: frozenset(clients[other] for other in neighbours_of(position) if other in sharers)
        for position in contributors
    }
    dropped = frozenset(clients[position] for position in sharers if position not in contributors)
    return Transcript(masked_with=masked_with, self_mask_seeds=frozenset(masked_with), mask_roots=dropped)


def remove_masks(
    total: MaskedVector, recovery: Recovery, progress: Callable[[int, int], None], *, threads: int = 1
) -> None:
    """Remove every mask that is left from the sum of the uploads, some at a time.

    Implements: [BIK+17] Fig. 4, Round 4, server, the last equation.
    """
    done, count, keys = 0, recovery.mask_count, recovery.keys()
    while done < count:
        batch = list[SignedKey]()
        try:
            batch.extend(islice(keys, MASKS_PER_STEP))
            total.apply(
                [key for is_added, key in batch if is_added],
                [key for is_added, key in batch if not is_added],
                threads=threads,
            )
        finally:
            for _, key in batch:
                key.wipe()
        done += len(batch)
        progress(done, count)
