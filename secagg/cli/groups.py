"""``secagg serve --group K/N`` and ``secagg add``: a sum over more clients than one session can have."""

from __future__ import annotations

import argparse
import hashlib
import logging
from dataclasses import dataclass, field
from dataclasses import replace as altered
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from secagg.contract import DIGEST_BYTES, Aggregate, Layout
from secagg.crypto.labels import Label, bind
from secagg.declared import CLIENT, Message, repeated, unsigned, variable
from secagg.errors import InvalidParameters, MalformedMessage, PeerError, Reason
from secagg.identifiers import ClientId
from secagg.scale.tree import MOST_IN_A_GROUP, divided, joined
from secagg.session.durable import PUBLIC, replace, replacing
from secagg.session.identities import Roster
from secagg.session.roles import Released
from secagg.transport.description import DESCRIPTION_BYTES, SessionDescription
from secagg.wire import MessageKind

from .shared import plan_of
from .spreading import revealed

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

_LOG: Final = logging.getLogger("secagg")
_MOST: Final = (1 << 32) - 1
_LEAST_CLIENTS: Final = 3
_MOST_AT_ONCE: Final = 1 << 20
_MOST_IN_ALL: Final = 1 << 32
_NAMED: Final = 20
"""Number of missing groups that an error names."""
_CLIENTS: Final = repeated(CLIENT, MOST_IN_A_GROUP)
_OWN: Final = ("clients", "group")
"""Terms in which groups differ."""


@dataclass(frozen=True, slots=True)
class GroupSum(Message):
    """Release of one group's session; its operator knows all of it."""

    kind = MessageKind.GROUP_SUM
    description: Annotated[bytes, variable(DESCRIPTION_BYTES)]
    aggregate: Annotated[bytes, variable(_MOST)] = field(repr=False)
    counted: Annotated[tuple[ClientId, ...], _CLIENTS]
    revealed: Annotated[tuple[tuple[ClientId, ...], ...], repeated(_CLIENTS, MOST_IN_A_GROUP)]
    unbounded: Annotated[tuple[int, ...], repeated(unsigned(4), _MOST)]

    def released(self, layout: Layout) -> Released:
        """Return the session's release, without the reasons for excluded uploads."""
        aggregate, counted = Aggregate.decode(self.aggregate, layout), frozenset(self.counted)
        if not len(self.counted) == len(counted) == aggregate.contributors:
            raise MalformedMessage("the listed clients differ from the counted ones", reason=Reason.NOT_CANONICAL)
        sets = frozenset(map(frozenset[ClientId], self.revealed))
        if frozenset[ClientId]() in sets or not counted <= frozenset[ClientId]().union(*sets):
            raise MalformedMessage("a counted client is in no revealed sum", reason=Reason.NOT_CANONICAL)
        return Released(aggregate=aggregate, counted=counted, left_out={}, revealed=sets, unbounded=self.unbounded)


def group_of(
    options: argparse.Namespace, roster: Roster | None
) -> tuple[frozenset[ClientId], Roster | None, dict[str, int | float]]:
    """Return the invited clients, their roster, and the terms that they receive."""
    if roster is not None and options.clients is not None:
        raise InvalidParameters("--clients cannot be combined with a roster, which lists the clients")
    if roster is None and options.clients is None:
        raise InvalidParameters(
            "set --clients to the number of clients or, if they have keys, name their roster: --set "
            "roster=keys/roster.txt"
        )
    listed = range(_count(options)) if roster is None else sorted(roster.clients)
    if len(listed) < _LEAST_CLIENTS:
        counted = "--clients" if roster is None else "the number of clients on the roster"
        raise InvalidParameters(
            f"{counted} must be at least {_LEAST_CLIENTS}, because in a sum of two each learns the other's update; "
            f"got {len(listed)}"
        )
    group, groups = _place(options)
    numbers = divided(len(listed), groups)[group - 1] if groups > 1 else range(1, len(listed) + 1)
    if len(numbers) > _MOST_AT_ONCE:
        raise InvalidParameters(
            f"{len(numbers):,} clients exceed one server's limit of {_MOST_AT_ONCE:,}; divide them with --group"
        )
    chosen = listed[numbers.start - 1 : numbers.stop - 1]
    invited = [each if isinstance(each, ClientId) else ClientId(each) for each in chosen]
    if options.group is not None:
        _LOG.info("group %s is of %d clients, %s to %s", options.group, len(invited), invited[0], invited[-1])
    if roster is not None:
        roster = altered(roster, certificates={client: roster.certificates[client] for client in invited})
    terms = {"clients": len(invited), "all_clients": len(listed), "group": group, "groups": groups}
    planned = {"values": options.values, "clip": options.clip, "bits": options.bits}
    return frozenset(invited), roster, terms | planned


