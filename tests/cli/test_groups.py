"""Groups of clients with a server each: membership, saved sums, and their addition."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.cli import main
from secagg.cli.groups import GroupSum, group_of, read_sum, write_sum
from secagg.cli.shared import plan_of
from secagg.contract.decoder import ideal_aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.session.identities import load_roster, make_identities
from secagg.session.roles import Released
from secagg.transport.description import SessionDescription
from secagg.transport.keeping import ServerRecord

VALUES, CLIP, BITS = 3, 1.0, 8


def description_of(clients: int, *, round_number: int = 7, **others: float) -> SessionDescription:
    """Return the description of the first of three groups with nine clients in all, with changes."""
    numbers = {"clients": clients, "all_clients": 9, "group": 1, "groups": 3}
    planned = {"values": VALUES, "clip": CLIP, "bits": BITS}
    return SessionDescription(
        session=bytes(16).hex(),
        protocol="pairwise",
        task="sum",
        round_number=round_number,
        answer_bytes=1 << 20,
        terms=numbers | planned | others,
    )


def released_of(description: SessionDescription, *clients: int, steps: int = 1) -> Released:
    """Return the sum of updates with these numbers of steps."""
    plan, members = plan_of(description.protocol, description.terms), frozenset(map(ClientId, clients))
    update = np.full(VALUES, steps * plan.step)
    payloads = [plan.encode(update, SystemCoins()) for _ in clients]
    return Released(
        aggregate=ideal_aggregate(plan.codec.layout, payloads),
        counted=members,
        left_out={},
        revealed=frozenset({members}),
        unbounded=(0,),
    )


def kept(path: Path, description: SessionDescription, *clients: int, steps: int = 1) -> str:
    write_sum(path, description, released_of(description, *clients, steps=steps))
    return str(path)


def sealed(found: GroupSum) -> bytes:
    """Write data that ``write_sum`` would not write, with a correct digest."""
    encoded = found.encode()
    return encoded + hashlib.sha256(bind(Label.GROUP_SUM, encoded)).digest()


def refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path, *sums: str) -> str:
    """Add incompatible sums, and return the error; nothing is written."""
    out = tmp_path / "mean.npy"
    assert main(["add", *sums, "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert not out.exists()
    return said.err


@given(data=st.data(), clients=st.sets(st.integers(0, 1 << 40), min_size=3, max_size=9), steps=st.integers(-127, 127))
def test_a_sum_is_read_as_it_was_released(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, clients: set[int], steps: int
) -> None:
    path, description = (
        tmp_path_factory.mktemp("sums") / "a.sum",
        description_of(len(clients), groups=data.draw(st.integers(1, 9))),
    )
    released = released_of(description, *clients, steps=steps)
    write_sum(path, description, released)
    assert path.stat().st_mode & 0o077 == 0
    read, found = read_sum(path)
    assert read == description
    assert GroupSum.decode(found.encode()) == found
    again = found.released(released.aggregate.layout)
    assert again.counted == released.counted
    assert again.revealed == released.revealed
    assert again.unbounded == released.unbounded
    assert again.aggregate.encode() == released.aggregate.encode()
    assert "aggregate" not in repr(found)


def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    path = tmp_path / "a.sum"
    kept(path, description_of(3), 1, 2, 3)
    whole = path.read_bytes()
    wrong = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole))]
    for data in (*wrong, whole[:-1], whole + b"\0", b"", whole[:40]):
        path.write_bytes(data)
        with pytest.raises(InvalidParameters, match=r"a\.sum is not a group's sum, or is damaged"):
            read_sum(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sum"
    record = ServerRecord(b"{}", 0, b"").encode()
    np.save(tmp_path / "a.npy", np.zeros(3))
    for data in (record, (tmp_path / "a.npy").read_bytes()):
        path.write_bytes(data)
        with pytest.raises(InvalidParameters, match="is not a group's sum, or is damaged"):
            read_sum(path)
        path.write_bytes(data + hashlib.sha256(bind(Label.GROUP_SUM, data)).digest())
        with pytest.raises(InvalidParameters, match=r"is not a group's sum \("):
            read_sum(path)


@pytest.mark.parametrize("counted", [(1, 2), (1, 2, 2), (1, 2, 3, 3), (1, 2, 3, 4)])
def test_a_sum_that_names_other_clients_than_it_counts_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, counted: tuple[int, ...]
) -> None:
    """A client that it does not name could also be in another sum."""
    path = tmp_path / "a.sum"
    kept(path, description_of(3), 1, 2, 3)
    _, found = read_sum(path)
    path.write_bytes(
        sealed(
            GroupSum(found.description, found.aggregate, tuple(map(ClientId, counted)), found.revealed, found.unbounded)
        )
    )
    assert "listed clients differ from the counted" in refusal(capsys, tmp_path, str(path))


@pytest.mark.parametrize("revealed", [(), ((),), ((1, 2, 3), ()), ((1, 2),), ((4, 5, 6),)])
def test_a_sum_that_does_not_say_what_was_revealed_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, revealed: tuple[tuple[int, ...], ...]
) -> None:
    """The output of `secagg add` about it would be wrong or missing."""
    path = tmp_path / "a.sum"
    kept(path, description_of(3), 1, 2, 3)
    _, found = read_sum(path)
    sets = tuple(tuple(map(ClientId, each)) for each in revealed)
    path.write_bytes(sealed(GroupSum(found.description, found.aggregate, found.counted, sets, found.unbounded)))
    assert "is in no revealed sum" in refusal(capsys, tmp_path, str(path))


@pytest.mark.parametrize(
    "others", [{"group": 0}, {"group": 4}, {"group": "2"}, {"group": True}, {"group": None}, {"clients": 2.0}], ids=str
)
@pytest.mark.parametrize("is_first", [False, True], ids=["second", "first"])
def test_a_sum_of_no_group_is_refused(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    others: dict[str, object],
    is_first: bool,  # noqa: FBT001 -- a case
) -> None:
    description = description_of(3, group=2)
    strange = replace(
        description, terms={name: value for name, value in {**description.terms, **others}.items() if value is not None}
    )
    write_sum(tmp_path / "b.sum", strange, released_of(description, 4, 5, 6))
    sums = [kept(tmp_path / "a.sum", description_of(3), 1, 2, 3), str(tmp_path / "b.sum")]
    said = refusal(capsys, tmp_path, *(reversed(sums) if is_first else sums))
    assert "a sum's terms must be" in said or (not is_first and "differ in" in said)


def test_a_sum_of_another_layout_than_its_description_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.sum"
    write_sum(path, description_of(3), released_of(description_of(3, clip=2.0), 1, 2, 3))
    assert "has a different layout" in refusal(capsys, tmp_path, str(path))


def test_the_mean_is_that_of_all_groups_and_what_is_known_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sums = [
        kept(tmp_path / f"{group}.sum", description_of(len(clients), group=group), *clients, steps=steps)
        for group, clients, steps in ((1, (1, 2, 3, 4), 127), (3, (5, 6, 7), -120))
    ]
    assert main(["add", *sums, "--out", str(tmp_path / "mean.npy")]) == 0
    due = (4 * 127 - 3 * 120) / 7 / 127
    assert np.load(tmp_path / "mean.npy") == pytest.approx([due] * VALUES)
    said = capsys.readouterr().out
    assert "the mean of 7 of 9 clients' updates" in said
    assert "not in it: the clients of group 2 of 3" in said
    assert "revealed: 2 sums, over 3 to 4 clients each, not only the sum of all 7" in said
    assert "the sums have no noise" in said


def test_of_one_group_the_sum_is_all_that_is_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """For an impossible number of groups, no list is allocated."""
    description = description_of(3, group=2, groups=1 << 40, all_clients=1 << 42)
    assert main(["add", kept(tmp_path / "a.sum", description, 1, 2, 3), "--out", str(tmp_path / "mean")]) == 0
    said = capsys.readouterr().out
    assert (tmp_path / "mean").exists()  # numpy would append an ending
    assert "revealed: only the sum of all 3" in said
    assert "not in it: the clients of group 1, 3, 4, 5, 6," in said
    assert "21 and 1,099,511,627,755 more of 1,099,511,627,776" in said


def test_rings_have_room_for_the_sums_of_all_groups(tmp_path: Path) -> None:
    """Every value is at its clip: a ring planned for a group of three would wrap at the fifth client."""
    numbers = [range(first, first + 3) for first in range(0, 9, 3)]
    sums = [
        kept(tmp_path / f"{group}.sum", description_of(3, group=group), *clients, steps=-127)
        for group, clients in enumerate(numbers, 1)
    ]
    assert main(["add", *sums, "--out", str(tmp_path / "mean.npy")]) == 0
    assert np.load(tmp_path / "mean.npy") == pytest.approx([-CLIP] * VALUES)


def test_an_output_is_never_an_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first, second = (
        kept(tmp_path / f"{group}.sum", description_of(3, group=group, groups=2), *range(3 * group, 3 * group + 3))
        for group in (1, 2)
    )
    before = Path(first).read_bytes()
    link = tmp_path / "link"
    link.symlink_to(first)
    for out in (first, str(link)):
        assert main(["add", first, second, "--out", out]) != 0
        assert "use another file" in " ".join(capsys.readouterr().err.split())
    assert Path(first).read_bytes() == before


def test_a_group_counts_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one, again = (
        kept(tmp_path / "a.sum", description_of(3), 1, 2, 3),
        kept(tmp_path / "b.sum", description_of(3), 4, 5, 6),
    )
    assert "both sums of group 1; leave one out" in refusal(capsys, tmp_path, one, again)
    assert "a.sum are both sums of group 1; leave one out" in refusal(capsys, tmp_path, one, one)


@pytest.mark.parametrize(
    ("other", "differing"),
    [
        (description_of(3, group=2, round_number=8), "differ in round;"),
        (description_of(3, group=2, clip=2.0), "differ in clip;"),
        (replace(description_of(3, group=2), task="another"), "differ in task;"),
        (replace(description_of(3, group=2), protocol="enclave"), "differ in protocol;"),
        (description_of(3, group=2, groups=2, all_clients=6), "differ in all_clients, groups;"),
        (description_of(3, group=2.0), "differ in group;"),
    ],
)
def test_sums_of_other_rounds_and_plans_are_not_added(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, other: SessionDescription, differing: str
) -> None:
    sums = [kept(tmp_path / "a.sum", description_of(3), 1, 2, 3), str(tmp_path / "b.sum")]
    write_sum(tmp_path / "b.sum", other, released_of(description_of(3), 4, 5, 6))
    assert differing in refusal(capsys, tmp_path, *sums)


def options_of(group: str | None, *, clients: int | None = 10, round_number: int | None = 7) -> Namespace:
    return Namespace(group=group, clients=clients, round=round_number, values=VALUES, clip=CLIP, bits=BITS)


@given(clients=st.integers(3, 60), data=st.data())
def test_every_client_is_in_one_group(clients: int, data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, clients // 3))
    made = [group_of(options_of(f"{group + 1}/{groups}", clients=clients), None) for group in range(groups)]
    assert sorted(client.value for invited, _, _ in made for client in invited) == list(range(clients))
    for group, (invited, roster, terms) in enumerate(made, 1):
        assert roster is None
        assert terms["clients"] == len(invited)
        assert (terms["all_clients"], terms["group"], terms["groups"]) == (clients, group, groups)
    assert len({plan_of("pairwise", terms).codec.layout for _, _, terms in made}) == 1


def test_a_group_has_its_part_of_the_roster(tmp_path: Path) -> None:
    make_identities(tmp_path, map(ClientId, range(7)), SystemCoins())
    whole = load_roster(tmp_path / "roster.txt")
    parts = [group_of(options_of(group, clients=None), whole) for group in ("1/2", "2/2")]
    for invited, roster, _ in parts:
        assert roster is not None
        assert roster.authority == whole.authority
        assert roster.clients == invited
    assert parts[0][0] | parts[1][0] == whole.clients
    assert not parts[0][0] & parts[1][0]


@pytest.mark.parametrize("group", ["", "1", "0/2", "3/2", "1/0", "a/b", "1/2/3", "-1/2"])
def test_what_is_no_group_is_refused(group: str) -> None:
    with pytest.raises(InvalidParameters, match="--group must be K/N"):
        group_of(options_of(group), None)


def test_groups_are_of_one_round_and_no_smaller_than_a_cohort() -> None:
    with pytest.raises(InvalidParameters, match="--group requires --round"):
        group_of(options_of("1/2", round_number=None), None)
    with pytest.raises(InvalidParameters, match=r"10 clients need 1 to 5 groups"):
        group_of(options_of("1/6"), None)


def test_a_client_is_told_of_no_fewer_clients_than_its_group_has() -> None:
    terms = {**description_of(3).terms, "all_clients": 2}
    with pytest.raises(InvalidParameters, match="of a group; got 2"):
        plan_of("pairwise", terms)
