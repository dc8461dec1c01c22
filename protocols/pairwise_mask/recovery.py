"""The end of a session: what its transcript reveals, how secrets are recovered, and the release of one sum.

A recovered secret is compared with what its owner published. Shares are examined only on a mismatch: first against
their commitments (active mode), then by error correction. A holder that was wrong once is used last from then on, so a
liar costs one search rather than one for each client whose shares it holds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hmac import compare_digest
from itertools import islice
from typing import Final

from secagg.contract import Aggregate
from secagg.crypto.public_keys import KeyRole
from secagg.crypto.reconstruction import LagrangeWeights, correct
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import Share
from secagg.errors import NOBODY, Misuse, PeerError, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId, Party

from .relay import RelayedShares, RevealedShares, Settled
from .round2_masked_input import (
    MaskedVector,
    SignedKey,
    adds_pairwise_mask,
    pairwise_mask_key,
    self_mask_key,
    share_place,
)
from .rounds3_4_unmasking import revealed_secret
from .suites import MaskKeys, SharedSecret, commit_to_self_mask, key_suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Uploads with their masks, and the masks that an observer can compute.

    Connect two clients if both uploads contain the same unknown pairwise mask. These masks cancel over a connected
    component, and over no part of it. A component is open if it contains no other unknown mask. If masks are uniform
    and independent, the observer learns the sum over each open component and nothing else (``proofs/coq/masks.v``).

    A secret counts as known once ``threshold`` of its shares were seen, including those of corrupted holders.
    """

    masked_with: Mapping[ClientId, frozenset[ClientId]]
    """The peers with which each contributor added a pairwise mask: its neighbours in its view of the sharers. An upload
    that arrived but was not used counts as well."""
    self_mask_seeds: frozenset[ClientId] = frozenset()
    """Clients whose self-mask seed the observer knows."""
    mask_roots: frozenset[ClientId] = frozenset()
    """Clients whose mask root the observer knows, and therefore all of their pairwise masks."""
    edge_seeds: frozenset[frozenset[ClientId]] = frozenset()
    """Pairs of clients whose pairwise mask the observer knows in another way."""
    corrupted: frozenset[ClientId] = frozenset()
    """Clients whose secrets the observer knows."""

    def __post_init__(self) -> None:
        for client, peers in self.masked_with.items():
            if client in peers:
                raise Misuse(f"{client} is among its own peers; a mask that cancels within one upload hides nothing")
        if any(len(edge) != 2 for edge in self.edge_seeds):  # noqa: PLR2004 -- an edge has two ends
            raise Misuse("an edge must be a frozenset of two clients")


def revealed_sets(transcript: Transcript) -> frozenset[frozenset[ClientId]]:
    """Return the smallest sets of honest contributors whose sums the transcript reveals.

    The sets are disjoint. The sum over a set of honest contributors is revealed exactly if it is a union of them, so
    the smallest revealed sum is over the smallest of them.

    Claim PM-2: the transcript reveals these sums, and nothing else about the uploads.
    """
    honest = {client.value: client for client in transcript.masked_with if client not in transcript.corrupted}
    added = {value: _unknown_peers(transcript, honest[value]) for value in sorted(honest)}
    added_by = _transposed(added)
    joined = dict[int, list[int]]()
    hidden = {value for value, client in honest.items() if client not in transcript.self_mask_seeds}
    for value, peers in added.items():
        if peers == added_by[value]:
            joined[value] = peers
            continue
        # If only one end added a mask, it does not appear at the other end; at its own end it acts as a self mask.
        mutual = set(peers).intersection(added_by[value])
        joined[value] = sorted(mutual)
        if len(mutual) < len(peers):
            hidden.add(value)
    return frozenset(
        frozenset(honest[value] for value in component)
        for component in _components(joined)
        if hidden.isdisjoint(component)
    )