def write_sum(path: Path, description: SessionDescription, released: Released) -> None:
    """Write a group's release to a file that only this user can read; returns once it is on disk."""
    sums = GroupSum(
        description=description.encode(),
        aggregate=released.aggregate.encode(),
        counted=tuple(sorted(released.counted)),
        revealed=tuple(sorted(tuple(sorted(each)) for each in released.revealed)),
        unbounded=released.unbounded,
    ).encode()
    replace(path, sums + _digest(sums))


def write_mean(path: Path, mean: ArrayLike) -> None:
    """Write an array to exactly this path, without numpy's suffix; returns once it is on disk."""
    import numpy as np

    with replacing(path, PUBLIC) as file:
        np.save(file, mean, allow_pickle=False)


def read_sum(path: Path) -> tuple[SessionDescription, GroupSum]:
    """Read a file of ``write_sum``."""
    data = path.read_bytes()
    sums, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    if digest != _digest(sums):
        raise InvalidParameters(
            f"{path} is not a group's sum, or is damaged; copy the file of `secagg serve --group` again"
        )
    try:
        found = GroupSum.decode(sums)
        return SessionDescription.decode(found.description), found
    except PeerError as error:
        raise InvalidParameters(f"{path} is not a group's sum ({error}); all servers need the same version") from None


def run_add(options: argparse.Namespace) -> int:
    """Add the sums of groups, write the mean, and return the exit status."""
    first, *others = options.sums
    if any(options.out.exists() and path.exists() and path.samefile(options.out) for path in options.sums):
        raise InvalidParameters(f"--out {options.out} is one of the sums to add; use another file")
    description, found = read_sum(first)
    plan = plan_of(description.protocol, description.terms)
    layout, capacity = plan.codec.layout, plan.codec.capacity
    total, groups = joined([_released(first, found, layout)], layout, capacity), {description.terms["group"]: first}
    # Files are added one at a time, because there may be more than fit into memory.
    for path in others:
        other, found = read_sum(path)
        _require_same(path, other, first, description)
        plan_of(other.protocol, other.terms)
        if (before := groups.get(other.terms["group"])) is not None:
            raise InvalidParameters(f"{before} and {path} are both sums of group {other.terms['group']}; leave one out")
        groups[other.terms["group"]] = path
        total = joined([total, _released(path, found, layout)], layout, capacity)
    write_mean(options.out, plan.mean(total))
    count, of_groups = len(total.counted), description.terms["groups"]
    print(f"{options.out}: the mean of {count:,} of {description.terms['all_clients']:,} clients' updates")
    if missing := of_groups - len(groups):
        absent = (str(group) for group in range(1, of_groups + 1) if group not in groups)
        named = list(islice(absent, _NAMED))
        more = f" and {missing - _NAMED:,} more" if missing > _NAMED else ""
        print(f"not in it: the clients of group {', '.join(named)}{more} of {of_groups:,}")
    print(revealed([*map(len, total.revealed)], count))
    print("the sums have no noise, so each file reveals its sum exactly; delete files that you no longer need")
    return 0


# --- Private ----------------------------------------------------------------------------------------------------------


def _count(options: argparse.Namespace) -> int:
    if not 1 <= options.clients <= _MOST_IN_ALL:
        raise InvalidParameters(f"--clients must be between 1 and {_MOST_IN_ALL:,}; got {options.clients}")
    return int(options.clients)


def _place(options: argparse.Namespace) -> tuple[int, int]:
    if options.group is None:
        return 1, 1
    number, slash, count = options.group.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise InvalidParameters(f"--group must be K/N, such as 2/4; got {options.group!r}")
    if options.round is None:
        raise InvalidParameters("--group requires --round, with the same value for all groups")
    return int(number), int(count)


def _released(path: Path, found: GroupSum, layout: Layout) -> Released:
    try:
        return found.released(layout)
    except PeerError as error:
        raise InvalidParameters(f"{path} is not its group's sum ({error}); copy it again") from None


def _require_same(path: Path, description: SessionDescription, first: Path, expected: SessionDescription) -> None:
    one, other = _about(expected), _about(description)
    if differing := sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name)):
        raise InvalidParameters(
            f"{first} and {path} differ in {', '.join(differing)}; start the servers of all groups with the same "
            "arguments except --group"
        )


def _about(description: SessionDescription) -> dict[str, Any]:
    terms = {name: value.__class__ if name in _OWN else value for name, value in description.terms.items()}
    return {"protocol": description.protocol, "task": description.task, "round": description.round_number, **terms}


def _digest(sums: bytes) -> bytes:
    return hashlib.sha256(bind(Label.GROUP_SUM, sums)).digest()
