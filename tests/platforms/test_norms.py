"""Norm bounds on a platform: their enforcement, and a server that changes them every round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import ModelUpdate
from secagg.compression.model_update.weighting import COUNTS, count_bounds
from secagg.contract import Payload
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Reason, SecAggError
from secagg.identifiers import ClientId
from secagg.platforms import LOG
from secagg.platforms.client_node import DIRECTORY_VARIABLE, PARTITION, ClientNode
from secagg.platforms.client_round import Node, NodeRound, Trained, Training
from secagg.platforms.round_task import Means, Rounds, RoundTask
from secagg.platforms.schemes import SchemeChoice, norms_in_steps
from secagg.platforms.settings import SecAggSettings
from secagg.protocols.enclave import client as client_module
from secagg.session.identities import ROSTER_FILE, load_authority, make_identities, renew
from secagg.session.sealed_state import StateDirectory
from tests.harness.planted import always

Model = dict[str, npt.NDArray[np.float32]]
SENT: Model = {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "b": np.zeros(2, np.float32)}
CLIENTS = 5
NORM = 0.5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    make_identities(tmp_path / "keys", map(ClientId, range(CLIENTS)), SystemCoins())
    return tmp_path


def enclave(folder: Path, **settings: Any) -> SecAggSettings:
    roster = str(folder / "keys" / ROSTER_FILE)
    given: dict[str, Any] = {"protocol": "enclave", "roster": roster, "weighting": "uniform", **settings}
    return SecAggSettings(**given)


def joined(folder: Path, task: RoundTask, number: int, **policy: Any) -> NodeRound:
    identity = str(folder / "keys") if task.terms.is_certified else None
    node = Node(
        settings=ClientNode.of(
            {"identity": identity, "allow_simulated_enclave": True, "data_name": f"data {number}", **policy}
        ),
        config={PARTITION: number},
        client=ClientId(number),
        run="t",
        states=StateDirectory(folder / f"states-{number}", coins=SystemCoins()),
        custom={},
    )
    return node.begun(task.terms)


def answers(
    folder: Path, task: RoundTask, invitation: bytes, change: Callable[[int], float], sent: Model, **policy: Any
) -> Iterator[tuple[ClientId, bytes]]:
    """Let each client change every value by a different amount, and yield its upload."""
    for number in range(CLIENTS):
        begun = joined(folder, task, number, **policy)
        after = {name: values + np.float32(change(number)) for name, values in sent.items()}
        trained = Trained([after], {"loss": 2.5, "n": 200}.get)
        training = Training(begun.terms, begun.update, begun.charges, sent, lambda trained=trained: trained)  # type: ignore[misc]
        subject = begun.terms.subject(begun.update, training.model_digest)
        yield ClientId(number), begun.member(invitation).join(subject, training.late).answer(invitation)


def played(
    folder: Path, made: Rounds, change: Callable[[int], float], number: int = 1, **policy: Any
) -> tuple[Model, Means]:
    sent = {name: values + np.float32(number - 1) for name, values in SENT.items()}
    task = made.begun(sent, clients=CLIENTS, task="t", number=number, weighted_by="n")
    with ExitStack() as resources:
        session = task.opened(CLIENTS, frozenset(), SystemCoins(), resources)
        invitation = session.message_to(ClientId(0))
        assert invitation is not None
        for client, answer in answers(folder, task, invitation, change, sent, **policy):
            session.receive(client, answer)
        session.close_stage()
        means = task.means(session.release().aggregate)
    return {name: values - sent[name] for name, values in made.model(task, means).items()}, means


def norm_of(change: Model) -> float:
    return float(np.sqrt(sum((values.astype(np.float64) ** 2).sum() for values in change.values())))


def longest(number: int) -> float:
    """Four clients do not change, and the last one moves every value to the clip."""
    return -4.0 * (number == CLIENTS - 1)


@pytest.mark.parametrize("metrics", ["", "loss"])
def test_an_enclave_bounds_a_client_that_does_not_clip(
    folder: Path, monkeypatch: pytest.MonkeyPatch, metrics: str
) -> None:
    monkeypatch.setattr(client_module, "clip_into", always(None))
    settings = enclave(folder, metrics=metrics, max_norm=NORM)
    held, means = played(folder, Rounds(settings), longest)
    assert 0.9 * NORM < CLIENTS * norm_of(held) <= NORM
    assert means.metrics == ({"loss": pytest.approx(2.5)} if metrics else {})


def test_an_update_within_the_bound_is_summed_as_it_is(folder: Path) -> None:
    change, _ = played(folder, Rounds(enclave(folder, max_norm=NORM)), lambda number: number / 100)
    assert all(np.abs(values - 0.02).max() < 2.0**-16 for values in change.values())


def test_honest_clients_keep_a_bound_that_nobody_enforces(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = enclave(folder, max_norm_unenforced=NORM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LOG, "propagate", True)
        with caplog.at_level(logging.WARNING):
            change, _ = played(folder, Rounds(settings), longest)
    assert 0.99 * NORM < CLIENTS * norm_of(change) < NORM + 0.001
    assert "norm is 15 and was scaled down to secagg-max-norm-unenforced, 0.5" in caplog.text


@pytest.mark.parametrize(
    ("settings", "counts", "due"),
    [
        ({}, [-19], 3),
        ({"weighting": "examples"}, [-1_600], 4 * 256),
        ({"weighting": "examples"}, [1_600], 4 * 256 + 1_024),
        ({"weighting": "examples", "minimum_trained": 2}, [-1_600, 1], 4 * 256 - 192),
    ],
)
def test_a_client_does_not_lower_what_the_bounded_updates_of_others_are_divided_by(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], counts: list[int], due: int
) -> None:
    """Regression: its ring allowed -25 clients of five; with -3 their mean was five times as long at any norm."""

    def unscaled(_segment: object, values: Any, _norm: int, _zero: int) -> Any:
        return values

    monkeypatch.setattr(client_module, "_scaled", unscaled)
    encode = ModelUpdate.encode
    clients = iter(range(CLIENTS))

    def hostile(update: ModelUpdate, values: Any, coins: Any, prepare: Any) -> Payload:
        payload = encode(update, values, coins, prepare)
        if next(clients) == CLIENTS - 1:
            scheme: Any = update.schemes[COUNTS]
            (own,) = scheme.layout.segments
            payload.values[payload.layout.segments.index(own)][:] = own.ring.from_integers(np.array(counts))
        return payload

    monkeypatch.setattr(ModelUpdate, "encode", hostile)
    held, means = played(folder, Rounds(enclave(folder, max_norm=NORM, **settings)), lambda _: 0.01)
    assert abs((means.counted.examples or 0) - due) <= 1
    assert norm_of(held) < 2 * NORM
    assert 0 <= (means.counted.trained or 0) <= CLIENTS, "a client says that more trained than there are"


def test_counts_of_a_bounded_sum_have_a_ring_of_their_own(folder: Path) -> None:
    """Regression: a ring as wide as the tensors' or metrics' became one segment, and the session was refused."""
    for full in (1 << 18, 1 << 29):
        settings = enclave(folder, weighting="examples", full_weight=full, max_norm=NORM, metrics="loss")
        update = SchemeChoice(settings, CLIENTS).parameters(SENT, seed=bytes(32), epoch=1)
        widths = [segment.modulus_bits for segment in update.layout.require_rings()]
        assert len({*widths}) == 3, widths


@pytest.mark.parametrize("full", [1, 2, 3, 16, 1_024, 1_025])
def test_a_bound_of_counts_cuts_no_honest_client(full: int) -> None:
    for length in (1, 2):
        counts = FixedPoint(length=length, clip=float(full), fraction_bits=0, modulus_bits=40)
        middle, norm = count_bounds(counts)
        honest = [np.array([examples, examples > 0][:length]) for examples in range(full + 1)]
        assert max(float(((one - middle) ** 2).sum()) for one in honest) <= norm**2
        # A single client's minimum is not far below zero.
        assert middle - norm >= (-1 if length == 1 else -0.21 * full - 2)


@pytest.mark.parametrize("name", ["max_norm", "max_norm_unenforced"])
@pytest.mark.parametrize("other", [0.0, 0.25])
def test_a_server_that_sweeps_the_bound_from_round_to_round_is_refused(folder: Path, name: str, other: float) -> None:
    """Otherwise it would bisect a client's norm."""
    first, second = (Rounds(enclave(folder, **{name: norm})) for norm in (NORM, other))
    played(folder, first, lambda _: 0.01)
    with pytest.raises(InvalidParameters, match=f"secagg-{name.replace('_', '-')} is {other}, but was 0.5") as caught:
        played(folder, second, lambda _: 0.01, 2)
    assert caught.value.reason is Reason.BELOW_FLOOR


