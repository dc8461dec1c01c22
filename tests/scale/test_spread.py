"""Sums that others add: what clients, workers and storages do to them, and who is named for it."""

from __future__ import annotations

import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.contract.pieces import LocalSum, piece_digest
from secagg.errors import InvalidParameters, PeerError, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.scale.jobs import Disagreement, Exhausted
from secagg.scale.run import ToyCut, main
from secagg.scale.spread import SpreadSettings
from secagg.scale.store import FolderStore, FsspecStore, Store, WrongPiece, open_store, piece_name, read_piece
from secagg.scale.telling import sentence, tell
from secagg.scale.work import Harm, Kind, Order, Outcome, Wrong, perform
from secagg.scale.workers import InProcess
from secagg.session.metrics import Metrics
from tests.harness.spread_sums import CUT, NO_KEY, Crowd, Unruly, digests_of, exact, vector_of

# --- Sums -------------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(count=st.integers(1, 40), batch=st.integers(1, 9), pieces=st.integers(1, 4), workers=st.integers(1, 3))
def test_however_a_sum_is_divided_it_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, count: int, batch: int, pieces: int, workers: int
) -> None:
    divided = {"clients_in_a_batch": batch, "pieces_in_a_range": pieces}
    crowd = Crowd(tmp_path_factory.mktemp("sum"), Unruly(workers), count, settings=divided)
    crowd.upload()
    exact(crowd)


def test_more_partial_sums_than_are_merged_at_once_make_a_tree(tmp_path: Path) -> None:
    workers = Unruly()
    crowd = Crowd(tmp_path, workers, 40, settings={"clients_in_a_batch": 1})
    crowd.upload()
    exact(crowd)
    merges = [order for order in workers.orders if order.kind is Kind.MERGE]
    assert len(merges) == 3 * (3 + 1)
    assert max(len(order.parts) for order in merges) == 16


def test_one_process_takes_the_same_uploads() -> None:
    total = LocalSum(CUT)
    for client in (ClientId(1), ClientId(2)):
        vector = vector_of(client.value)
        total.add(client, (), total.keep(client, digests_of(client, vector), vector))
    summed = np.concatenate([piece[0] for piece in total.open(NO_KEY)])
    assert summed.tolist() == [(3 << 20) + 2 * at for at in range(12)]
    with pytest.raises(PeerError, match="without its vector, and this server has no storage"):
        total.keep(ClientId(3), (), b"")
    total.end()
    assert not np.concatenate([piece[0] for piece in total.open(NO_KEY)]).any()


def test_uploads_wait_while_too_much_waits_to_be_added(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, Unruly(1), 60, settings={"clients_in_a_batch": 1})
    longest = list[int]()
    crowd.upload(lambda _: longest.append(crowd.total.figures.jobs_left))
    assert max(longest) <= 4 + 3


def test_nothing_stays_in_the_storage_after_the_end(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, InProcess())
    crowd.upload()
    exact(crowd)
    crowd.total.end()
    crowd.total.end()
    assert list(tmp_path.iterdir()) == []


def test_pieces_stay_where_that_is_asked_for(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, InProcess(), settings={"keeps_pieces": True})
    crowd.upload()
    exact(crowd)
    crowd.total.end()
    assert [path.name for path in tmp_path.glob("*/*")] == ["pieces"]


# --- Clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [0, 1, 2])
@pytest.mark.parametrize("pieces_in_a_range", [1, 2, 3])
@pytest.mark.parametrize("harm", ["missing", "another", "longer", "of another client", "of another place"])
def test_a_client_whose_piece_is_wrong_in_one_range_is_in_none(
    tmp_path: Path, piece: int, pieces_in_a_range: int, harm: str
) -> None:
    crowd, bad = Crowd(tmp_path, Unruly(), settings={"pieces_in_a_range": pieces_in_a_range}), ClientId(4)

    def spoil(client: ClientId) -> None:
        name = crowd.name_of(bad, piece)
        if client == bad:
            match harm:
                case "missing":
                    (tmp_path / name).unlink()
                case "another":
                    crowd.store.put(name, bytes(32))
                case "longer":
                    crowd.store.put(name, crowd.store.get(name, 99) + bytes(8))
                case "of another client":
                    crowd.store.put(name, crowd.store.get(crowd.name_of(ClientId(1), piece), 99))
                case _:
                    crowd.store.put(name, crowd.store.get(crowd.name_of(bad, (piece + 1) % 3), 99))

    crowd.upload(spoil)
    found, total = crowd.finish()
    assert list(found) == [bad]
    assert found[bad].culprits == {bad, ServerId()}
    assert found[bad].reason is Reason.COMMITMENT_MISMATCH
    assert total.tolist() == crowd.due([bad]).tolist()


