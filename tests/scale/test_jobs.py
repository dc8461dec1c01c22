"""The state machine of jobs: whatever workers do, a result counts once, and nothing is left undone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import InvalidParameters, Misuse
from secagg.scale.jobs import ATTEMPTS, LOSSES, TRANSITIONS, Disagreement, Event, Exhausted, Jobs, State


def one(*, patience: float = 3.0, wanted: int = 1) -> Jobs:
    jobs = Jobs(patience=patience)
    jobs.add("a", wanted=wanted)
    return jobs


def test_a_job_waits_runs_and_is_done() -> None:
    jobs = one()
    assert (jobs["a"].state, jobs.waiting, jobs.left) == (State.WAITING, 1, 1)
    assert jobs.next(1, 0.0) == "a"
    assert (jobs["a"].state, jobs.waiting, jobs.left) == (State.RUNNING, 0, 1)
    assert jobs.finish("a", 1, b"r", 1.0)
    assert (jobs["a"].state, jobs["a"].result, jobs.left, jobs.done) == (State.DONE, b"r", 0, 1)
    assert jobs.next(1, 2.0) is None


def test_the_same_job_is_added_once_and_one_of_an_earlier_life_is_done() -> None:
    jobs = one()
    jobs.next(1, 0.0)
    jobs.add("a")
    assert jobs["a"].state is State.RUNNING
    jobs.add("b", result=b"r")
    assert (jobs["b"].state, jobs["b"].result) == (State.DONE, b"r")


def test_a_job_waits_for_what_it_needs() -> None:
    jobs = Jobs()
    jobs.add("a")
    jobs.add("merge", ("a",))
    assert [jobs.next(1, 0.0), jobs.next(2, 0.0)] == ["a", None]
    jobs.finish("a", 1, b"r", 1.0)
    assert jobs.next(2, 1.0) == "merge"


def test_a_straggler_is_helped_and_counted_once() -> None:
    jobs = one(patience=3)
    jobs.add("b")
    jobs.next(1, 0.0)
    jobs.next(2, 0.0)
    jobs.finish("b", 2, b"b", 2.0)
    assert jobs.next(2, 5.9) is None
    assert jobs.next(2, 6.1) == "a"
    assert jobs.next(3, 99.0) is None  # two are enough
    assert jobs.repeated == 1
    assert jobs.finish("a", 2, b"a", 7.0)
    assert not jobs.finish("a", 1, b"a", 8.0)
    assert jobs.done == 2


def test_a_straggler_that_says_something_else_is_noticed_though_its_job_is_done() -> None:
    jobs = one()
    jobs.add("b")
    jobs.next(1, 0.0)
    jobs.next(2, 0.0)
    jobs.finish("b", 2, b"b", 0.1)
    jobs.next(2, 99.0)
    jobs.finish("a", 2, b"a", 99.1)
    with pytest.raises(Disagreement, match="worker 1 and worker 2 made different sums"):
        jobs.finish("a", 1, b"forged", 99.2)


def test_an_audited_job_takes_two_workers_who_agree() -> None:
    jobs = one(wanted=2)
    assert [jobs.next(1, 0.0), jobs.next(2, 0.0), jobs.next(3, 0.0)] == ["a", "a", None]
    assert not jobs.finish("a", 1, b"r", 1.0)
    assert jobs["a"].state is State.RUNNING
    assert jobs.finish("a", 2, b"r", 1.0)


def test_a_worker_does_not_audit_itself() -> None:
    jobs = one(wanted=2)
    jobs.next(1, 0.0)
    assert not jobs.finish("a", 1, b"r", 1.0)
    assert (jobs.next(1, 2.0), jobs["a"].state) == (None, State.WAITING)
    assert jobs.next(2, 2.0) == "a"
    with pytest.raises(Disagreement):
        jobs.finish("a", 2, b"other", 3.0)


def test_a_lost_worker_loses_the_job_that_it_was_at_alone() -> None:
    jobs = one()
    jobs.add("b")
    jobs.next(1, 0.0)
    jobs.finish("a", 1, b"r", 1.0)
    jobs.next(1, 1.0)
    jobs.lose(1)
    assert (jobs["a"].state, jobs["b"].state, jobs.again) == (State.DONE, State.WAITING, 1)
    assert jobs.next(2, 2.0) == "b"


def test_a_job_goes_on_when_one_of_two_workers_is_lost() -> None:
    jobs = one(wanted=2)
    jobs.next(1, 0.0)
    jobs.next(2, 0.0)
    jobs.lose(1)
    assert jobs["a"].state is State.RUNNING
    assert jobs.next(3, 0.0) == "a"


def test_a_job_that_ends_every_worker_is_given_up() -> None:
    jobs = one()
    for worker in range(LOSSES - 1):
        jobs.next(worker, 0.0)
        jobs.lose(worker)
    jobs.next(99, 0.0)
    with pytest.raises(Exhausted, match=f"{LOSSES} workers were lost"):
        jobs.lose(99)


def test_a_job_that_fails_is_tried_again_and_not_for_ever() -> None:
    jobs = one()
    for _ in range(ATTEMPTS - 1):
        jobs.next(1, 0.0)
        jobs.fail("a", 1, "the storage failed")
        assert jobs["a"].state is State.WAITING
    jobs.next(1, 0.0)
    with pytest.raises(Exhausted, match="the storage failed"):
        jobs.fail("a", 1, "the storage failed")


def test_who_failed_a_job_is_asked_last_and_not_for_that_job() -> None:
    jobs = one()
    jobs.workers = {1, 2}
    jobs.next(1, 0.0)
    jobs.fail("a", 1, "its disk is full")
    assert jobs.line([1, 2]) == [2, 1]
    assert (jobs.next(1, 99.0), jobs["a"].state) == (None, State.WAITING)
    jobs.add("b")
    assert [jobs.next(1, 99.0), jobs.next(2, 99.0)] == ["b", "a"]


def test_who_failed_a_job_helps_nobody_with_it() -> None:
    jobs = one()
    jobs.workers = {1, 2}
    jobs.add("b")
    jobs.next(1, 0.0)
    jobs.fail("a", 1, "its disk is full")
    jobs.next(1, 0.0)
    jobs.finish("b", 1, b"b", 0.1)
    assert jobs.next(2, 0.1) == "a"
    assert jobs.next(1, 99.0) is None


def test_when_everybody_has_failed_a_job_all_may_try_again_until_it_failed_often() -> None:
    jobs = one()
    jobs.workers = {1, 2, 3}
    for turn in (1, 2):
        for worker in (1, 2, 3):
            assert jobs.next(worker, 0.0) == "a"
            if (turn, worker) == (2, 3):
                with pytest.raises(Exhausted, match="failed 6 times, and last because the storage failed"):
                    jobs.fail("a", worker, "the storage failed")
            else:
                jobs.fail("a", worker, "the storage failed")


def test_who_failed_an_audited_job_tries_again_where_no_other_is_left() -> None:
    jobs = one(wanted=2)
    jobs.workers = {1, 2}
    assert [jobs.next(1, 0.0), jobs.next(2, 0.0)] == ["a", "a"]
    jobs.fail("a", 1, "its disk is full")
    assert jobs.next(1, 0.0) is None
    jobs.finish("a", 2, b"r", 1.0)
    assert jobs.next(1, 1.0) == "a"
    assert jobs.finish("a", 1, b"r", 2.0)


@given(data=st.data(), workers=st.integers(2, 4), count=st.integers(1, 6))
def test_one_bad_worker_ends_nothing(data: st.DataObject, workers: int, count: int) -> None:
    """It fails at once whatever it is given, and as often as it is asked; the others take their time."""
    jobs, idle, working = Jobs(), set(range(workers)), dict[int, str]()
    jobs.workers = frozenset(idle)
    for number in range(count):
        jobs.add(f"{number}")
    while jobs.left:
        for worker in jobs.line(data.draw(st.permutations(sorted(idle)))):
            if (key := jobs.next(worker, 0.0)) is not None:
                idle.discard(worker)
                working[worker] = key
        worker = 0 if 0 in working else data.draw(st.sampled_from(sorted(working)))
        key = working.pop(worker)
        idle.add(worker)
        if worker:
            jobs.finish(key, worker, b"r", 0.0)
        else:
            jobs.fail(key, worker, "it is bad")
        assert jobs.again <= count


def test_what_is_missing_is_made_again_and_nothing_else() -> None:
    jobs = Jobs()
    for key in "ab":
        jobs.add(key)
        jobs.next(1, 0.0)
        jobs.finish(key, 1, key.encode(), 0.0)
    jobs.add("merge", ("a", "b"))
    jobs.next(1, 0.0)
    jobs.fail("merge", 1, "lost", missing=(b"b",))
    assert (jobs["a"].state, jobs["b"].state, jobs["merge"].state) == (State.DONE, State.WAITING, State.WAITING)
    assert jobs.next(1, 0.0) == "b"
    assert jobs.finish("b", 1, b"b", 0.0)
    assert jobs.next(1, 0.0) == "merge"


@pytest.mark.parametrize("patience", [0.5, float("nan")])
def test_a_patience_out_of_range_is_refused(patience: float) -> None:
    with pytest.raises(InvalidParameters):
        one(patience=patience)


@pytest.mark.parametrize(
    ("state", "event"), [(state, event) for state in State for event in Event if event not in TRANSITIONS[state]]
)
def test_nothing_happens_that_the_table_does_not_have(state: State, event: Event) -> None:
    jobs = one()
    jobs["a"].state = state
    with pytest.raises(Misuse):
        jobs._move("a", event)  # noqa: SLF001 -- the one place that the table guards  # pyright: ignore[reportPrivateUsage]


@given(data=st.data(), count=st.integers(1, 6), audited=st.integers(0, 2))
def test_whatever_happens_every_job_is_done_once(data: st.DataObject, count: int, audited: int) -> None:
    """Workers are slow, fail and are lost in any order; the second half of the jobs needs the first."""
    jobs, counted, now, fresh = Jobs(), list[str](), 0.0, 3
    for number in range(count):
        needs = (f"{number // 2}",) if number >= count // 2 + 1 else ()
        jobs.add(f"{number}", needs, wanted=2 if audited and number % audited == 0 else 1)
    working, troubles = dict[int, str | None]({0: None, 1: None, 2: None}), 3
    while jobs.left:
        now += data.draw(st.floats(0, 9))
        jobs.workers = frozenset(working)
        for worker in jobs.line(worker for worker, key in working.items() if key is None):
            working[worker] = jobs.next(worker, now)
        busy = [worker for worker, key in working.items() if key is not None]
        worker = data.draw(st.sampled_from(busy))
        key = working[worker]
        assert key is not None
        happening = data.draw(st.sampled_from(["done", "done", "lost", "failed"])) if troubles else "done"
        troubles -= happening != "done"
        if happening == "lost":
            jobs.lose(worker)
            del working[worker]
            working[fresh], fresh = None, fresh + 1
            continue
        working[worker] = None
        if happening == "failed":
            jobs.fail(key, worker, "the storage failed")
        elif jobs.finish(key, worker, key.encode(), now):
            counted.append(key)
    assert sorted(counted) == sorted(f"{number}" for number in range(count))
    assert all(jobs[key].result == key.encode() for key in counted)
