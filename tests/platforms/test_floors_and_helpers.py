"""Floors that would act nowhere, and an enclave that says nothing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.platforms.floors import NodeSettings
from secagg.platforms.keys.identities import make_identities
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import SecAggSettings

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
    floors.require_protocol("one-message")


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