def test_two_clients_of_one_batch_that_are_wrong_in_different_ranges_are_both_left_out(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, Unruly(), settings={"clients_in_a_batch": 7})
    gone = {ClientId(2): 0, ClientId(5): 2, ClientId(6): 1}
    crowd.upload(lambda c: (tmp_path / crowd.name_of(c, gone[c])).unlink() if c in gone else None)
    exact(crowd, sorted(gone))


def test_a_batch_of_wrong_clients_alone_leaves_nothing_behind(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, InProcess(), 4)
    crowd.upload(lambda c: (tmp_path / crowd.name_of(c, 1)).unlink() if c.value > 2 else None)
    exact(crowd, [ClientId(3), ClientId(4)])


def test_a_client_that_names_the_pieces_of_another_is_left_out_and_takes_nobody_with_it(tmp_path: Path) -> None:
    """The digests are bound to their client, and so are the places where its pieces lie."""
    crowd, thief, victim = Crowd(tmp_path, InProcess()), ClientId(99), ClientId(2)
    crowd.upload()
    stolen = digests_of(victim, vector_of(victim.value))
    crowd.total.keep(thief, stolen, b"")
    crowd.total.add(thief, stolen, b"")
    exact(crowd, [thief])


def test_a_client_that_copies_the_pieces_of_another_cannot_use_their_digests(tmp_path: Path) -> None:
    crowd, thief, victim = Crowd(tmp_path, InProcess()), ClientId(99), ClientId(2)
    crowd.upload()
    stolen = digests_of(victim, vector_of(victim.value))
    for piece, digest in enumerate(stolen):
        crowd.store.put(piece_name(CUT.context, thief, digest), crowd.store.get(crowd.name_of(victim, piece), 99))
    crowd.total.keep(thief, stolen, b"")
    crowd.total.add(thief, stolen, b"")
    exact(crowd, [thief])


def test_one_digest_for_two_places_is_wrong_in_one(tmp_path: Path) -> None:
    crowd, bad = Crowd(tmp_path, InProcess()), ClientId(50)
    crowd.upload()
    first = piece_digest(CUT.context, bad, 0, bytes(32))
    crowd.store.put(piece_name(CUT.context, bad, first), bytes(32))
    crowd.total.keep(bad, (first,) * 3, b"")
    crowd.total.add(bad, (first,) * 3, b"")
    exact(crowd, [bad])


def test_a_digest_of_another_session_is_wrong_here(tmp_path: Path) -> None:
    crowd, client = Crowd(tmp_path, InProcess()), ClientId(50)
    other = tuple(piece_digest(b"x" * 32, client, number, bytes(32)) for number in range(3))
    for digest in other:
        crowd.store.put(piece_name(CUT.context, client, digest), bytes(32))
    crowd.upload()
    crowd.total.keep(client, other, b"")
    crowd.total.add(client, other, b"")
    exact(crowd, [client])


# --- Workers ----------------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_workers_that_are_lost_anywhere_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Some are lost before they did their job, and some after they wrote what they made."""
    left = data.draw(st.integers(1, 12))

    def conduct(_: int, order: Order) -> Outcome | None:
        nonlocal left
        fate = data.draw(st.sampled_from(["done", "lost before", "lost after"])) if left else "done"
        left -= fate != "done"
        if fate == "lost before":
            return None
        outcome = perform(order)
        return outcome if fate == "done" else None

    crowd = Crowd(tmp_path_factory.mktemp("sum"), Unruly(2, conduct))
    crowd.upload()
    exact(crowd)


def add_twice(worker: int, order: Order) -> Outcome | None:
    """Do what is ordered, but as worker 1 add the first client twice."""
    if worker == 1 and order.kind is Kind.ADD:
        return perform(replace(order, entries=order.entries + order.entries[:1]))
    return perform(order)


def test_what_a_worker_was_asked_for_an_earlier_sum_is_put_aside(tmp_path: Path) -> None:
    workers = Unruly(2)
    workers.start(1, Order(key="of that", kind=Kind.ADD, storage=str(tmp_path), cut=CUT, first=0, end=1))
    crowd = Crowd(tmp_path, workers)
    crowd.upload()
    exact(crowd)


