"""What a client remembers of its uploads: rounds go up, no update goes twice, and the record comes back as it was."""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import Callable
from functools import partial
from threading import Thread
from time import sleep
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from secagg.contract import Layout, Payload, RingSegment
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason, SecAggError, UnexpectedMessage
from secagg.protocols.two_servers.ledger import REMEMBERED, UploadLedger

LAYOUT = Layout((RingSegment(20, 1),))
TASK = b"a task"


def update(number: int) -> Payload:
    return Payload(LAYOUT, (np.array([number % 1000], dtype=np.uint32),))


def ledger(*rounds: int) -> UploadLedger:
    made = UploadLedger(TASK)
    for number in rounds:
        made.charge(TASK, number, update(number))
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
        is_refused(kept, partial(kept.charge, TASK, number, update(77)), PeerMisbehaved, Reason.ALREADY_ANSWERED)


def test_nobody_is_blamed_for_a_round_that_comes_twice() -> None:
    kept = ledger(3)
    with pytest.raises(PeerMisbehaved) as caught:
        kept.charge(TASK, 3, update(4))
    assert caught.value.culprits == frozenset()


def test_no_update_is_in_two_rounds() -> None:
    kept = ledger(3, 4)
    for number in (3, 4):
        is_refused(kept, partial(kept.charge, TASK, 5, update(number)), Misuse, Reason.ALREADY_SPENT)
    kept.charge(TASK, 5, update(5))


def test_the_same_values_in_a_layout_of_another_version_are_the_same_update() -> None:
    kept = ledger(3)
    other = Payload(Layout((RingSegment(20, 1),), b"v" * 32), update(3).values)
    is_refused(kept, lambda: kept.charge(TASK, 4, other), Misuse, Reason.ALREADY_SPENT)


@pytest.mark.parametrize("task", [b"b task", b"", b"a task "])
def test_a_ledger_is_of_one_task(task: bytes) -> None:
    kept = ledger()
    is_refused(kept, lambda: kept.charge(task, 1, update(1)), Misuse, Reason.API_MISUSE)


@pytest.mark.parametrize("task", [b"", b"t" * 257, "text", None, bytearray(b"t")])
def test_a_task_is_named_in_bytes(task: Any) -> None:
    with pytest.raises(Misuse):
        UploadLedger(task)


def test_a_record_holds_the_last_updates_and_older_ones_not() -> None:
    kept = ledger(*range(REMEMBERED + 1))
    assert UploadLedger.decode(kept.encode()).encode() == kept.encode()
    is_refused(kept, lambda: kept.charge(TASK, 5000, update(1)), Misuse, Reason.ALREADY_SPENT)
    UploadLedger.decode(kept.encode()).charge(TASK, 5000, update(0))
    assert len(kept.encode()) == len(ledger(*range(REMEMBERED)).encode())


class SlowRound(int):
    """A number that takes its time to be compared, so that others come in between."""

    def __ge__(self, other: int) -> bool:
        sleep(0.01)
        return int(self) >= other


def test_of_many_threads_one_uploads() -> None:
    kept, came = ledger(), list[str]()
    kept.last_round = SlowRound(-1)

    def upload() -> None:
        try:
            kept.charge(TASK, 1, update(1))
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
        kept.charge(TASK, number, update(place))
    again = UploadLedger.decode(kept.encode())
    assert (again.task, again.last_round, again.encode()) == (kept.task, kept.last_round, kept.encode())
    for place, number in enumerate(sorted(rounds)):
        with pytest.raises(PeerMisbehaved):
            again.charge(TASK, number, update(99))
        if again.last_round < (1 << 64) - 1:
            with pytest.raises(Misuse):
                again.charge(TASK, again.last_round + 1, update(place))


def test_the_encoding_is_the_documented_one() -> None:
    words = update(7).values[0].tobytes()
    label = b"secagg/1/spent-values"
    tag = AESGCM(hashlib.sha256(label).digest()).encrypt(bytes(12), b"", words)
    digest = hashlib.sha256(label + len(words).to_bytes(8, "big") + tag).digest()
    start = b"SAGG\x01" + (76).to_bytes(2, "big") + (6).to_bytes(4, "big") + TASK
    assert ledger().encode() == start + bytes(9) + bytes(4)
    assert ledger(7).encode() == start + (8).to_bytes(9, "big") + (1).to_bytes(4, "big") + digest


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


ROUND_AT, COUNT_AT = 7 + 4 + 6, 7 + 4 + 6 + 9


def record(last_round: int, *spent: bytes, count: int | None = None) -> bytes:
    """Write what ``encode`` would for any numbers; the last round counts from one, and zero is none."""
    number = (len(spent) if count is None else count).to_bytes(4, "big")
    return ledger().encode()[:ROUND_AT] + last_round.to_bytes(9, "big") + number + b"".join(spent)


@pytest.mark.parametrize(
    "message",
    [
        record(0, b"d" * 32),
        record(1),
        record(2, b"d" * 32, b"d" * 32),
        record(1, b"d" * 32, b"e" * 32),
        record((1 << 64) + 1, b"d" * 32),
        record((1 << 72) - 1, b"d" * 32),
        b"SAGG\x01\x00\x4c" + bytes(4) + bytes(13),
    ],
)
def test_records_that_no_ledger_writes_are_refused(message: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        UploadLedger.decode(message)
    assert caught.value.reason is Reason.NOT_CANONICAL


def test_the_last_round_of_all_is_read_back() -> None:
    assert UploadLedger.decode(record(1 << 64, b"d" * 32)).last_round == (1 << 64) - 1


@pytest.mark.parametrize("count", [REMEMBERED + 1, (1 << 32) - 1])
def test_a_count_over_the_limit_is_refused_before_anything_is_read(count: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        UploadLedger.decode(record(1000, count=count))
    assert caught.value.reason is Reason.LENGTH_OVER_LIMIT


def test_a_ledger_is_neither_copied_nor_pickled_nor_shown() -> None:
    kept = ledger(3)
    for call in (lambda: copy.copy(kept), lambda: copy.deepcopy(kept), lambda: pickle.dumps(kept)):
        with pytest.raises(Misuse):
            call()
    assert kept.encode()[-32:].hex() not in repr(kept)
    assert "round 3" in repr(kept)