def _unknown_peers(transcript: Transcript, client: ClientId) -> list[int]:
    """Return the peers whose pairwise masks with the client the observer does not know, ascending."""
    if client in transcript.mask_roots:
        return []
    unknown = transcript.masked_with[client] - transcript.mask_roots - transcript.corrupted
    if transcript.edge_seeds:
        unknown -= {peer for peer in unknown if frozenset((client, peer)) in transcript.edge_seeds}
    return sorted(peer.value for peer in unknown)


def _transposed(added: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """Map each contributor to those that added a mask with it, ascending because the keys of ``added`` are."""
    added_by: dict[int, list[int]] = {value: [] for value in added}
    for value, peers in added.items():
        for peer in peers:
            if peer in added_by:
                added_by[peer].append(value)
    return added_by


def _components(joined: Mapping[int, list[int]]) -> list[set[int]]:
    components = list[set[int]]()
    left = set(joined)
    while left:
        component, frontier = set[int](), {left.pop()}
        while frontier:
            component |= frontier
            frontier = {peer for value in frontier for peer in joined[value]} - component
        left -= component
        components.append(component)
    return components


# --- The recovery -----------------------------------------------------------------------------------------------------

_CACHED_WEIGHTS: Final = 256


@dataclass(frozen=True, slots=True)
class _Shown:
    """One holder's share of one secret, and the digest of the share that it does not show (active mode)."""

    holder: int
    share: Share
    other_digest: bytes


class Recovery:
    """Recovers the secrets of one session, one at a time."""

    def __init__(
        self,
        settled: Settled,
        relayed: Mapping[int, RelayedShares],
        answers: Mapping[int, RevealedShares],
        complaints: Mapping[int, tuple[int, ...]],
        corrupted: int,
    ) -> None:
        """Prepare the recovery.

        Args:
            complaints: for each client that left, the neighbours whose seeds it claims to be unusable.
            corrupted: number of clients that the session assumes to lie.
        """
        self._settled, self._roster = settled, settled.roster
        self._relayed, self._answers, self._complaints = relayed, answers, complaints
        self._suite = key_suite(settled.configuration.suite)
        self._enough = max(corrupted, 1) + 1
        self._wrong = dict[int, set[int]]()
        """Dealers whose shares were wrong, by the holder that showed them."""
        self._examined = Counter[int]()
        self._bad_edges = dict[int, set[int]]()
        """Receivers of wrong edge seeds, by sender."""
        self._false_complaints = set[int]()
        self._faults = list[PeerError]()

    @property
    def faults(self) -> list[PeerError]:
        """Faults of individual clients that did not prevent the sum."""
        return [*self._faults, *self._judge_shares(), *self._judge_edges()]

    @property
    def mask_count(self) -> int:
        """Number of masks left in the sum of the uploads."""
        edges = (len(self._masked_with(dropped)) for dropped in self._dropped())
        return len(self._settled.contributors) + sum(edges)

    def keys(self) -> Iterator[SignedKey]:
        """Recover the key of each mask that is left, one after another; the caller wipes each.

        Implements: [BIK+17] Fig. 4, Round 4, server, the reconstruction.
        Raises:
            ThresholdNotMet: too few shares of a required secret were revealed.
            PeerMisbehaved: wrong shares or seeds prevent a recovery; the evidence determines ``culprits``.
        """
        roster = self._roster
        for position in self._settled.contributors:
            with self._recover(position) as seed:
                yield False, self_mask_key(seed, roster.clients[position], roster.context, roster.configuration)
        for position in self._dropped():
            with self._recover(position) as root:
                yield from self._recover_edges(position, root)

    # --- Edges --------------------------------------------------------------------------------------------------------

    def _recover_edges(self, dropped: int, root: Secret) -> Iterator[SignedKey]:
        roster, client = self._roster, self._roster.clients[dropped]
        keys = MaskKeys(client, self._suite.key_pair(root, KeyRole.MASK, roster.configuration.context), root)
        try:
            if self._suite.edge_bytes:
                self._check_edges(dropped, keys)
            for position in self._masked_with(dropped):
                contributor = roster.clients[position]
                with self._edge_seed(dropped, position, keys) as seed:
                    key = pairwise_mask_key(seed, client, contributor, roster.context, roster.configuration)
                yield not adds_pairwise_mask(contributor, client), key
        finally:
            keys.pair.wipe()

    def _check_edges(self, dropped: int, keys: MaskKeys) -> None:
        """Check a dropped client's seeds: those that it committed to, and those that it complained about."""
        accused = self._complaints.get(dropped, ())
        for neighbour in self._roster.graph.neighbours(dropped):
            is_sent = self._roster.graph.sends_edge_seed(dropped, neighbour)
            if neighbour not in self._settled.sharers or not (is_sent or neighbour in accused):
                continue
            try:
                self._seed_by_root(dropped, neighbour, keys).wipe()
            except PeerError:
                sender, receiver = (dropped, neighbour) if is_sent else (neighbour, dropped)
                self._bad_edges.setdefault(sender, set()).add(receiver)
            else:
                if not is_sent:
                    self._false_complaints.add(dropped)

    def _edge_seed(self, dropped: int, contributor: int, keys: MaskKeys) -> Secret:
        """Return the seed of an edge, from the dropped end's root or else as the other end reveals it."""
        try:
            return self._seed_by_root(dropped, contributor, keys)
        except PeerError as error:
            clients = self._roster.clients
            is_sent = self._roster.graph.sends_edge_seed(dropped, contributor)
            sender, receiver = (dropped, contributor) if is_sent else (contributor, dropped)
            # If the contributor reveals the seed that was committed to, it masked with that one.
            self._bad_edges.setdefault(sender, set()).add(receiver)
            seed = self._answers[contributor].edge_seed_with(dropped) if contributor in self._answers else None
            edge = self._relayed[sender].entry_to(receiver).edge
            ends = (clients[sender], clients[receiver])
            if seed is None or not self._suite.check_revealed_seed(seed, *ends, self._roster.context, edge):
                sentence = f"the seed of the edge from {ends[0]} to {ends[1]} does not match {ends[0]}'s commitment"
                raise _fault(sentence, self._settled.said_by(sender)) from error
            return seed

    def _seed_by_root(self, dropped: int, neighbour: int, keys: MaskKeys) -> Secret:
        roster, peer = self._roster, self._settled.advertisers[neighbour].keys
        if roster.graph.sends_edge_seed(dropped, neighbour):
            edge = self._relayed[dropped].entry_to(neighbour).edge
            return self._suite.seed_of_sent_edge(keys, peer, roster.context, edge)
        edge = self._relayed[neighbour].entry_to(dropped).edge
        return self._suite.seed_of_received_edge(keys, peer, roster.context, edge)

    # --- Shares -------------------------------------------------------------------------------------------------------

    def _recover(self, dealer: int) -> Secret:
        """Recover a client's self-mask seed if it contributed, and its mask root if it dropped out."""
        secret = revealed_secret(dealer, self._settled.contributors)
        threshold, shown = self._settled.configuration.threshold, list[_Shown]()
        for point, holder in enumerate(self._roster.graph.neighbours(dealer), 1):
            revealed = self._answers[holder].share_of(dealer) if holder in self._answers else None
            if revealed is not None:
                shown.append(_Shown(holder, Share(point, revealed[0]), revealed[1]))
        try:
            if len(shown) < threshold:
                raise ThresholdNotMet(
                    needed=threshold,
                    present=len(shown),
                    what=f"shares of the {secret.value.decode()} of {self._roster.clients[dealer]}",
                )
            trusted = sorted(shown, key=lambda item: len(self._wrong.get(item.holder, ())))[:threshold]
            recovered = _combine(trusted, threshold, secret)
            if not self._is_genuine(dealer, secret, recovered):
                recovered.wipe()
                return self._recover_despite_liars(dealer, secret, shown)
            if not self._settled.is_active:
                self._examine_suspects(dealer, secret, trusted, shown)
            return recovered
        finally:
            for item in shown:
                item.share.wipe()

    def _examine_suspects(
        self, dealer: int, secret: SharedSecret, trusted: list[_Shown], shown: Sequence[_Shown]
    ) -> None:
        """Check whether holders that were wrong before are wrong again, a few times each; only needed for blame."""
        holders = {item.holder for item in trusted}
        for item in shown:
            wrong = self._wrong.get(item.holder)
            if not wrong or item.holder in holders or len(wrong) >= self._enough:
                continue
            if self._examined[item.holder] >= 2 * self._enough:
                continue
            self._examined[item.holder] += 1
            try:
                _combine([*trusted, item], len(trusted), secret).wipe()
            except PeerMisbehaved:
                wrong.add(dealer)

    def _recover_despite_liars(self, dealer: int, secret: SharedSecret, shown: Sequence[_Shown]) -> Secret:
        """Find the wrong shares, and recover the secret from the others if they suffice."""
        threshold = self._settled.configuration.threshold
        liars, dealt = set[int](), frozenset[Party]()
        if self._settled.is_active:
            # The remaining shares are as dealt, so the dealer is to blame for their faults.
            dealt = self._settled.said_by(dealer)
            liars = {item.holder for item in shown if not self._fits(dealer, secret, item)}
            shown = [item for item in shown if item.holder not in liars]
            for holder in liars:
                self._wrong.setdefault(holder, set()).add(dealer)
        culprits = self._settled.said_by(*liars)
        if len(shown) < threshold:
            raise self._wrong_shares(dealer, secret, culprits)
        try:
            corrected = correct([item.share for item in shown], threshold=threshold, kind=secret.value.decode())
        except PeerMisbehaved:
            raise self._wrong_shares(dealer, secret, culprits | dealt) from None
        if not self._is_genuine(dealer, secret, corrected.secret):
            corrected.secret.wipe()
            raise self._wrong_shares(dealer, secret, culprits | dealt)
        if corrected.wrong_points:
            culprits |= dealt
        if self._settled.is_active:
            self._faults.append(self._wrong_shares(dealer, secret, culprits))
        else:
            for item in shown:
                if item.share.point in corrected.wrong_points:
                    self._wrong.setdefault(item.holder, set()).add(dealer)
        return corrected.secret

    def _fits(self, dealer: int, secret: SharedSecret, item: _Shown) -> bool:
        place = share_place(self._roster, dealer, item.holder)
        commitment = self._relayed[dealer].entry_to(item.holder).commitment
        return place.fits(item.share.value, secret, item.other_digest, commitment)

    def _is_genuine(self, dealer: int, secret: SharedSecret, recovered: Secret) -> bool:
        advertiser, attempt = self._settled.advertisers[dealer], self._settled.configuration.context
        if secret is SharedSecret.SELF_MASK_SEED:
            commitment = commit_to_self_mask(recovered, advertiser.keys.client, attempt)
            return compare_digest(commitment, advertiser.self_mask_commitment)
        pair = self._suite.key_pair(recovered, KeyRole.MASK, attempt)
        try:
            return compare_digest(pair.public_key.encoded, advertiser.keys.mask.encoded)
        finally:
            pair.wipe()

    # --- Blame --------------------------------------------------------------------------------------------------------

    def _judge_shares(self) -> Iterator[PeerMisbehaved]:
        """Name the clients that showed or dealt wrong shares, where no commitment decides which."""
        if self._settled.is_active:
            return
        recurring = {holder for holder, dealers in self._wrong.items() if len(dealers) >= self._enough}
        left = dict[int, set[int]]()
        for holder, dealers in self._wrong.items():
            for dealer in dealers if holder not in recurring else ():
                left.setdefault(dealer, set()).add(holder)
        dealing = {dealer for dealer, holders in left.items() if len(holders) >= self._enough}
        for position in sorted(recurring | dealing):
            yield self._unsigned_shares(f"{self._roster.clients[position]} showed or dealt wrong shares", {position})
        for dealer, holders in sorted(left.items()):
            if dealer not in dealing:
                client = self._roster.clients[dealer]
                yield self._unsigned_shares(f"{client} dealt wrong shares, or others showed them", {dealer, *holders})

    def _unsigned_shares(self, sentence: str, positions: set[int]) -> PeerMisbehaved:
        return _fault(sentence, self._settled.said_by(*positions))

    def _judge_edges(self) -> Iterator[PeerMisbehaved]:
        for sender, receivers in sorted(self._bad_edges.items()):
            yield _fault(
                f"{self._roster.clients[sender]} sealed unusable seeds to {len(receivers)} of its neighbours, or "
                "committed to seeds that its root does not give",
                self._settled.said_by(sender),
            )
        for position in sorted(self._false_complaints):
            sentence = f"{self._roster.clients[position]} complained about a usable seed"
            yield _fault(sentence, self._settled.said_by(position), Reason.EDGE_UNUSABLE)

    def _wrong_shares(self, dealer: int, secret: SharedSecret, culprits: frozenset[Party]) -> PeerMisbehaved:
        client = self._roster.clients[dealer]
        return _fault(f"shares of the {secret.value.decode()} of {client} do not match its commitment", culprits)

    # --- Who ----------------------------------------------------------------------------------------------------------

    def _dropped(self) -> Iterator[int]:
        """Yield the sharers that did not contribute, and whose masks some contributor has added."""
        for position in self._settled.sharers:
            if position not in self._settled.contributors and self._masked_with(position):
                yield position

    def _masked_with(self, dropped: int) -> list[int]:
        neighbours = self._roster.graph.neighbours(dropped)
        return [position for position in neighbours if position in self._settled.contributors]


def _fault(sentence: str, culprits: Iterable[Party], reason: Reason = Reason.COMMITMENT_MISMATCH) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=reason, culprits=culprits)