def test_a_worker_that_lies_about_a_sum_is_found_where_its_jobs_are_audited(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, Unruly(2, add_twice), settings={"audited": 1, "clients_in_a_batch": 9})
    crowd.upload()
    with pytest.raises(Disagreement, match="worker 0 and worker 1 made different sums of the same pieces"):
        crowd.finish()


def test_a_worker_that_names_clients_which_it_was_not_given_is_not_believed(tmp_path: Path) -> None:
    def conduct(_: int, order: Order) -> Outcome:
        return replace(perform(order), wrong=(Wrong(client=ClientId(99), piece=0, harm=Harm.MALFORMED),))

    crowd = Crowd(tmp_path, Unruly(2, conduct))
    with pytest.raises(Exhausted, match="named a piece that it was not given"):
        crowd.upload()
    assert crowd.total.wrong == {}


def test_an_audit_needs_two_workers(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameters, match="start another one"):
        Crowd(tmp_path, InProcess(), settings={"audited": 1})


def test_a_worker_that_says_that_a_client_is_wrong_takes_it_out_everywhere(tmp_path: Path) -> None:
    """Whether it lies or the storage changed in between, no range holds a client that another lacks."""

    def conduct(worker: int, order: Order) -> Outcome:
        outcome = perform(order)
        if worker == 1 and order.kind is Kind.ADD and order.first == 1 and any(c == 1 for c, _ in order.entries):
            kept = tuple(entry for entry in order.entries if entry[0] != 1)
            shorter = perform(replace(order, entries=kept))
            return replace(shorter, wrong=(Wrong(client=ClientId(1), piece=1, harm=Harm.MISSING),))
        return outcome

    crowd = Crowd(tmp_path, Unruly(2, conduct), settings={"audited": 1})
    crowd.upload()
    exact(crowd, [ClientId(1)])


def test_a_result_that_the_storage_lost_or_altered_is_made_again(tmp_path: Path) -> None:
    workers = Unruly(1)
    crowd = Crowd(tmp_path, workers)
    crowd.upload()
    crowd.total.settle()
    sums = sorted((tmp_path / CUT.context.hex() / "sums").iterdir())
    for number, path in enumerate(sums):
        path.unlink() if number % 2 else path.write_bytes(b"[]\n")
    total = np.concatenate([piece[0] for piece in crowd.total.open(NO_KEY)])
    assert total.tolist() == crowd.due().tolist()


def test_a_result_whose_pieces_are_gone_as_well_ends_the_session(tmp_path: Path) -> None:
    """The list of clients is made by then, so a sum of fewer would be another sum."""
    crowd = Crowd(tmp_path, Unruly(1))
    crowd.upload()
    crowd.total.settle()
    crowd.store.remove(CUT.context.hex())
    with pytest.raises(Exhausted, match="are not in the storage any more"):
        crowd.total.open(NO_KEY)


def test_a_piece_that_is_away_while_a_lost_result_is_made_again_leaves_nobody_out(tmp_path: Path) -> None:
    """The sum holds its client, so it must not be told that it does not."""
    times = dict[Kind, int]()

    def conduct(_: int, order: Order) -> Outcome | None:
        turn = times[order.kind] = times.get(order.kind, 0) + 1
        if order.kind is Kind.MERGE and turn == 1:
            crowd.store.remove(f"{CUT.context.hex()}/sums")
        outcome = perform(order)
        if Kind.MERGE not in times or order.kind is not Kind.ADD or turn != 13:
            return outcome
        away = Wrong(client=ClientId(order.entries[0][0]), piece=order.first, harm=Harm.MISSING)
        return replace(outcome, wrong=(away,))

    crowd = Crowd(tmp_path, Unruly(1, conduct))
    crowd.upload()
    exact(crowd)
    assert crowd.total.wrong
    assert times[Kind.ADD] > 13


def test_a_storage_that_fails_blames_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(tmp_path, InProcess(), settings={"clients_in_a_batch": 9})

    def failing(_: object, name: str, most: int) -> bytes:
        raise TimeoutError(name, most)

    monkeypatch.setattr(FolderStore, "get", failing)
    crowd.upload()
    with pytest.raises(Exhausted, match="the storage failed"):
        crowd.finish()
    assert crowd.total.wrong == {}


