"""What the operator of a standing server 1 insists on, and that no round is begun twice, whoever is started again."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from secagg.choices import SharingMode
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.parameters import Suite
from secagg.protocols.two_servers import standing_server
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.standing_server import StandingRounds, lanes_of
from tests.harness.indexing_rounds import NOW, IndexingSetup

SETUP = IndexingSetup(minimum_cohort=5, maximum_cohort=20, task=b"flower run 7")
OFFERED = SETUP.configuration
MET = SETUP.standing_policy(task_prefix=b"flower run ")
POLICY = replace(MET, weakest=replace(MET.weakest, suites=frozenset({Suite.CLASSIC})))
OTHER_KEY = bytes(range(32))


def changed(**changes: Any) -> IndexingConfiguration:
    return replace(OFFERED, **changes)


def test_what_just_meets_the_policy_is_accepted() -> None:
    POLICY.admit(OFFERED, NOW)


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        (changed(task=b"another run 7"), "the task b'another run 7' does not begin with b'flower run '"),
        (
            changed(authority=OTHER_KEY),
            "the clients' authority is not the pinned one; if the authority has rotated its key",
        ),
        (changed(server_keys=(OTHER_KEY, OFFERED.server_keys[1])), "the two servers' keys are not the pinned ones"),
        (changed(server_keys=(OFFERED.server_keys[0], OTHER_KEY)), "the two servers' keys are not the pinned ones"),
        (changed(suite=Suite.HYBRID), "suite mlkem768x25519-aes256 is not accepted"),
        (changed(mode=SharingMode.UNCHECKED_POINT_FUNCTIONS), "mode UNCHECKED_POINT_FUNCTIONS is not accepted"),
        (changed(minimum_cohort=4), "a cohort of 4 is below 5"),
        (changed(maximum_cohort=21), "a cohort of 21 is above 20"),
        (changed(layout=Layout((RingSegment(20, 6), IndexSegment(200, 5)))), "counters and ring elements exceed"),
        (changed(expiry=int(NOW.timestamp())), "it has expired"),
        (changed(expiry=int(NOW.timestamp()) + 86401), "it expires more than 1 day, 0:00:00 from now"),
    ],
)
def test_a_configuration_beyond_the_policy_is_refused_with_what_is_wrong(
    offered: IndexingConfiguration, said: str
) -> None:
    with pytest.raises(InvalidParameters) as refused:
        POLICY.admit(offered, NOW)
    assert said in str(refused.value)
    assert "server 1" in str(refused.value)
    assert refused.value.reason is Reason.BELOW_FLOOR


def test_an_index_segment_counts_with_all_its_counters() -> None:
    assert lanes_of(changed(layout=Layout((RingSegment(20, 6), IndexSegment(8, 5))))) == 46


# --- Each round once --------------------------------------------------------------------------------------------------

TASK, OTHER = b"flower run 7", b"flower run 8"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def begun(path: Path, *numbers: int, task: bytes = TASK) -> None:
    """Begin rounds in a process of their own."""
    with closing(StandingRounds(path)) as rounds:
        for number in numbers:
            rounds.begin(task, number)


def is_refused(rounds: StandingRounds, number: int, said: str = "was already started", *, task: bytes = TASK) -> None:
    with pytest.raises(InvalidParameters, match=said):
        rounds.begin(task, number)


@pytest.mark.parametrize("number", [3, 2, 1, 0])
def test_rounds_of_a_task_go_up(number: int, path: Path) -> None:
    for rounds in (StandingRounds(), StandingRounds(path)):
        rounds.begin(TASK, 3)
        with pytest.raises(InvalidParameters, match="offer a round above 3") as refused:
            rounds.begin(TASK, number)
        assert refused.value.reason is Reason.ALREADY_ANSWERED
        rounds.begin(TASK, 4)
        rounds.begin(OTHER, 1)
        rounds.close()


def test_a_server_that_is_started_again_knows_which_rounds_it_began(path: Path) -> None:
    begun(path, 3, 5)
    begun(path, 1, task=OTHER)
    with closing(StandingRounds(path)) as rounds:
        assert (rounds.count, rounds.tasks) == (3, 2)
        for number in range(6):
            is_refused(rounds, number, "the updates uploaded for it are spent: offer a round above 5")
        is_refused(rounds, 1, task=OTHER)
        rounds.begin(TASK, 6)


@pytest.mark.parametrize("number", [(1 << 32) + 4, (1 << 63), (1 << 64) - 1])
def test_no_round_number_ends_a_task(number: int) -> None:
    """After round 2^64 - 1 there would be no later one."""
    rounds = StandingRounds()
    rounds.begin(TASK, 3)
    is_refused(rounds, number, "number rounds consecutively")
    rounds.begin(TASK, (1 << 32) + 3)


def test_tasks_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_server, "MAXIMUM_TASKS", 1)
    rounds = StandingRounds()
    rounds.begin(TASK, 0)
    rounds.begin(TASK, 1)
    is_refused(rounds, 1, "this journal already has 1 tasks", task=OTHER)


def test_a_round_that_cannot_be_written_down_is_not_begun(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be begun when there is room."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    begun(path, 2)
    with closing(StandingRounds(path)) as rounds:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            is_refused(rounds, 3, r"cannot record the start of round 3 \(.*No space left on device\); ask its operator")
        assert rounds.count == 1
        rounds.begin(TASK, 3)
        is_refused(rounds, 3)


def test_a_journal_that_was_put_back_or_changed_is_refused(path: Path, tmp_path: Path) -> None:
    begun(path, 3)
    shutil.copytree(path, tmp_path / "copy")
    begun(path, 4)
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    with pytest.raises(InvalidParameters, match="may lack later uploads"):
        StandingRounds(path)
    (path / "state.db").write_bytes(b"something else" * 100)
    with pytest.raises(InvalidParameters, match="is damaged"):
        StandingRounds(path)


def test_two_processes_begin_no_round_twice(path: Path) -> None:
    with closing(StandingRounds(path)) as rounds:
        rounds.begin(TASK, 3)
        other = "import sys, pathlib; from secagg.protocols.two_servers import StandingRounds\n"
        other += f"StandingRounds(pathlib.Path(sys.argv[1])).begin({TASK!r}, 4)"
        subprocess.run([sys.executable, "-c", other, str(path)], check=True)  # noqa: S603
        is_refused(rounds, 4)
        rounds.begin(TASK, 5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_fork_begins_no_round(path: Path) -> None:
    with closing(StandingRounds(path)) as rounds:
        child = os.fork()
        if not child:
            with suppress(Misuse):
                rounds.begin(TASK, 3)
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        rounds.begin(TASK, 3)


OPEN_FILES = Path("/dev/fd")


@pytest.mark.skipif(not OPEN_FILES.is_dir(), reason="open files cannot be listed")
def test_a_journal_that_was_closed_keeps_no_file_open(path: Path) -> None:
    before = len(list(OPEN_FILES.iterdir()))
    rounds = StandingRounds(path)
    rounds.begin(TASK, 3)
    assert len(list(OPEN_FILES.iterdir())) > before
    rounds.close()
    assert len(list(OPEN_FILES.iterdir())) == before


def test_a_journal_is_a_folder(path: Path) -> None:
    path.write_bytes(b"something else")
    with pytest.raises(InvalidParameters, match="cannot open"):
        StandingRounds(path)
    assert path.read_bytes() == b"something else"


# --- Policies that protect nobody  -----------------------------------------------------------------------------------


NOBODY: dict[str, Any] = {
    "weakest": replace(POLICY.weakest, authority=None),
    "task_prefix": "flower run ",
    "maximum_cohort": 4,
    "maximum_lanes": 0,
    "maximum_lifetime": timedelta(0),
}


@pytest.mark.parametrize("name", NOBODY)
def test_policies_that_protect_nobody_are_refused(name: str) -> None:
    with pytest.raises(InvalidParameters):
        replace(POLICY, **{name: NOBODY[name]})


def test_policies_pin_two_servers() -> None:
    with pytest.raises(Misuse, match="must be a ClientPolicy"):
        replace(POLICY, weakest=OFFERED)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameters, match="pins the clients' authority and the keys of both servers"):
        replace(POLICY, weakest=replace(POLICY.weakest, server_keys=None))


def test_a_policy_whose_limit_server_1_does_not_enforce_admits_nothing() -> None:
    day = POLICY.weakest.maximum_standing_age
    stricter = replace(POLICY, weakest=replace(POLICY.weakest, maximum_standing_age=day - 1))
    with pytest.raises(InvalidParameters, match=r"requires maximum_standing_age, which the round .* cannot enforce"):
        stricter.admit(OFFERED, NOW)
