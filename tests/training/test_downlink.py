"""The compressed downlink: clients that only follow its messages hold the server's model; its bytes are counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.compression.cohort_bits import AutoRate
from secagg.compression.downlink import HeldModel
from secagg.compression.peak import LevelCode, PeakCode
from secagg.errors import InvalidParameters
from secagg.training.codec import DownlinkSums, WholeUpdates
from secagg.training.configuration import Configuration
from secagg.training.driver import train
from secagg.training.records import read_records, summarise
from secagg.training.rounds import Pieces, Run, ServerOptimizer

Make = Callable[..., Configuration]
Pieced = Callable[[Configuration], Pieces]
SUMS = ("compression.scheme=peak", "secagg.protocol=enclave", "compression.down=sums", "compression.refresh=2")


def messages(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Record the messages of every run."""
    advanced, kept = HeldModel.advanced, list[bytes]()

    def listened(model: HeldModel, *given: Any) -> tuple[HeldModel, bytes]:
        after, message = advanced(model, *given)
        kept.append(message)
        return after, message

    monkeypatch.setattr(HeldModel, "advanced", listened)
    return kept


@pytest.mark.parametrize(
    ("lengths", "changes"),
    [("own", ()), ("median", ("server.falling=0.5", "server.rate=0.7")), ("fixed", ("server.averaged=3",))],
)
def test_a_client_that_follows_the_messages_has_the_servers_model(
    toy_run: Make, toy_pieces: Pieced, monkeypatch: pytest.MonkeyPatch, lengths: str, changes: tuple[str, ...]
) -> None:
    kept = messages(monkeypatch)
    configuration = toy_run(*SUMS, f"compression.lengths={lengths}", *changes)
    run = Run(configuration, toy_pieces(configuration))
    assert isinstance(run.operators, WholeUpdates)
    client = run.operators.held(run.parameters)
    for _ in range(configuration.rounds):
        before = {name: value.copy() for name, value in run.parameters.items()}
        run.advance()
        client = client.after(kept[-1])
        mine = run.operators.parted(client.values)
        assert all(np.array_equal(mine[name], value) for name, value in run.parameters.items())
        assert any(not np.array_equal(before[name], value) for name, value in run.parameters.items())
    assert len(kept) == configuration.rounds


def test_a_rate_that_is_found_tells_sums_of_levels_too(
    toy_run: Make, toy_pieces: Pieced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Careful peaks come first, then levels; a client follows both."""
    kept = messages(monkeypatch)

    def noise(_: AutoRate, number: int) -> float:
        return 0.5 if number < 1 else 1e-4

    monkeypatch.setattr(AutoRate, "noise", noise)
    configuration = toy_run(*SUMS, "compression.rate=auto")
    run, codes = Run(configuration, toy_pieces(configuration)), list[object]()
    assert isinstance(run.operators, WholeUpdates)
    client = run.operators.held(run.parameters)
    for _ in range(configuration.rounds):
        run.advance()
        codes.append(type(run.operators.codec.tensors[0].scheme))
        client = client.after(kept[-1])
        mine = run.operators.parted(client.values)
        assert all(np.array_equal(mine[name], value) for name, value in run.parameters.items())
    assert codes[0] is PeakCode
    assert set(codes[1:]) == {LevelCode}


def test_bytes_are_those_of_the_shortest_way_to_the_model(
    toy_run: Make, toy_pieces: Pieced, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = messages(monkeypatch)
    configuration = toy_run(*SUMS, "rounds=6", "clients_per_round=4")
    run = Run(configuration, toy_pieces(configuration))
    assert run.downlink is not None
    last = dict[int, int]()
    for number in range(configuration.rounds):
        whole = len(run.downlink.model.encode()) + 4 * len(run.downlink.model.sizes)
        clients = run.sample(number)[:4]
        due = [min(whole, sum(map(len, kept[last[client] :]))) if client in last else whole for client in clients]
        assert run.downlink.model_bytes(clients) == sum(due) / 4
        record = run.advance()
        assert record.model_bytes >= sum(due) / 4
        assert record.wire_down >= record.model_bytes
        last |= dict.fromkeys(clients, number)


def test_a_round_that_released_nothing_costs_nothing_down() -> None:
    model = HeldModel.rounded(np.ones(2000, np.float32), seed=bytes(32), name="u", sizes=(2000,), round_number=0)
    told = DownlinkSums(model)
    told.seen(0, [1])
    told.skip()
    assert told.model_bytes([1]) == 0
    assert told.model_bytes([1, 2]) == (len(model.encode()) + 4) / 2


def test_wire_down_is_of_rounds_with_a_real_protocol(tmp_path: Path, toy_run: Make, toy_pieces: Pieced) -> None:
    """A payload is only the payload; wire up and wire down count all real messages each way."""
    configuration = toy_run(*SUMS, "secagg.mode=real", "secagg.every=2")
    train(configuration, tmp_path, pieces=toy_pieces(configuration))
    records = read_records(tmp_path)
    real = [record for record in records if record.is_real]
    assert len(real) == 2
    summary = summarise(records, parameters=real[0].parameters)
    assert summary["wire up"] == sum(record.wire_up for record in real) / 2
    assert summary["wire down"] == sum(record.wire_down for record in real) / 2
    for record in real:
        assert record.wire_up > record.payload_bytes
        assert record.wire_down > record.model_bytes
    ideal = [record for record in records if not record.is_real]
    assert all(record.wire_down == record.model_bytes for record in ideal)


def test_other_schemes_and_optimizers_are_refused(toy_run: Make, toy_pieces: Pieced) -> None:
    with pytest.raises(InvalidParameters, match=r"compression\.down"):
        toy_run("compression.down=sums")
    configuration = toy_run(*SUMS)
    own = toy_pieces(configuration)
    given: dict[str, Any] = _fields(own) | {"optimizer": lambda: ServerOptimizer(configuration.server)}
    with pytest.raises(InvalidParameters, match="optimizer"):
        Run(configuration, Pieces(**given))


def test_momentum_moves_whole_updates_within_a_rate_and_no_downlink_sum(toy_run: Make, toy_pieces: Pieced) -> None:
    momentum = ("server.optimizer=fedavgm", "server.momentum=0.9")
    plain = (*SUMS, "compression.down=model", *momentum)
    with pytest.raises(InvalidParameters, match=r"set server\.rate = 0\.3 or less"):
        toy_run(*plain, "server.rate=1.0")
    with pytest.raises(InvalidParameters, match="lacks the server's momentum"):
        toy_run(*SUMS, *momentum, "server.rate=0.1")
    configuration = toy_run(*plain, "server.rate=0.3")
    run = Run(configuration, toy_pieces(configuration))
    run.advance()
    assert any(name.startswith("first/") for name in run.optimizer.state())


def _fields(pieces: Pieces) -> dict[str, Any]:
    return {name: getattr(pieces, name) for name in Pieces.__slots__}