def test_a_redone_job_that_comes_out_otherwise_is_a_disagreement_with_the_past(tmp_path: Path) -> None:
    workers = Unruly(1)
    crowd = Crowd(tmp_path, workers)
    crowd.upload()
    crowd.total.settle()
    for path in (tmp_path / CUT.context.hex() / "sums").iterdir():
        path.unlink()

    def once_more(_: int, order: Any) -> Any:
        return add_twice(1, order)

    workers.conduct = once_more
    with pytest.raises(Disagreement):
        crowd.total.open(NO_KEY)


# --- Memory, storages, figures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_worker_holds_two_ranges_and_a_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    """What is alive at once, in pieces; writing the result included."""
    words = 1 << 16
    monkeypatch.setattr("secagg.scale.run.WORDS", words)
    cut = ToyCut(lengths=(8 * words,) * pieces)
    store, vector = FolderStore(tmp_path), bytes(8 * words * pieces)
    clients = [ClientId(number) for number in range(8)]
    entries = list[tuple[int, tuple[bytes, ...]]]()
    for client in clients:
        digests = tuple(piece_digest(cut.context, client, n, bytes(8 * words)) for n in range(pieces))
        for digest in digests:
            store.put(piece_name(cut.context, client, digest), bytes(8 * words))
        entries.append((client.value, digests))
    del vector
    common = {"storage": str(tmp_path), "cut": cut, "first": 0, "end": pieces}
    peaks = list[float]()
    parts = tuple(
        perform(Order(key="", kind=Kind.ADD, entries=tuple(entries[:count]), **common)).digest  # type: ignore[arg-type]
        for count in (3, 4, 5)
    )
    for order in (
        Order(key="", kind=Kind.ADD, entries=tuple(entries), **common),  # type: ignore[arg-type]
        Order(key="", kind=Kind.MERGE, parts=parts, **common),  # type: ignore[arg-type]
    ):
        tracemalloc.start()
        assert perform(order).digest
        peaks.append(tracemalloc.get_traced_memory()[1] / (8 * words))
        tracemalloc.stop()
    assert max(peaks) < 2 * pieces + 1


@pytest.fixture(params=["folder", "file://", "memory://"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    kind: str = request.param
    return open_store({"folder": str(tmp_path), "file://": f"file://{tmp_path}"}.get(kind, f"{kind}{tmp_path.name}"))


def test_storages_keep_what_they_are_given(store: Store) -> None:
    store.put("a/b/c", b"one")
    store.put("a/b/c", b"two")
    store.put("a/d", b"three")
    assert (store.get("a/b/c", 3), store.get("a/d", 5), store.get("a/d", 2)) == (b"two", b"three", b"thr")
    store.remove("a/b")
    store.remove("nothing")
    with pytest.raises(FileNotFoundError):
        store.get("a/b/c", 3)
    with pytest.raises(WrongPiece, match="is not there"):
        read_piece(store, CUT, ClientId(1), 2, bytes(32))
    assert store.get("a/d", 5) == b"three"


def test_another_storage_needs_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(InvalidParameters, match=r"secagg\[storage\]"):
        FsspecStore("s3://bucket/folder")


def test_figures_are_told_to_people_and_to_prometheus(tmp_path: Path) -> None:
    told = list[tuple[int, int]]()
    crowd, metrics = Crowd(tmp_path, Unruly(2), progress=lambda figures: told.append(figures.jobs)), Metrics()
    tell(metrics, crowd.total.figures)
    assert "secagg_seconds_left -1" in metrics.text()
    crowd.upload()
    exact(crowd)
    tell(metrics, crowd.total.figures)
    assert "secagg_jobs_done 18" in metrics.text()
    assert told[-1] == (18, 18)
    assert f"secagg_bytes_read {crowd.total.figures.bytes_read}" in metrics.text()
    assert sentence(crowd.total.figures).startswith("18 of 18 jobs, 0.00 GB read, about 0 s left; 0 stragglers")


@pytest.mark.parametrize(
    "wrong", [{"clients_in_a_batch": 0}, {"pieces_in_a_range": 0}, {"audited": -1}, {"audited": 1 << 16}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidParameters):
        SpreadSettings(storage="", **wrong)  # type: ignore[arg-type]


def test_the_page_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert capsys.readouterr().out.splitlines() == [
        "client/4 is not in the sum: piece 1 in the storage is not the one that was signed",
        f"the sum of the others: {[11] * 12}",
    ]
