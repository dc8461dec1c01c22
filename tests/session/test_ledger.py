"""What a client has uploaded is known after a restart, whatever a server calls the round, the task or the layout."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.contract import Layout, Payload, RingSegment
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.protocols.enclave.ledger import SealLedger
from secagg.protocols.two_servers.ledger import UploadLedger
from secagg.session.ledger import Spent, SpentUpdates, values_digest
from tests.harness.session_worlds import client_ids, payload_of

A, B = (bytes([byte]) * 32 for byte in b"AB")
FIRST = Spent(b"a task", 1, bytes([1]) * 32, A)


def reopened(ledger: SpentUpdates, path: Path) -> SpentUpdates:
    ledger.close()
    return SpentUpdates(path)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_update_is_refused_under_another_number_and_another_task(*, is_restarted: bool, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = SpentUpdates(path)
    ledger.charge(FIRST)
    if is_restarted:
        ledger = reopened(ledger, path)
    for renamed in (replace(FIRST, number=2, model=B), replace(FIRST, task=b"another", number=9, model=B)):
        with pytest.raises(Misuse) as caught:
            ledger.charge(renamed)
        assert caught.value.reason is Reason.ALREADY_SPENT
    assert (ledger.last(b"a task"), ledger.count(b"a task"), ledger.last(b"another")) == (1, 1, -1)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_model_that_comes_back_under_a_new_number_is_refused(*, is_restarted: bool, tmp_path: Path) -> None:
    """Model A, model B, and model A again under a third number: its update would be in two sums."""
    path = tmp_path / "ledger"
    ledger = SpentUpdates(path)
    ledger.charge(FIRST)
    ledger.charge(Spent(b"a task", 2, bytes([2]) * 32, B))
    if is_restarted:
        ledger = reopened(ledger, path)
    with pytest.raises(PeerMisbehaved) as caught:
        ledger.charge(Spent(b"a task", 3, bytes([3]) * 32, A))
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    ledger.charge(Spent(b"a task", 3, bytes([3]) * 32, A), is_repeat_allowed=True)


def test_an_update_whose_layout_has_another_version_is_the_same_update() -> None:
    payload = payload_of(client_ids(1)[0])
    renamed = Payload(Layout(payload.layout.segments, bytes([7]) * 32), payload.values)
    assert values_digest(payload) == values_digest(renamed)
    ledger = UploadLedger(b"a task")
    ledger.charge(b"a task", 1, payload)
    with pytest.raises(Misuse, match="train again"):
        ledger.charge(b"a task", 2, renamed)


def test_both_policies_go_on_from_one_file(tmp_path: Path) -> None:
    path, payload = tmp_path / "ledger", payload_of(client_ids(1)[0])
    spent = SpentUpdates(path)
    UploadLedger(b"rounds", spent=spent).charge(b"rounds", 4, payload)
    spent = reopened(spent, path)
    with pytest.raises(PeerMisbehaved, match="round 4"):
        UploadLedger(b"rounds", spent=spent).charge(b"rounds", 4, payload_of(client_ids(2)[1]))
    seals = SealLedger(b"versions", spent=spent, maximum_seals=1)
    with pytest.raises(Misuse, match="train again"):
        seals.charge(Spent(b"versions", 1, values_digest(payload), A), is_noised=False)
    seals.charge(Spent(b"versions", 1, bytes(32), A), is_noised=False)
    spent = reopened(spent, path)
    with pytest.raises(PeerMisbehaved) as caught:
        SealLedger(b"versions", spent=spent, maximum_seals=2).charge(
            Spent(b"versions", 1, bytes([9]) * 32, B), is_noised=False
        )
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    with pytest.raises(PeerMisbehaved) as caught:
        SealLedger(b"versions", spent=spent, maximum_seals=1).charge(
            Spent(b"versions", 2, bytes([9]) * 32, B), is_noised=False
        )
    assert caught.value.reason is Reason.BUDGET_SPENT


def test_a_spent_budget_is_said_before_anything_is_trained() -> None:
    seals = SealLedger(b"versions", maximum_seals=2)
    for version, model in enumerate((A, B), start=1):
        seals.require_open(b"versions", version, is_noised=False)
        seals.charge(Spent(b"versions", version, bytes([version]) * 32, model), is_noised=False)
    with pytest.raises(PeerMisbehaved) as caught:
        seals.require_open(b"versions", 3, is_noised=False)
    assert caught.value.reason is Reason.BUDGET_SPENT


def test_a_record_that_is_cut_is_dropped_and_one_that_is_changed_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = SpentUpdates(path)
    ledger.charge(FIRST)
    ledger.charge(Spent(b"a task", 2, bytes([2]) * 32, B))
    ledger.close()
    stored = path.read_bytes()
    path.write_bytes(stored[:-1])
    cut = SpentUpdates(path)
    assert cut.last(b"a task") == 1
    cut.charge(Spent(b"a task", 2, bytes([2]) * 32, B))
    cut.close()
    assert path.read_bytes() == stored
    for place in (0, 10, 60, 100, len(stored) - 1):
        changed = bytearray(stored)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(MalformedMessage):
            SpentUpdates(path)
    header = len(stored) % 136
    path.write_bytes(stored[:header] + stored[header + 136 :])
    with pytest.raises(MalformedMessage, match="record 0"):
        SpentUpdates(path)


def test_a_file_is_one_processs_and_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = SpentUpdates(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidParameters, match="process that runs"):
        SpentUpdates(path)
    ledger.close()
    with pytest.raises(OSError, match="descriptor"):
        ledger.charge(FIRST)
    assert SpentUpdates(path).last(b"a task") == -1


def test_what_was_charged_survives_a_process_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from secagg.session.ledger import Spent, SpentUpdates\n"
        "SpentUpdates(Path(sys.argv[1])).charge(Spent(b'a task', 1, bytes([1]) * 32))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "ledger"
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False, env=os.environ)  # noqa: S603
    assert ended.returncode < 0
    with pytest.raises(Misuse):
        SpentUpdates(path).charge(FIRST)


def test_what_is_not_on_disk_is_not_charged_and_nothing_may_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    ledger = SpentUpdates(path)
    before = path.read_bytes()

    def failing(_: int) -> None:
        raise OSError("no space is left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="no space"):
            ledger.charge(FIRST)
    assert path.read_bytes() == before
    assert ledger.last(FIRST.task) == -1
    ledger.charge(FIRST)
    assert reopened(ledger, path).last(FIRST.task) == 1


# --- Sessions side by side --------------------------------------------------------------------------------------------


def test_of_two_ledgers_of_one_file_one_has_the_upload_of_a_round() -> None:
    """Each session is given a ledger of its own, and both may look before either uploads."""
    spent = SpentUpdates()
    rounds, others = UploadLedger(b"rounds", spent=spent), UploadLedger(b"rounds", spent=spent)
    first, second = (payload_of(client) for client in client_ids(2))
    rounds.charge(b"rounds", 5, first)
    for number in (5, 4):
        with pytest.raises(PeerMisbehaved, match="uploaded for number 5") as caught:
            others.charge(b"rounds", number, second)
        assert caught.value.reason is Reason.ALREADY_ANSWERED
    assert (spent.last(b"rounds"), spent.count(b"rounds")) == (5, 1)


def test_of_two_ledgers_of_one_file_both_have_one_budget() -> None:
    spent = SpentUpdates()
    ledgers = [SealLedger(b"versions", spent=spent, maximum_seals=1) for _ in range(2)]
    ledgers[0].charge(Spent(b"versions", 1, bytes([1]) * 32, A), is_noised=False)
    for number, model in ((1, A), (2, B)):
        with pytest.raises(PeerMisbehaved):
            ledgers[1].charge(Spent(b"versions", number, bytes([2]) * 32, model), is_noised=False)
    assert spent.count(b"versions") == 1


def test_a_budget_is_decided_where_the_upload_is_written_down() -> None:
    """Sessions side by side may each have looked before."""
    spent = SpentUpdates()
    for number, model in ((1, A), (2, B)):
        spent.charge(Spent(b"versions", number, bytes([number]) * 32, model), maximum=2)
    with pytest.raises(PeerMisbehaved) as caught:
        spent.charge(Spent(b"versions", 3, bytes([3]) * 32), maximum=2)
    assert caught.value.reason is Reason.BUDGET_SPENT
    assert spent.count(b"versions") == 2


def test_with_noise_an_update_is_charged_again_as_long_as_its_budget_lasts() -> None:
    spent = SpentUpdates()
    ledgers = [SealLedger(b"v", spent=spent, maximum_seals=2, repeats_allowed=True) for _ in range(3)]
    for ledger in ledgers[:2]:
        ledger.charge(Spent(b"v", 1, bytes(32), A), is_noised=True)
    with pytest.raises(PeerMisbehaved) as caught:
        ledgers[2].charge(Spent(b"v", 1, bytes(32), A), is_noised=True)
    assert caught.value.reason is Reason.BUDGET_SPENT


def test_without_noise_an_update_is_charged_once_also_where_repeats_are_allowed() -> None:
    """Noise protects each release; an epoch without it gets no update that another one had."""
    ledger = SealLedger(b"v", repeats_allowed=True)
    ledger.charge(Spent(b"v", 1, bytes(32), A), is_noised=False)
    with pytest.raises(Misuse) as caught:
        ledger.charge(Spent(b"v", 2, bytes(32), B), is_noised=False)
    assert caught.value.reason is Reason.ALREADY_SPENT
    ledger.charge(Spent(b"v", 2, bytes(32), B), is_noised=True)


def test_a_ledger_of_seals_is_for_a_task_with_a_name() -> None:
    for task in (b"t", b"t" * 256):
        assert SealLedger(task).task == task
    for wrong in (b"", b"t" * 257):
        with pytest.raises(Misuse, match="1 to 256 bytes"):
            SealLedger(wrong)


def test_what_another_process_has_open_is_not_charged_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a fork; a ledger in memory is copied by one, and nothing on disk contradicts it."""
    kept, forgotten = SpentUpdates(tmp_path / "ledger"), SpentUpdates()
    monkeypatch.setattr("secagg.session.ledger.os.getpid", lambda: -1)
    with pytest.raises(Misuse, match="forked into another process"):
        kept.charge(FIRST)
    forgotten.charge(FIRST)
    assert (kept.count(FIRST.task), forgotten.count(FIRST.task)) == (0, 1)