def test_an_enclave_with_another_bound_than_the_terms_say_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secagg.platforms.round_task.norms_in_steps", always(((20_000, 0), ())))
    with pytest.raises(InvalidParameters, match="max_norms differ from those of this client's task"):
        played(folder, Rounds(enclave(folder, max_norm=NORM)), lambda _: 0.01)


def test_an_operator_can_refuse_that_a_program_sees_values(folder: Path) -> None:
    with pytest.raises(SecAggError, match="sees every client's values"):
        played(folder, Rounds(enclave(folder, max_norm=NORM)), lambda _: 0.01, sealed_vectors_accepted=False)
    strict = ClientNode.of({"sealed_vectors_accepted": False})
    assert strict.raised_by({"secagg-sealed-vectors-accepted": True}) == strict


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"max_norm": 1.0}, r"enforced by an enclave; .* set secagg-protocol = 'enclave', or secagg-max-norm-unenf"),
        ({"max_norm": -1.0}, "must be a number of at least 0"),
        ({"max_norm_unenforced": float("nan")}, "must be a number of at least 0"),
        ({"max_norm_unenforced": 1.0, "compression": "scalar-8"}, "in which|where all values have one step"),
        (
            {"max_norm_unenforced": 1.0, "noise": 1.0, "norm": 1.0, "weighting": "uniform"},
            "is replaced by secagg-norm if",
        ),
    ],
)
def test_a_bound_that_would_do_nothing_is_refused_with_what_would(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidParameters, match=expected):
        SecAggSettings(**settings)


