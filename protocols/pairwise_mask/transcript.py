"""Which sums a transcript reveals, whoever looks at it: the thing to watch when neighbourhoods are sparse.

Take from every honest upload the masks that the observer knows. What is left of client i is its input, its self mask if
that is unknown, and the unknown pairwise masks that i added; the one of i and j stands in both uploads with opposite
signs if both of them added it, and in one upload otherwise. Join two clients if an unknown mask stands in both of their
uploads. Over a connected component these masks cancel, and over no part of it; the component is open if no other
unknown mask stands in it.

The observer learns the sum over each open component and nothing else: two vectors of inputs with equal sums over the
open components give the same distribution of what it sees. This holds in every group, for masks that are uniform and
independent; that expanded seeds look like such masks is the assumption on the cipher. The sum over a set of honest
clients is therefore revealed exactly if the set is a union of open components.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secagg.errors import Misuse
from secagg.identifiers import ClientId


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What was uploaded under which masks, and which of these masks an observer can compute.

    Whoever reconstructed a secret knows it, and so does whoever could have: a secret counts as known as soon as
    ``threshold`` of its shares were seen, those of corrupted holders included.
    """

    masked_with: Mapping[ClientId, frozenset[ClientId]]
    """For each contributor the peers with whom it added a pairwise mask: its neighbours in its view of the sharers.
    A client whose upload arrived and was not used is a contributor too."""
    self_mask_seeds: frozenset[ClientId] = frozenset()
    """The clients whose self-mask seed the observer knows."""
    mask_roots: frozenset[ClientId] = frozenset()
    """The clients whose mask root it knows, and with it all of their pairwise masks."""
    edge_seeds: frozenset[frozenset[ClientId]] = frozenset()
    """The pairs of clients whose one pairwise mask it knows otherwise."""
    corrupted: frozenset[ClientId] = frozenset()
    """The clients of whom it knows everything."""

    def __post_init__(self) -> None:
        for client, peers in self.masked_with.items():
            if client in peers:
                raise Misuse(f"{client} masks with itself; a mask that cancels in one upload hides nothing")
        if any(len(edge) != 2 for edge in self.edge_seeds):  # noqa: PLR2004 -- an edge has two ends
            raise Misuse("an edge is a frozenset of two clients")


def revealed_sets(transcript: Transcript) -> frozenset[frozenset[ClientId]]:
    """Return the smallest sets of honest contributors whose sums the transcript reveals.

    They are disjoint. The sum over a set of honest contributors is revealed exactly if the set is a union of them, so
    the smallest revealed sum is over the smallest of them.

    Claim PM-2: these sums are revealed, and nothing else of the uploads.
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
        # A mask that only one end added is, to the other end, no mask at all; to its own it is a self mask.
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
    """Return, ascending, with whom the client added pairwise masks that the observer does not know."""
    if client in transcript.mask_roots:
        return []
    unknown = transcript.masked_with[client] - transcript.mask_roots - transcript.corrupted
    if transcript.edge_seeds:
        unknown -= {peer for peer in unknown if frozenset((client, peer)) in transcript.edge_seeds}
    return sorted(peer.value for peer in unknown)


def _transposed(added: Mapping[int, list[int]]) -> dict[int, list[int]]:
    """Return for each contributor who added a mask with it, ascending because the keys of ``added`` are."""
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