@pytest.mark.parametrize("length", [0, 1, 6, 7])
def test_a_file_that_a_crash_kept_from_its_header_is_begun(length: int, tmp_path: Path) -> None:
    """On the disk with its name, and with nothing of the beginning twice."""
    SpentUpdates(tmp_path / "whole").close()
    header = (tmp_path / "whole").read_bytes()
    assert len(header) == 7
    path = tmp_path / "ledger"
    path.write_bytes(header[:length])
    ledger = SpentUpdates(path)
    assert path.read_bytes() == header
    ledger.charge(FIRST)
    assert reopened(ledger, path).count(FIRST.task) == 1
    for other in (header[:3] + b"?", b"?", header[:6] + b"?"):
        (tmp_path / "other").write_bytes(other)
        with pytest.raises(MalformedMessage, match="no ledger of uploads"):
            SpentUpdates(tmp_path / "other")
        assert (tmp_path / "other").read_bytes() == other


def test_a_new_file_is_on_the_disk_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, sync = list[str](), os.fsync

    def flushed(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
        sync(number)

    monkeypatch.setattr(os, "fsync", flushed)
    SpentUpdates(tmp_path / "ledger").close()
    assert synced == ["ledger", tmp_path.name]


def test_the_beginning_of_a_record_that_was_never_sent_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = SpentUpdates(path)
    ledger.charge(FIRST)
    ledger.close()
    stored = path.read_bytes()
    path.write_bytes(stored + stored[-136:-1])
    SpentUpdates(path).close()
    assert path.read_bytes() == stored


def test_an_upload_is_known_by_whole_digests() -> None:
    """A shorter one would shift what is read back."""
    ledger = SpentUpdates()
    for wrong in (b"", bytes(31), bytes(33)):
        for spoiled in (replace(FIRST, values=wrong), replace(FIRST, model=wrong)):
            with pytest.raises(Misuse, match="32 bytes"):
                ledger.charge(spoiled)
    assert ledger.count(FIRST.task) == 0


def test_values_are_told_apart_by_where_their_segments_end_and_not_by_how_they_lie_in_memory() -> None:
    def payload(*vectors: list[int]) -> Payload:
        layout = Layout(tuple(RingSegment(8, len(vector)) for vector in vectors))
        return Payload(layout, tuple(np.array(vector, np.uint8) for vector in vectors))

    assert values_digest(payload([1, 2], [3])) != values_digest(payload([1], [2, 3]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("secagg.session.ledger._HASHED_AT_A_TIME", 2)
        assert values_digest(payload([1, 2, 3, 4])) != values_digest(payload([1, 2], [3, 4])), "as long as a piece"
    spread = np.array([1, 9, 2, 9], np.uint8)[::2]
    assert values_digest(replace(payload([1, 2]), values=(spread,))) == values_digest(payload([1, 2]))


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), st.data())
def test_equal_values_are_known_again_and_no_altered_one_is_taken_for_them(
    values: list[int], data: st.DataObject
) -> None:
    payload = Payload(Layout((RingSegment(8, len(values)),)), (np.array(values, np.uint8),))
    altered = payload.values[0].copy()
    altered[data.draw(st.integers(0, len(values) - 1))] ^= data.draw(st.integers(1, 255))
    whole = values_digest(payload)
    assert whole == values_digest(replace(payload, values=(payload.values[0].copy(),)))
    assert whole != values_digest(replace(payload, values=(altered,)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("secagg.session.ledger._HASHED_AT_A_TIME", 16)
        assert values_digest(payload) == values_digest(replace(payload, values=(payload.values[0].copy(),)))
        assert values_digest(payload) != values_digest(replace(payload, values=(altered,)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_of_the_process_charges_nothing(tmp_path: Path) -> None:
    """It has the lock of the file as well, and knows nothing of what the other one writes."""
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from secagg.errors import Misuse\n"
        "from secagg.session.ledger import Spent, SpentUpdates\n"
        "ledger = SpentUpdates(Path(sys.argv[1]))\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        ledger.charge(Spent(b'a task', 1, bytes([1]) * 32))\n"
        "    except Misuse:\n"
        "        os._exit(7)\n"
        "    os._exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    path = tmp_path / "ledger"
    ended = subprocess.run([sys.executable, "-c", program, str(path)], check=False, env=os.environ)  # noqa: S603
    assert ended.returncode == 7
    assert SpentUpdates(path).count(b"a task") == 0
