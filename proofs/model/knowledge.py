"""Computes what the server knows after a schedule, and whether this is more than one sum over enough honest clients.

A secret is known from ``threshold`` of its shares, including those of corrupted holders (``shamir.v``). Of the uploads,
exactly the sums over open components are revealed (``masks.v``: uploads_hide, uploads_reveal). This file computes both
independently of the library's ``revealed_sets``, from the masks that were observed in each upload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from sessions import PAIR, KeyOwner, Mask, MaskName
from sessions import SELF as SELF_MASK
from setups import GENUINE, IMPOSTOR, REPLAYED, Set, Setup, Shown

SELF, ROOT, EDGE = "self-mask seed", "mask root", "seed of an edge"
Owner = tuple[int, int]
"""Owner of a secret or an upload: a client, in an attempt."""


@dataclass(frozen=True, slots=True)
class Share:
    """A share that the server has, with its secret, owner and holder; or the seed of their edge."""

    secret: str
    owner: Owner
    holder: int


@dataclass(frozen=True, slots=True)
class Upload:
    """A masked input: its owner and roster, the peers that it should be masked with, and the masks that it has."""

    owner: Owner
    shown: Shown
    sharers: Set
    masks: frozenset[Mask]
    input_name: tuple[int, int]
    """Identity of an input: a client, and the attempt in which it was first uploaded."""


@dataclass(frozen=True, slots=True)
class Known:
    """The secrets of which the server has enough shares."""

    seeds: frozenset[Owner]
    roots: frozenset[Owner]
    edges: frozenset[frozenset[Owner]]


def known_secrets(setup: Setup, shares: Iterable[Share]) -> Known:
    """Return the secrets that the shares determine."""
    holders, edges = dict[tuple[str, Owner], set[int]](), set[frozenset[Owner]]()
    for share in shares:
        if share.secret == EDGE:
            edges.add(frozenset({share.owner, (share.holder, share.owner[1])}))
        else:
            holders.setdefault((share.secret, share.owner), set()).add(share.holder)
    known = {key for key, held in holders.items() if len(held) >= setup.threshold}
    return Known(
        frozenset(owner for secret, owner in known if secret == SELF),
        frozenset(owner for secret, owner in known if secret == ROOT),
        frozenset(edges),
    )


def leaked_to_corrupted(setup: Setup, owner: Owner, shown: Shown) -> list[Share]:
    """Return the shares that an honest client seals to keys of the server or of corrupted clients."""
    client, _ = owner
    return [
        Share(secret, owner, holder)
        for holder, kind in shown.keys
        if holder != client and (holder in setup.corrupted or kind not in {GENUINE, REPLAYED})
        for secret in (SELF, ROOT)
    ]


def fault(setup: Setup, uploads: Sequence[Upload], known: Known, names: Mapping[bytes, MaskName]) -> str | None:
    """Return a description of what the server must not know but does; nothing if there is none."""
    both = sorted(known.seeds & known.roots)
    if both:
        return f"both secrets of client {both[0][0]}"
    revealed = _open_components(setup, uploads, known, names)
    least = setup.cohort - len(setup.corrupted)
    rows = [frozenset(upload.input_name for upload in component) for component in revealed]
    inputs = sorted({name for row in rows for name in row})
    for size in range(1, least):
        for few in combinations(inputs, size):
            if _combines_to(rows, frozenset(few)):
                return f"a combination of the inputs of only {[client for client, _ in few]}"
    if setup.quorum:
        rosters = [(next(iter(component)).owner[1], next(iter(component)).shown) for component in revealed]
        if len(set(rosters)) < len(rosters):
            return f"two sums in one session, over {[sorted(u.owner[0] for u in part) for part in revealed]}"
    return None


def _open_components(
    setup: Setup, uploads: Sequence[Upload], known: Known, names: Mapping[bytes, MaskName]
) -> list[frozenset[Upload]]:
    """Return components of uploads that are joined by unknown masks, where no other unknown mask remains."""
    holders = dict[Mask, Upload]()
    for upload in uploads:
        holders |= dict.fromkeys(upload.masks, upload)
    joined = {upload: set[Upload]() for upload in uploads}
    hidden = set[Upload]()
    for (key, sign), upload in holders.items():
        if not _is_known(setup, names.get(key), known):
            other = holders.get((key, -sign))
            if other is None or other is upload:
                hidden.add(upload)
            else:
                joined[upload].add(other)
    components, left = list[frozenset[Upload]](), set(uploads)
    while left:
        component, frontier = set[Upload](), {left.pop()}
        while frontier:
            component |= frontier
            frontier = {other for upload in frontier for other in joined[upload]} - component
        left -= component
        if not component & hidden:
            components.append(frozenset(component))
    return components


def _is_known(setup: Setup, name: MaskName | None, known: Known) -> bool:
    """Whether the server can expand a mask; it cannot expand one whose key has no name."""
    if name is None:
        return False
    kind, owners = name
    if any(party == IMPOSTOR or number in setup.corrupted for number, party, _ in owners):
        return True
    ends = frozenset(map(_owner, owners))
    if kind == SELF_MASK:
        return ends <= known.seeds
    return kind == PAIR and bool(ends & known.roots or ends in known.edges)


def _owner(keys: KeyOwner) -> Owner:
    number, _, attempt = keys
    return number, attempt


def _combines_to(rows: Sequence[frozenset[tuple[int, int]]], few: frozenset[tuple[int, int]]) -> bool:
    """Whether some combination of the revealed sums depends only on these inputs."""
    others = sorted({name for row in rows for name in row} - few)
    outside = [[Fraction(name in row) for name in others] for row in rows]
    everything = [[Fraction(name in row) for name in (*others, *sorted(few))] for row in rows]
    return _rank(outside) < _rank(everything)


def _rank(rows: list[list[Fraction]]) -> int:
    rest, rank = [list(row) for row in rows], 0
    for column in range(len(rest[0]) if rest else 0):
        pivot = next((row for row in rest if row[column]), None)
        if pivot is None:
            continue
        rank += 1
        rest.remove(pivot)
        for row in rest:
            factor = row[column] / pivot[column]
            for index in range(column, len(row)):
                row[index] -= factor * pivot[index]
    return rank
