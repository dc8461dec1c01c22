"""What the server knows after a schedule, and whether it is more than one sum over enough honest clients.

A secret is known from ``threshold`` of its shares, those of corrupted holders included (``shamir.v``). Of the uploads
exactly the sums over open components are revealed (``masks.v``: uploads_hide, uploads_reveal). This file computes both
by themselves and not with the library's ``revealed_sets``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from sessions import GENUINE, REPLAYED, Set, Setup, Shown

SELF, ROOT = "self-mask seed", "mask root"
Owner = tuple[int, int]
"""Whose secret or upload: a client, in an attempt."""


@dataclass(frozen=True, slots=True)
class Share:
    """One share of a secret that the server holds: of which of an owner's two, and from which holder."""

    secret: str
    owner: Owner
    holder: int


@dataclass(frozen=True, slots=True)
class Upload:
    """A masked input: whose, under which roster, and with whom its owner masked."""

    owner: Owner
    shown: Shown
    sharers: Set
    input_name: tuple[int, int]
    """Which input: a client, and the attempt in which it was first uploaded."""


def known_secrets(setup: Setup, shares: Iterable[Share]) -> tuple[frozenset[Owner], frozenset[Owner]]:
    """Return whose self-mask seeds and whose mask roots the shares determine."""
    holders = dict[tuple[str, Owner], set[int]]()
    for share in shares:
        holders.setdefault((share.secret, share.owner), set()).add(share.holder)
    known = {key for key, held in holders.items() if len(held) >= setup.threshold}
    return (
        frozenset(owner for secret, owner in known if secret == SELF),
        frozenset(owner for secret, owner in known if secret == ROOT),
    )


def leaked_to_corrupted(setup: Setup, owner: Owner, shown: Shown) -> list[Share]:
    """Return the shares that an honest client seals to keys which are not an honest client's."""
    client, _ = owner
    return [
        Share(secret, owner, holder)
        for holder, kind in shown.keys
        if holder != client and (holder in setup.corrupted or kind not in {GENUINE, REPLAYED})
        for secret in (SELF, ROOT)
    ]


def fault(setup: Setup, uploads: Sequence[Upload], seeds: frozenset[Owner], roots: frozenset[Owner]) -> str | None:
    """Return what the server has learned that it must not, in words; nothing if it has not."""
    both = sorted(seeds & roots)
    if both:
        return f"both secrets of client {both[0][0]}"
    revealed = _open_components(setup, uploads, seeds, roots)
    least = setup.cohort - len(setup.corrupted)
    rows = [frozenset(upload.input_name for upload in component) for component in revealed]
    names = sorted({name for row in rows for name in row})
    for size in range(1, least):
        for few in combinations(names, size):
            if _combines_to(rows, frozenset(few)):
                return f"a combination of the inputs of only {[client for client, _ in few]}"
    if setup.quorum:
        rosters = [(next(iter(component)).owner[1], next(iter(component)).shown) for component in revealed]
        if len(set(rosters)) < len(rosters):
            return f"two sums in one session, over {[sorted(u.owner[0] for u in part) for part in revealed]}"
    return None


def _open_components(
    setup: Setup, uploads: Sequence[Upload], seeds: frozenset[Owner], roots: frozenset[Owner]
) -> list[frozenset[Upload]]:
    by_owner = {upload.owner: upload for upload in uploads}
    joined = {upload: set[Upload]() for upload in uploads}
    hidden = {upload for upload in uploads if upload.owner not in seeds}
    for upload in uploads:
        client, attempt = upload.owner
        for peer in upload.sharers - {client}:
            kind = upload.shown.kind(peer)
            if peer in setup.corrupted or kind not in {GENUINE, REPLAYED} or upload.owner in roots:
                continue
            holder_of_key = (peer, attempt if kind == GENUINE else 1 - attempt)
            if holder_of_key in roots:
                continue
            other = by_owner.get((peer, attempt)) if kind == GENUINE else None
            if other is not None and other.shown == upload.shown and client in other.sharers:
                joined[upload].add(other)
            else:
                hidden.add(upload)
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


def _combines_to(rows: Sequence[frozenset[tuple[int, int]]], few: frozenset[tuple[int, int]]) -> bool:
    """Whether some combination of the revealed sums involves these inputs alone."""
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