@pytest.mark.parametrize(
    ("sent", "norm", "expected"),
    [
        ({"w": SENT["w"], "n": np.array(3)}, 1.0, "name no tensors of integers"),
        (SENT, 0.00001, "leaves 14 values less than a step of 2.-16 each; raise it to 5.70932e-05"),
    ],
)
def test_what_no_norm_can_be_given_to_is_refused(sent: Any, norm: float, expected: str) -> None:
    settings = SecAggSettings(protocol="enclave", roster="r", max_norm=norm)
    update = SchemeChoice(settings, CLIENTS).parameters(sent, seed=bytes(32), epoch=1)
    with pytest.raises(InvalidParameters, match=expected):
        norms_in_steps(norm, update)


def test_each_round_shows_the_newest_head_of_the_roster(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An authority signs its roster daily; otherwise a server that runs for days would send one that clients refuse."""
    roster, key = folder / "keys" / ROSTER_FILE, load_authority(folder / "keys" / "authority.key")
    rounds, model = Rounds(enclave(folder)), {"w": np.zeros(4, np.float32)}

    def begun() -> int:
        task = rounds.begun(model, clients=CLIENTS, task="run", number=1, weighted_by="n")
        assert task.roster is not None
        return task.roster.standing.number

    first = begun()
    renew(roster, key)
    assert begun() > first
    before, text = begun(), roster.read_bytes()
    roster.write_bytes(text[:-9] + b"00000000\n")
    assert begun() == before
    assert "using the previous round's roster" in caplog.text
    # An older roster has a valid signature, and lists clients revoked since.
    roster.write_bytes(text)
    renew(roster, key)
    newest = begun()
    caplog.clear()
    roster.write_bytes(text)
    assert begun() == newest > before
    assert "does not extend" in caplog.text