def _combine(shown: Sequence[_Shown], threshold: int, secret: SharedSecret) -> Secret:
    # Sorted by point, so that a session needs few sets of weights.
    shares = sorted((item.share for item in shown), key=lambda share: share.point)
    weights = _weights(tuple(share.point for share in shares), threshold)
    return weights.combine(shares, kind=secret.value.decode())


@lru_cache(maxsize=_CACHED_WEIGHTS)
def _weights(points: tuple[int, ...], threshold: int) -> LagrangeWeights:
    """Prepare a reconstruction; most clients of a session have holders at the same points."""
    return LagrangeWeights.at_zero(points, threshold=threshold)


# --- The release ------------------------------------------------------------------------------------------------------

MASKS_PER_STEP: Final = 1024
"""Number of masks removed between two progress callbacks; their keys are in memory at the same time."""
_LOG = logging.getLogger(__name__)


def count_revealed_sets(settled: Settled) -> frozenset[frozenset[ClientId]]:
    """Return and log the sets of clients whose sums the transcript reveals, each of them a cohort."""
    clients, neighbours_of = settled.roster.clients, settled.roster.graph.neighbours
    sharers, contributors = settled.sharers, settled.contributors
    masked_with = {
        clients[position]: frozenset(clients[other] for other in neighbours_of(position) if other in sharers)
        for position in contributors
    }
    dropped = frozenset(clients[position] for position in sharers if position not in contributors)
    revealed = revealed_sets(
        Transcript(masked_with=masked_with, self_mask_seeds=frozenset(masked_with), mask_roots=dropped)
    )
    sizes = sorted(map(len, revealed))
    _LOG.info("the session reveals the sums of %d sets of clients, of sizes %s", len(sizes), sizes)
    return revealed


def release_sum(settled: Settled, total: MaskedVector) -> Aggregate:
    """Return a fully unmasked sum, if it matches its check words and the number of contributors."""
    total.check(settled.roster.context)
    contributors = len(settled.contributors)
    if total.count != contributors:
        raise PeerMisbehaved(
            f"{contributors} contributors were counted as {total.count}; each must count once",
            reason=Reason.INPUT_OUT_OF_RANGE,
            culprits=NOBODY,
        )
    return Aggregate(settled.configuration.layout, total.inputs(contributors), contributors)


def remove_masks(
    total: MaskedVector, recovery: Recovery, progress: Callable[[int, int], None] | None, *, threads: int = 1
) -> None:
    """Remove all remaining masks from the sum of the uploads, in batches.

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
        if progress is not None:
            progress(done, count)
