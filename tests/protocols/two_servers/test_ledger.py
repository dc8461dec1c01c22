"""What a client remembers of its uploads: rounds go up, a model has its attempts, and a record comes back as it was."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from threading import Thread
from time import sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason, SecAggError, UnexpectedMessage
from secagg.parameters import ATTEMPTS
from secagg.protocols.two_servers.ledger import REMEMBERED, UploadLedger

TASK = b"a task"


def model(number: int) -> bytes:
    return number.to_bytes(32, "big")


def ledger(*rounds: int) -> UploadLedger:
    made = UploadLedger(TASK)
    for number in rounds:
        made.charge(TASK, number, model(number))
    return made


def is_refused(kept: UploadLedger, call: Callable[[], object], kind: type[SecAggError], reason: Reason) -> None:
    before = kept.encode()
    with pytest.raises(SecAggError) as caught:
        call()
    assert type(caught.value) is kind
    assert caught.value.reason is reason
    assert kept.encode() == before, "a refusal spends nothing"


def test_a_task_has_a_name_that_a_record_holds() -> None:
    for task in (b"t", b"t" * 256):
        assert UploadLedger.decode(UploadLedger(task).encode()).task == task
    for wrong in (b"", b"t" * 257, "task", None):
        nameless: Any = wrong
        with pytest.raises(Misuse, match="1 to 256 bytes"):
            UploadLedger(nameless)


# --- What is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [(0,), (0, 1, 2), (5, 1000, (1 << 64) - 1)])
def test_rounds_go_up(rounds: tuple[int, ...]) -> None:
    kept = ledger(*rounds)
    assert kept.last_round == rounds[-1]
    for number in {0, rounds[-1] - 1, rounds[-1]} - {-1}:
        is_refused(kept, partial(kept.charge, TASK, number, model(77)), PeerMisbehaved, Reason.ALREADY_ANSWERED)


def test_nobody_is_blamed_for_a_round_that_comes_twice() -> None:
    kept = ledger(3)
    with pytest.raises(PeerMisbehaved) as caught:
        kept.charge(TASK, 3, model(4))
    assert caught.value.culprits == frozenset()


def test_a_model_has_its_attempts() -> None:
    kept = ledger()
    for number in range(ATTEMPTS):
        kept.charge(TASK, number, model(3))
    again = partial(kept.charge, TASK, ATTEMPTS, model(3))
    is_refused(kept, again, PeerMisbehaved, Reason.ALREADY_ANSWERED)
    kept.charge(TASK, ATTEMPTS, model(5))


@pytest.mark.parametrize("task", [b"b task", b"", b"a task "])
def test_a_ledger_is_of_one_task(task: bytes) -> None:
    kept = ledger()
    is_refused(kept, lambda: kept.charge(task, 1, model(1)), Misuse, Reason.API_MISUSE)


@pytest.mark.parametrize("task", [b"", b"t" * 257, "text", None, bytearray(b"t")])
def test_a_task_is_named_in_bytes(task: Any) -> None:
    with pytest.raises(Misuse):
        UploadLedger(task)


def test_a_record_holds_the_last_uploads_and_older_ones_not() -> None:
    kept = ledger(*range(1, REMEMBERED + 2))
    assert UploadLedger.decode(kept.encode()).encode() == kept.encode()
    assert len(kept.encode()) == len(ledger(*range(REMEMBERED)).encode())


def test_of_many_threads_one_uploads() -> None:
    kept, came = ledger(), list[str]()

    class Slow(int):
        """A number that takes its time to be compared, so that others come in between."""

        def __lt__(self, other: int) -> bool:
            sleep(0.01)
            return int(self) < other

    def upload() -> None:
        try:
            kept.charge(TASK, Slow(1), model(1))
        except PeerMisbehaved:
            came.append("refused")
        else:
            came.append("charged")

    threads = [Thread(target=upload) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(came) == ["charged"] + ["refused"] * 7


# --- The record -------------------------------------------------------------------------------------------------------


@given(rounds=st.sets(st.integers(0, (1 << 64) - 1), max_size=8))
def test_a_ledger_comes_back_as_it_was(rounds: set[int]) -> None:
    kept = UploadLedger(TASK)
    for place, number in enumerate(sorted(rounds)):
        kept.charge(TASK, number, model(place))
    again = UploadLedger.decode(kept.encode())
    assert (again.task, again.last_round, again.encode()) == (kept.task, kept.last_round, kept.encode())
    for number in sorted(rounds):
        with pytest.raises(PeerMisbehaved):
            again.charge(TASK, number, model(99))


def test_the_encoding_is_the_documented_one() -> None:
    start = b"SAGG\x01" + (76).to_bytes(2, "big") + (6).to_bytes(4, "big") + TASK
    assert ledger().encode() == start + bytes(4)
    assert ledger(7).encode() == start + (1).to_bytes(4, "big") + (7).to_bytes(8, "big") + model(7)


def test_a_record_that_is_cut_extended_or_altered_is_refused_or_another_one() -> None:
    encoded = ledger(3, 9).encode()
    for length in range(len(encoded)):
        with pytest.raises(MalformedMessage):
            UploadLedger.decode(encoded[:length])
    with pytest.raises(MalformedMessage) as caught:
        UploadLedger.decode(encoded + b"\0")
    assert caught.value.reason is Reason.TRAILING_BYTES
    for position in range(len(encoded)):
        altered = bytearray(encoded)
        altered[position] ^= 1 << position % 8
        try:
            again = UploadLedger.decode(bytes(altered))
        except (MalformedMessage, UnexpectedMessage):
            continue
        assert again.encode() == bytes(altered)


def record(*charged: tuple[int, bytes], count: int | None = None) -> bytes:
    """Write what ``encode`` would for any numbers."""
    number = (len(charged) if count is None else count).to_bytes(4, "big")
    return ledger().encode()[:-4] + number + b"".join(at.to_bytes(8, "big") + digest for at, digest in charged)


@pytest.mark.parametrize(
    "message",
    [
        record((1, model(1)), (1, model(2))),
        record((2, model(1)), (1, model(2))),
        record(*((number, model(1)) for number in range(ATTEMPTS + 1))),
        b"SAGG\x01\x00\x4c" + bytes(4) + bytes(4),
    ],
)
def test_records_that_no_ledger_writes_are_refused(message: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        UploadLedger.decode(message)
    assert caught.value.reason is Reason.NOT_CANONICAL


def test_the_last_round_of_all_is_read_back() -> None:
    last = (1 << 64) - 1
    assert UploadLedger.decode(record((last, model(1)))).last_round == last


@pytest.mark.parametrize("count", [REMEMBERED + 1, (1 << 32) - 1])
def test_a_count_over_the_limit_is_refused_before_anything_is_read(count: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        UploadLedger.decode(record(count=count))
    assert caught.value.reason is Reason.LENGTH_OVER_LIMIT


def test_a_ledger_is_neither_copied_nor_pickled_nor_shown() -> None:
    kept = ledger(3)
    for call in (lambda: copy.copy(kept), lambda: copy.deepcopy(kept), lambda: pickle.dumps(kept)):
        with pytest.raises(Misuse):
            call()
    assert kept.encode()[-32:].hex() not in repr(kept)
    assert "round 3" in repr(kept)
