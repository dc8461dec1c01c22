"""Floors that would act nowhere, and an enclave that says nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.platforms import floors
from secagg.platforms.client_round import begun_app
from secagg.platforms.floors import NodeSettings
from secagg.platforms.keys import make_identities
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import SecAggSettings
from secagg.session import durable

STRICTER: dict[str, Any] = {
    "minimum_threshold": 3,
    "minimum_modulus_bits": 5,
    "maximum_population": 9_999,
    "assumed_corrupted": 2,
    "privacy_bits": 41,
}


@pytest.mark.parametrize("name", STRICTER)
@pytest.mark.parametrize("protocol", ["enclave", "two-servers"])
def test_a_floor_that_would_act_nowhere_is_refused(name: str, protocol: str) -> None:
    floors = replace(NodeSettings(), **{name: STRICTER[name]})
    with pytest.raises(InvalidParameters, match=f"secagg-{name.replace('_', '-')}, which {protocol} does not") as found:
        floors.require_protocol(protocol)
    assert found.value.reason is Reason.BELOW_FLOOR
    floors.require_protocol("pairwise")
    if name not in {"minimum_threshold", "privacy_bits"}:
        floors.require_protocol("one-message")


@pytest.mark.parametrize(
    ("protocol", "floor"),
    [
        ("one-message", {"minimum_threshold": 3}),
        ("one-message", {"privacy_bits": 41}),
        ("coded-mask", {"minimum_threshold": 3}),
        ("coded-mask", {"minimum_holders": 9}),
        ("registered", {"minimum_cohort": 4}),
        ("registered", {"maximum_population": 9}),
    ],
)
def test_other_floors_that_would_act_nowhere_are_refused_too(protocol: str, floor: dict[str, Any]) -> None:
    floors = NodeSettings(protocols=(protocol,), **floor)
    with pytest.raises(InvalidParameters, match="would act nowhere"):
        floors.require_protocol(protocol)


@pytest.mark.parametrize("floor", [{"minimum_cohort": 9}, {"assumed_corrupted": 2}, {"maximum_population": 9}])
def test_floors_that_coded_masks_have_are_not_refused(floor: dict[str, Any]) -> None:
    NodeSettings(protocols=("coded-mask",), **floor).require_protocol("coded-mask")


@pytest.mark.parametrize("zero", [0, 0.0])
def test_an_operator_who_writes_zero_takes_no_budget_and_no_norm_away(zero: float) -> None:
    own = NodeSettings(noise=1.0, norm=0.5, epsilon=2.0, delta=1e-7)
    assert own.raised_by({f"secagg-{name}": zero for name in ("noise", "norm", "epsilon", "delta")}) == own


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("-inf")])
@pytest.mark.parametrize("own", [0.0, 2.0])
def test_a_budget_that_is_no_number_above_zero_is_refused(value: float, own: float) -> None:
    floors = NodeSettings(noise=1.0, norm=0.5, epsilon=own).raised_by({"secagg-epsilon": value})
    with pytest.raises(InvalidParameters, match="epsilon of a budget is a number above 0"):
        floors.privacy_ledger(bytes(32))


def test_a_delta_without_an_epsilon_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="secagg-delta is of secagg-epsilon, which is 0"):
        NodeSettings().raised_by({"secagg-delta": 1e-9}).privacy_ledger(bytes(32))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("allow_simulated_enclave", "no", "is true or false"),
        ("allow_repeats", 0, "is true or false"),
        ("protocols", "pairwise", "is a tuple of strings"),
        ("suites", (1,), "is a tuple of strings"),
        ("minimum_cohort", "10", "is an integer"),
        ("minimum_cohort", True, "is an integer"),
        ("noise", "1", "is a number"),
        ("servers", 3, "is a string"),
        ("minimum_cohorts", 3, "is not a floor of a client; there are minimum_cohort"),
    ],
)
def test_a_floor_of_another_type_or_name_is_refused(name: str, value: object, said: str) -> None:
    with pytest.raises(InvalidParameters, match=said):
        begun_app({name: value}, None)


def test_a_pattern_that_names_no_tensor_is_refused() -> None:
    """A wrong letter would leave the tensor that was meant as it is, round after round."""
    model = {"lora.a": np.zeros(4, np.float32), "base": np.zeros(4, np.float32)}
    rounds = Rounds(SecAggSettings(tensors="lora.*, bsae"))
    with pytest.raises(InvalidParameters, match=r"secagg-tensors names bsae, and the model has lora\.a, base"):
        rounds.begun(model, clients=5, task="run", number=1, weighted_by="n")


def test_what_is_known_of_one_model_is_not_known_of_another() -> None:
    rounds = Rounds(SecAggSettings())
    first, second = {"b": np.arange(3)}, {"b": np.full((2, 2), 0.5, np.float32)}
    assert rounds.restored(first)["b"].dtype.kind == "i"
    assert np.array_equal(rounds.restored(second)["b"], second["b"])
    # A strategy multiplies by floats.
    assert rounds.restored({"b": first["b"] * 1.0})["b"].dtype.kind == "i"


def test_of_two_processes_that_reach_an_epoch_the_later_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(floors.DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    looked, plain = threading.Barrier(2), durable.replace

    def late(path: Path, data: bytes) -> None:
        # Both have looked before either writes, unless they take turns; then the lower one is the last.
        with suppress(threading.BrokenBarrierError):
            looked.wait(1)
            time.sleep(0.5 if data == b"2" else 0)
        plain(path, data)

    monkeypatch.setattr(durable, "replace", late)
    threads = [threading.Thread(target=floors.NewestEpoch(b"key").reach, args=(number,)) for number in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert floors.NewestEpoch(b"key").number == 3


def test_an_operator_who_raises_such_a_floor_is_heard() -> None:
    floors = NodeSettings().raised_by({"secagg-assumed-corrupted": 3})
    with pytest.raises(InvalidParameters, match="leave enclave out of secagg-protocols"):
        floors.require_protocol("enclave")
    floors.raised_by({"secagg-protocols": "pairwise"}).require_protocol("pairwise")


def test_floors_that_protocols_have_are_no_obstacle() -> None:
    floors = NodeSettings(minimum_cohort=9, minimum_threshold=2, maximum_weight=7, suites=("hybrid",))
    floors.require_protocol("enclave")
    floors.require_protocol("two-servers")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """Yield a socket whose process takes a connection, says nothing, and is gone a minute later."""
    path, is_over = tmp_path / "enclave.socket", threading.Event()

    def hold(listening: socket.socket) -> None:
        with listening.accept()[0]:
            is_over.wait(60)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        holding = threading.Thread(target=hold, args=(listening,))
        holding.start()
        yield path
        is_over.set()
        holding.join()


def test_an_enclave_that_says_nothing_is_let_go(tmp_path: Path, silent: Path) -> None:
    make_identities(tmp_path / "keys", map(ClientId, range(5)), SystemCoins())
    settings = SecAggSettings(
        protocol="enclave",
        roster=str(tmp_path / "keys" / "roster.json"),
        enclave_socket=str(silent),
        stage_timeout=0.2,
    )
    model = {"w": np.zeros(4, np.float32)}
    task = Rounds(settings).begun(model, clients=5, task="run", number=1, weighted_by="n")
    with ExitStack() as resources, pytest.raises(ConnectionError, match="timed out"):
        task.opened(5, frozenset(), SystemCoins(), resources)
