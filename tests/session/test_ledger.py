"""The ledger remembers uploads across restarts, under whatever round, task or layout a server names."""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.parameters import ATTEMPTS
from secagg.protocols.enclave.seal_ledger import SealLedger
from secagg.session.ledger import Spent, SpentUpdates
from secagg.session.store import Store

opened: dict[Any, Store] = vars(Store)["_open"]
A, B = (bytes([byte]) * 32 for byte in b"AB")
FIRST = Spent(b"a task", 1, A, bytes([1]) * 32)


def reopened(path: Path) -> SpentUpdates:
    """As if the process had restarted."""
    Store.at(path).close()
    opened.clear()
    return SpentUpdates(path)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_update_is_refused_under_another_number_and_another_task(*, is_restarted: bool, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = SpentUpdates(path)
    ledger.charge(FIRST)
    if is_restarted:
        ledger = reopened(path)
    for renamed in (replace(FIRST, number=2, model=B), replace(FIRST, task=b"another", number=9, model=B)):
        with pytest.raises(Misuse, match=f"^the ledger in {path} shows that this update") as caught:
            ledger.charge(renamed)
        assert caught.value.reason is Reason.ALREADY_SPENT
    assert (ledger.last(b"a task"), ledger.count(b"a task"), ledger.last(b"another")) == (1, 1, -1)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_attempts_for_a_model_are_counted_across_numbers_and_tasks(*, is_restarted: bool, tmp_path: Path) -> None:
    """A failed round may be retried with the same model; a server that continues with it would learn differences."""
    path = tmp_path / "ledger"
    ledger = SpentUpdates(path)
    for number in range(ATTEMPTS):
        ledger.charge(Spent(b"a task", 2 * number, A))
        ledger.charge(Spent(b"a task", 2 * number + 1, bytes([number + 1]) * 32))
    if is_restarted:
        ledger = reopened(path)
    for again in (Spent(b"a task", 9, A), Spent(b"another", 1, A)):
        for call in (ledger.require_open, ledger.charge):
            with pytest.raises(PeerMisbehaved, match="3 times for the model") as caught:
                call(again)
            assert caught.value.reason is Reason.ALREADY_ANSWERED
            assert not caught.value.culprits
    ledger.charge(Spent(b"a task", 9, A), is_repeat_allowed=True)


@pytest.mark.parametrize("attempts", [1, 2, None])
def test_the_client_policy_sets_the_attempts_for_a_model(attempts: int | None) -> None:
    ledger = SpentUpdates(attempts=attempts)
    for number in range(attempts or 9):
        ledger.charge(Spent(b"a task", number, A))
    if attempts is not None:
        with pytest.raises(PeerMisbehaved):
            ledger.charge(Spent(b"a task", attempts, A))
    ledger.charge(Spent(b"a task", 9, B))


@pytest.mark.parametrize("attempts", [0, -1, 1.0, True])
def test_a_model_allows_at_least_one_attempt(attempts: Any) -> None:
    with pytest.raises(InvalidParameters, match="at least 1"):
        SpentUpdates(attempts=attempts)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_upload_for_a_known_model_counts_for_its_task(*, is_restarted: bool, tmp_path: Path) -> None:
    """A failed round is retried under another task; the ledger still knows the uploads of that task."""
    path = tmp_path / "ledger"
    ledger = SpentUpdates(path)
    ledger.charge(FIRST)
    ledger.charge(Spent(b"another", 7, A))
    if is_restarted:
        ledger = reopened(path)
    assert (ledger.last(b"another"), ledger.count(b"another")) == (7, 1)
    with pytest.raises(PeerMisbehaved, match="uploaded for number 7"):
        ledger.charge(Spent(b"another", 7, B))


def test_values_without_a_name_are_never_the_same() -> None:
    ledger = SpentUpdates(attempts=1)
    for number in range(3):
        ledger.charge(Spent(b"a task", number))
    assert ledger.count(b"a task") == 3


def test_both_policies_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    spent = SpentUpdates(path, attempts=1)
    spent.charge(Spent(b"rounds", 4, A))
    spent = SpentUpdates(path, attempts=1)
    with pytest.raises(PeerMisbehaved, match="number 4"):
        spent.charge(Spent(b"rounds", 4, B))
    seals = SealLedger(b"versions", spent=spent, maximum_seals=1)
    with pytest.raises(PeerMisbehaved, match="for the model"):
        seals.charge(Spent(b"versions", 1, A), is_noised=False)
    seals.charge(Spent(b"versions", 1, B), is_noised=False)
    spent = reopened(path)
    with pytest.raises(PeerMisbehaved) as caught:
        SealLedger(b"versions", spent=spent, maximum_seals=2).charge(Spent(b"versions", 1), is_noised=False)
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    with pytest.raises(PeerMisbehaved) as caught:
        SealLedger(b"versions", spent=spent, maximum_seals=1).charge(Spent(b"versions", 2), is_noised=False)
    assert caught.value.reason is Reason.BUDGET_SPENT


def test_a_spent_budget_is_reported_before_training() -> None:
    seals = SpentUpdates()
    for version, model in enumerate((A, B), start=1):
        spent = Spent(b"versions", version, model)
        seals.require_open(spent, maximum=2)
        seals.charge(spent, maximum=2)
    with pytest.raises(PeerMisbehaved) as caught:
        seals.require_open(Spent(b"versions", 3), maximum=2)
    assert caught.value.reason is Reason.BUDGET_SPENT


def test_a_charge_that_is_not_on_disk_does_not_count_and_nothing_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    ledger = SpentUpdates(path)
    before = (path / "state.db").read_bytes()

    def failing(_: int) -> None:
        raise OSError("no space is left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="no space"):
            ledger.charge(FIRST)
    assert (path / "state.db").read_bytes() == before
    assert ledger.last(FIRST.task) == -1
    ledger.charge(FIRST)
    assert reopened(path).last(FIRST.task) == 1


def test_clients_with_the_same_data_share_their_uploads_and_others_do_not(tmp_path: Path) -> None:
    """Whatever their keys, numbers and authorities."""
    one, same, other = (SpentUpdates(tmp_path / "s", data=name, attempts=1) for name in ("ward 3", "ward 3", "ward 4"))
    one.charge(FIRST)
    for again in (Spent(b"another", 1, A), Spent(b"a task", 1, B)):
        with pytest.raises(PeerMisbehaved):
            same.charge(again)
    other.charge(FIRST)


def test_without_a_key_values_from_one_folder_enter_one_sum(tmp_path: Path) -> None:
    """The server of a second sum may give the client another number."""
    many = [SpentUpdates(tmp_path / "s", data=f"client {number}", is_one_folder=True) for number in range(3)]
    many[0].charge(FIRST)
    many[1].charge(FIRST)  # Two clients may have the same values in one sum.
    for other in (replace(FIRST, number=2), replace(FIRST, task=b"another")):
        with pytest.raises(Misuse, match="already uploaded"):
            many[2].charge(other)
    many[2].charge(replace(FIRST, number=2, update=B))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_server_cannot_vary_a_bound(*, is_restarted: bool, tmp_path: Path) -> None:
    """One cohort under ten clips would reveal single values; operators decide separately about another task."""
    ledger = SpentUpdates(tmp_path / "s")
    ledger.keep(b"a task", {"the clip": "4.0", "the full weight": "64"})
    if is_restarted:
        ledger = reopened(tmp_path / "s")
    for changed in ({"the clip": "2.0"}, {"the clip": "4.0", "the full weight": "65"}):
        with pytest.raises(InvalidParameters, match=r"was (4\.0|64) in an earlier sum of the same data") as caught:
            ledger.keep(b"a task", changed)
        assert caught.value.reason is Reason.BELOW_FLOOR
    ledger.keep(b"a task", {"the clip": "4.0", "another": "1"})
    ledger.keep(b"another", {"the clip": "2.0"})


def test_a_number_is_always_rounded_the_same_way(tmp_path: Path) -> None:
    """Otherwise the mean of many sums would be the exact number."""
    ledger, coins = SpentUpdates(tmp_path / "s"), SystemCoins()
    words = [ledger.word_for(number, coins) for number in (100, 101, 100.0)]
    assert words == [reopened(tmp_path / "s").word_for(number, coins) for number in (100, 101, 100)]
    assert words[0] == words[2] != words[1]
    assert SpentUpdates(tmp_path / "s", data="another").word_for(100, coins) != words[0]
    assert max(words) < 1 << 32


def test_charges_are_recorded_together_or_not_at_all(tmp_path: Path) -> None:
    ledger = SpentUpdates(tmp_path / "s")
    with pytest.raises(InvalidParameters, match="the budget"), ledger.transaction():  # noqa: PT012
        ledger.charge(FIRST)
        raise InvalidParameters("the budget refuses")
    assert ledger.count(FIRST.task) == 0
    ledger.charge(FIRST)


# --- Concurrent sessions ----------------------------------------------------------------------------------------------


def test_only_one_of_two_sessions_uploads_in_a_round() -> None:
    """Both may check before either uploads."""
    spent = SpentUpdates()
    for _ in range(2):
        spent.require_open(Spent(b"rounds", 5, A))
    spent.charge(Spent(b"rounds", 5, A))
    for number in (5, 4):
        with pytest.raises(PeerMisbehaved, match="uploaded for number 5") as caught:
            spent.charge(Spent(b"rounds", number, B))
        assert caught.value.reason is Reason.ALREADY_ANSWERED
    assert (spent.last(b"rounds"), spent.count(b"rounds")) == (5, 1)


def test_two_ledgers_of_one_file_share_one_budget() -> None:
    """The decision is made when an upload is recorded, so it holds for sessions that both checked before."""
    spent = SpentUpdates()
    ledgers = [SealLedger(b"versions", spent=spent, maximum_seals=1) for _ in range(2)]
    ledgers[0].charge(Spent(b"versions", 1, A), is_noised=False)
    for number, model, reason in ((1, A, Reason.ALREADY_ANSWERED), (2, B, Reason.BUDGET_SPENT)):
        with pytest.raises(PeerMisbehaved) as caught:
            ledgers[1].charge(Spent(b"versions", number, model), is_noised=False)
        assert caught.value.reason is reason
    assert spent.count(b"versions") == 1


def test_with_noise_an_update_is_charged_again_while_its_budget_lasts() -> None:
    spent = SpentUpdates()
    ledgers = [SealLedger(b"v", spent=spent, maximum_seals=2, repeats_allowed=True) for _ in range(3)]
    for ledger in ledgers[:2]:
        ledger.charge(Spent(b"v", 1, A), is_noised=True)
    with pytest.raises(PeerMisbehaved) as caught:
        ledgers[2].charge(Spent(b"v", 1, A), is_noised=True)
    assert caught.value.reason is Reason.BUDGET_SPENT


def test_without_noise_the_attempts_for_a_model_are_limited_even_if_repeats_are_allowed() -> None:
    """Noise protects each release; in an epoch without noise a model gets at most the policy's number of updates."""
    ledger = SealLedger(b"v", repeats_allowed=True, spent=SpentUpdates(attempts=1))
    ledger.charge(Spent(b"v", 1, A), is_noised=False)
    with pytest.raises(PeerMisbehaved) as caught:
        ledger.charge(Spent(b"v", 2, A), is_noised=False)
    assert caught.value.reason is Reason.ALREADY_ANSWERED
    ledger.charge(Spent(b"v", 2, A), is_noised=True)


def test_an_upload_is_recorded_with_full_length_digests() -> None:
    """A shorter digest would shift the fields that are read back."""
    ledger = SpentUpdates()
    for wrong in (b"", bytes(31), bytes(33)):
        for spoiled in (replace(FIRST, update=wrong), replace(FIRST, model=wrong)):
            with pytest.raises(Misuse, match="32 bytes"):
                ledger.charge(spoiled)
    assert ledger.count(FIRST.task) == 0


def test_numbers_have_64_bits(tmp_path: Path) -> None:
    """A server chooses them; one that does not fit the database would crash the client."""
    tmp_path.chmod(0o700)
    ledger = SpentUpdates(tmp_path)
    for number in (0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        ledger.charge(Spent(b"task", number))
        assert ledger.last(b"task") == number
        with pytest.raises(PeerMisbehaved):
            ledger.charge(Spent(b"task", number))


def test_a_ledger_in_memory_may_be_collected_during_any_line_of_another() -> None:
    """Python collects reference cycles at any time, also before a transaction begins or after it ends."""
    kept, collected, line = SpentUpdates(), [SpentUpdates()], 0
    kept.charge(FIRST)

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal line
        if frame.f_code.co_filename.endswith("store.py"):
            line += event == "line"
            if line > until:
                collected.clear()
            return follow
        return None

    until = 0
    while not (until and collected):
        collected, line, until = [SpentUpdates()], 0, until + 1
        collected[0].charge(FIRST)
        traced = sys.gettrace()
        sys.settrace(follow)
        try:
            with pytest.raises(PeerMisbehaved):
                kept.charge(FIRST)
        finally:
            sys.settrace(traced)
    assert until > 20
    collected.clear()
    with Store.at(None).transaction() as rows:
        held = rows.execute("SELECT count(*) FROM uploads WHERE content = ?", (FIRST.update,)).fetchone()[0]
    assert held == 1, "the collected ledgers are forgotten"


def test_a_ledger_in_memory_leaves_nothing_behind() -> None:
    """A client's spent budget and recorded bounds are information about its data."""

    def rows_of(name: str) -> int:
        held = "SELECT data FROM uploads UNION ALL SELECT data FROM losses UNION ALL SELECT data FROM fixed"
        with Store.at(None).transaction() as rows:
            return [data for (data,) in rows.execute(held)].count(name)

    ledger = SpentUpdates()
    (name,) = [held for held in vars(ledger).values() if isinstance(held, str) and held]
    ledger.charge(FIRST)
    ledger.keep(b"task", {"a bound": "3"})
    with Store.at(None).transaction() as rows:
        rows.execute("INSERT INTO losses VALUES (?, 0, 1, 0, 0, 0, 0)", (name,))
    assert rows_of(name) == 3
    del ledger
    gc.collect()
    assert rows_of(name) == 0
