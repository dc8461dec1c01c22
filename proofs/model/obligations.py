"""The five obligations of ``quorum.v``, asserted at every answer of an honest client.

The theorems for any number of clients assume them of the client class. Here each is checked for what the class did in a
schedule: what it signed, which masks it added, and for which contributors it revealed which share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from asking import Answer
from knowledge import EDGE, ROOT, SELF, Owner, Share, Upload
from paths import Path
from sessions import PAIR
from setups import GENUINE
from showing import World


@dataclass(frozen=True, slots=True)
class Deeds:
    """The actions of honest clients in a schedule."""

    signed: Mapping[Owner, Path]
    """The signers of every list on a path."""
    uploads: Mapping[Owner, Upload]


def broken_alone(world: World, path: Path) -> Iterator[str]:
    """Yield the name of each obligation that a client violates, whatever others do."""
    if len({*path.signed}) > 1:
        yield "signs_once"
    committee = world.committee(path.shown)
    lying = [member for member in committee if _is_servers(world, path, member)]
    if len(committee) + len(lying) >= 2 * world.setup.quorum:
        yield "quorum_large"


def broken_by(world: World, answer: Answer, deeds: Deeds) -> Iterator[str]:
    """Yield the name of each obligation that an answer violates."""
    stands = _answers_for(world, answer, deeds)
    for share in answer.shares:
        contributed = share.owner[0] in answer.contributors
        if share.secret == SELF and not (stands and contributed and _masked_as_it_said(world, answer, share, deeds)):
            yield "self_only_if"
        if share.secret == ROOT and not (stands and not contributed):
            yield "root_only_if"
        if share.secret == EDGE and not (stands and not contributed):
            yield "edge_only_if"


def _answers_for(world: World, answer: Answer, deeds: Deeds) -> bool:
    """Whether a client may answer for these sets: they are certified, contain it, and are large enough."""
    path, contributors, setup = answer.path, answer.contributors, world.setup
    pair = path.shown, path.sharers
    endorsers = [
        member
        for member in world.committee(path.shown)
        if _is_servers(world, path, member)
        or (
            (signed := deeds.signed.get((member, path.shown.attempt))) is not None
            and (signed.shown, signed.sharers) == pair
            and contributors in signed.signed
        )
    ]
    return (
        len(endorsers) >= setup.quorum
        and answer.owner[0] in contributors
        and contributors <= path.sharers
        and len(contributors) >= setup.cohort
    )


def _masked_as_it_said(world: World, answer: Answer, share: Share, deeds: Deeds) -> bool:
    """Whether an honest client uploaded with every neighbour's mask that the holder of its share knows of."""
    number, attempt = share.owner
    upload, names = deeds.uploads.get(share.owner), world.mask_names
    if upload is None or upload.shown is not answer.path.shown:
        return False
    pairs = [ends for key, _ in upload.masks if key in names for kind, ends in (names[key],) if kind == PAIR]
    own = number, GENUINE, attempt
    others = {other for ends in pairs if own in ends for other, _, _ in ends - {own}}
    return answer.path.sharers - {number} <= others


def _is_servers(world: World, path: Path, member: int) -> bool:
    return member in world.setup.corrupted or path.shown.kind(member) != GENUINE
