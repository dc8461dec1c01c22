"""What nobody can read: uploads are uniform, no message holds a secret, and no object shows one."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections import Counter
from functools import cache
from math import sqrt
from typing import Any

import numpy as np
import pytest

from secagg.choices import Topology
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.ring import low_bits
from secagg.crypto.secret import Confined, Secret
from secagg.errors import Misuse, Reason, SecAggError
from secagg.identifiers import ClientId, SessionContext
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.client import Client
from secagg.protocols.pairwise_mask.round2_masked_input import (
    MaskedInput,
    MaskedVector,
    adds_pairwise_mask,
    pairwise_mask_key,
    self_mask_key,
)
from secagg.protocols.pairwise_mask.session import ServerState
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, message_kind
from tests.harness.made_secrets import Made, recorded, shows
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup, same_sum, stored, update_of
from tests.harness.secrets_held import reachable

# --- Uniform uploads --------------------------------------------------------------------------------------------------

RUNS = 1500
CONTEXT = SessionContext(b"c" * 32)


def excess(counts: Counter[Any], cells: int) -> float:
    """Return by how much a chi-square statistic exceeds what uniform counts give, but once in a million.

    By Laurent and Massart, a chi-square variable with d degrees of freedom exceeds d + 2 sqrt(d x) + 2 x with
    probability e^-x at most; e^-14 is below 10^-6.
    """
    expected = counts.total() / cells
    missing = (cells - len(counts)) * expected
    statistic = missing + sum((count - expected) ** 2 / expected for count in counts.values())
    freedom, exponent = cells - 1, 14
    return statistic - (freedom + 2 * sqrt(freedom * exponent) + 2 * exponent)


def test_the_statistic_notices_a_small_bias() -> None:
    assert excess(Counter(dict.fromkeys(range(8), 500)), 8) < 0
    assert excess(Counter({value: 500 + 150 * (value == 0) for value in range(8)}), 8) < 0
    assert excess(Counter({value: 500 + 200 * (value == 0) for value in range(8)}), 8) > 0
    assert excess(Counter(dict.fromkeys(range(7), 571)), 8) > 0
    assert excess(Counter({0: 4000}), 8) > 0


@cache
def tiny_uploads(bits: int) -> list[dict[int, tuple[int, int]]]:
    """Mask one element of each of three clients in thousands of sessions.

    Return for each session and client the element under all masks, and without the self mask.
    """
    setup = SessionSetup(population=4, layout=Layout((RingSegment(bits, 1),)), mode=SecurityMode.SEMI_HONEST, dropped=0)
    configuration = setup.plan().configuration
    clients = [ClientId(value) for value in range(3)]
    inputs = dict(zip(clients, (0, 1, -1), strict=True))
    plain = dict[ClientId, MaskedVector]()
    for client in clients:
        values = np.array([inputs[client] & low_bits(bits)], dtype=np.uint8)
        plain[client] = MaskedVector.of_input(configuration, CONTEXT, Payload(setup.layout, (values,)))
    coins = InsecureSeededCoins(b"tiny")
    runs = list[dict[int, tuple[int, int]]]()
    for _ in range(RUNS):
        pairs = {(low, high): Secret.random("seed", 32, coins) for high in clients for low in clients if low < high}
        elements = dict[int, tuple[int, int]]()
        for client in clients:
            vector = MaskedVector(configuration, [part.copy() for part in plain[client].vectors])
            keys = [
                (adds_pairwise_mask(client, other), pairwise_mask_key(seed, low, high, CONTEXT, configuration))
                for (low, high), seed in pairs.items()
                if client in {low, high}
                for other in [high if client == low else low]
            ]
            vector.apply([key for adds, key in keys if adds], [key for adds, key in keys if not adds])
            without = int(vector.vectors[0][0])
            with Secret.random("seed", 32, coins) as seed:
                vector.apply([self_mask_key(seed, client, CONTEXT, configuration)], [])
            elements[client.value] = (int(vector.vectors[0][0]), without)
        runs.append(elements)
    return runs


@pytest.mark.parametrize("bits", [1, 3])
def test_uploads_are_jointly_uniform(bits: int) -> None:
    for one, other in ((0, 1), (0, 2), (1, 2)):
        joint = Counter((run[one][0], run[other][0]) for run in tiny_uploads(bits))
        assert excess(joint, 1 << 2 * bits) < 0
    if bits == 1:
        assert excess(Counter(tuple(run[client][0] for client in range(3)) for run in tiny_uploads(bits)), 8) < 0


@pytest.mark.parametrize("bits", [1, 3])
def test_with_every_self_mask_known_the_sum_is_known_and_nothing_else(bits: int) -> None:
    """After unmasking, the pairwise masks are all that hides an input: any two uploads are still uniform together."""
    for one, other in ((0, 1), (0, 2), (1, 2)):
        joint = Counter((run[one][1], run[other][1]) for run in tiny_uploads(bits))
        assert excess(joint, 1 << 2 * bits) < 0
    assert {sum(run[client][1] for client in range(3)) % (1 << bits) for run in tiny_uploads(bits)} == {0}


@pytest.mark.parametrize(("mode", "topology"), [(mode, topology) for mode in SecurityMode for topology in Topology])
def test_the_uploads_of_whole_sessions_are_uniform(mode: SecurityMode, topology: Topology) -> None:
    layout = Layout((RingSegment(2, 400), RingSegment(8, 400), RingSegment(64, 100)))
    counts: dict[int, Counter[int]] = {2: Counter(), 8: Counter(), 64: Counter()}
    columns = Counter[tuple[int, int]]()
    for number in range(8):
        setup = SessionSetup(
            population=5, corrupted=0, mode=mode, topology=topology, layout=layout, seed=number.to_bytes(2, "big")
        )
        zeros = Payload(layout, tuple(segment.ring.zeros(segment.length) for segment in layout.require_rings()))
        session = InsecurePairwiseSession(setup, payload_of=dict.fromkeys(setup.client_ids, zeros).__getitem__)
        session.reach(ServerState.AWAITING_UNMASKING_SHARES)
        uploads = list[MaskedVector]()
        for delivery in session.log:
            if delivery.kind is MessageKind.MASKED_INPUT:
                vector = MaskedVector(session.server.configuration)
                vector.add_packed(MaskedInput.decode(delivery.message, session.server.roster).packed[0])
                uploads.append(vector)
        for vector in uploads:
            counts[2].update(vector.vectors[0].tolist())
            counts[8].update(vector.vectors[1].tolist())
            counts[64].update((vector.vectors[2] >> np.uint64(56)).tolist())
        columns.update(zip(uploads[0].vectors[0].tolist(), uploads[1].vectors[0].tolist(), strict=True))
    assert excess(counts[2], 4) < 0
    assert excess(counts[8], 256) < 0
    assert excess(counts[64], 256) < 0
    assert excess(columns, 16) < 0


# --- No secret on the wire --------------------------------------------------------------------------------------------

PUBLIC_KINDS = {"session context", "check_key"}
"""What is public and stands in a ``Secret`` only because keys are handed over in one."""
LAYOUT = Layout((RingSegment(32, 24), RingSegment(13, 40), RingSegment(64, 9)))


def of_kind(made: Made, *kinds: str) -> set[bytes]:
    return {held for secret, held in made if secret.kind in kinds}


def pieces(made: Made) -> set[tuple[str, bytes]]:
    whole = [(secret.kind, held) for secret, held in made if secret.kind not in PUBLIC_KINDS]
    return {(kind, piece) for kind, held in whole for piece in (held, held[:16], held[-16:])}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Made:
    return recorded(monkeypatch)


@cache
def played(mode: SecurityMode, topology: Topology, suite: Suite) -> tuple[InsecurePairwiseSession, Made]:
    """Play a session in which one client drops out after sharing."""
    setup = SessionSetup(population=7, mode=mode, topology=topology, suite=suite, layout=LAYOUT)
    with pytest.MonkeyPatch.context() as patched:
        collected = recorded(patched)
        session = InsecurePairwiseSession(setup)
        session.reach(ServerState.AWAITING_MASKED_INPUTS)
        session.drop(session.client_ids[2])
        total = session.finish()
    assert same_sum(total, session.sum_of(client for client in session.client_ids if client != session.client_ids[2]))
    return session, collected


CASES = [(mode, topology, suite) for mode in SecurityMode for topology in Topology for suite in Suite]


@pytest.mark.parametrize(("mode", "topology", "suite"), CASES)
def test_no_message_holds_a_secret_before_it_is_due(mode: SecurityMode, topology: Topology, suite: Suite) -> None:
    session, collector = played(mode, topology, suite)
    kinds = {secret.kind for secret, _ in collector}
    assert {"channel_root", "mask_root", "self_mask_seed", "x25519_private_key", "self_mask_key", "shares"} <= kinds
    assert {"pairwise_seed", "pairwise_mask_key", "share"} <= kinds
    assert ("mlkem768_seed" in kinds) == (suite is Suite.HYBRID)
    by_round = dict[MessageKind, bytes]()
    for delivery in session.log:
        by_round[delivery.kind] = by_round.get(delivery.kind, b"") + delivery.message
    shown = by_round.pop(MessageKind.UNMASKING_SHARES)
    known = pieces(collector)
    found = {(kind, message.name) for kind, data in known for message, wire in by_round.items() if data in wire}
    assert found == set()
    due = {kind for kind, data in known if data in shown}
    # Shares come out one at a time, never the pair, and seeds of edges to the client that dropped out.
    assert {kind for kind in due if not kind.startswith("share")} == (
        {"pairwise_seed"} if suite is Suite.HYBRID else set()
    )
    assert not any(pair in shown for pair in of_kind(collector, "shares"))


@pytest.mark.parametrize(("mode", "topology", "suite"), CASES)
def test_no_client_shows_both_shares_of_a_pair(mode: SecurityMode, topology: Topology, suite: Suite) -> None:
    session, collector = played(mode, topology, suite)
    answers = [delivery.message for delivery in session.log if delivery.kind is MessageKind.UNMASKING_SHARES]
    pairs = of_kind(collector, "shares")
    assert len(pairs) == session.setup.population * session.server.roster.graph.degree
    for pair in pairs:
        halves = [sum(half in answer for answer in answers) for half in (pair[:32], pair[32:])]
        assert sorted(halves) in ([0, 0], [0, 1])
    contributors = session.setup.population - 1
    assert sum(pair[:32] in b"".join(answers) for pair in pairs) == session.server.roster.graph.degree
    assert sum(pair[32:] in b"".join(answers) for pair in pairs) <= contributors * session.server.roster.graph.degree


@pytest.mark.parametrize(("mode", "topology", "suite"), CASES)
def test_no_message_holds_an_input(mode: SecurityMode, topology: Topology, suite: Suite) -> None:
    session, _ = played(mode, topology, suite)
    wire = b"".join(delivery.message for delivery in session.log)
    for client, payload in session.payloads.items():
        for segment, values in zip(LAYOUT.require_rings(), payload.values, strict=True):
            for form in (values.tobytes(), segment.ring.pack(values), values.byteswap().tobytes()):
                for start in range(0, len(form) - 11, 4):
                    assert form[start : start + 12] not in wire, client


def test_a_snapshot_holds_no_secret_before_the_last_round(collector: Made) -> None:
    for mode in SecurityMode:
        session = InsecurePairwiseSession(SessionSetup(population=6, mode=mode, suite=Suite.HYBRID))
        while session.server.state is not ServerState.AWAITING_UNMASKING_SHARES:
            session.step()
            snapshot = stored(session.server)
            known = pieces(collector)
            assert known
            assert {kind for kind, data in known if data in snapshot} == set()


# --- No secret in an object -------------------------------------------------------------------------------------------


def assert_shows_nothing(text: str, collector: Made) -> None:
    known = {(secret.kind, held) for secret, held in collector if secret.kind not in PUBLIC_KINDS}
    assert [kind for kind, held in known if shows(text, held)] == []


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("mode", SecurityMode)
def test_no_object_of_a_client_shows_a_secret(mode: SecurityMode, suite: Suite, collector: Made) -> None:
    session = InsecurePairwiseSession(SessionSetup(population=5, corrupted=0, mode=mode, suite=suite))
    names = set[str]()
    while True:
        client = session.clients[session.client_ids[0]]
        objects = [item for item in reachable(client) if not isinstance(item, InsecureSeededCoins)]
        for item in objects:
            names.add(type(item).__name__)
            text = f"{item!r} {item!s} {item}" + "".join(traceback.format_exception(SecAggErrorWith(item)))
            assert_shows_nothing(text, collector)
        if session.server.state is ServerState.AWAITING_UNMASKING_SHARES:
            break
        session.step()
    assert {"Client", "PairwiseMember", "LazyUpdate", "Advertised", "Shared", "Masked", "OwnKeys", "MaskKeys"} <= names
    assert ("Confirmed" in names) == ("SigningKey" in names) == (mode is SecurityMode.ACTIVE)


class SecAggErrorWith(SecAggError):
    """An error that somebody puts an object into."""

    def __init__(self, item: object) -> None:
        super().__init__(f"{item}", reason=Reason.INTERNAL_ERROR)


@pytest.mark.parametrize("mode", SecurityMode)
def test_what_holds_a_secret_is_neither_pickled_nor_copied(mode: SecurityMode) -> None:
    session = InsecurePairwiseSession(SessionSetup(population=5, corrupted=0, mode=mode))
    checked = set[str]()
    while True:
        client = session.clients[session.client_ids[0]]
        for item in reachable(client):
            holds = any(isinstance(below, Confined) for below in reachable(item))
            if not holds:
                continue
            checked.add(type(item).__name__)
            takes: list[Any] = [pickle.dumps, copy.deepcopy, *([copy.copy] if isinstance(item, Confined) else [])]
            for take in takes:
                with pytest.raises(Misuse) as caught:
                    take(item)
                assert caught.value.reason is Reason.SECRET_EXPOSURE
        if session.server.state is ServerState.AWAITING_UNMASKING_SHARES:
            break
        session.step()
    assert {"Client", "LazyUpdate", "Advertised", "Shared", "Masked", "OwnKeys", "MaskKeys", "Secret"} <= checked


def test_an_input_shows_nothing_of_itself() -> None:
    layout = Layout((RingSegment(64, 3),))
    payload = Payload(layout, (np.array([123456789, 987654321, 192837465], dtype=np.uint64),))
    own = update_of(payload)
    for text in (repr(own), str(own), repr(payload), "".join(traceback.format_exception(SecAggErrorWith(own)))):
        assert not any(number in text for number in ("123456789", "987654321", "192837465"))


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("mode", SecurityMode)
def test_a_traceback_with_all_its_variables_shows_no_secret(mode: SecurityMode, suite: Suite, collector: Made) -> None:
    """A platform's error reports print local variables; each round is made to fail at its end, and inside."""
    kinds = {
        MessageKind.ADVERTISED_KEYS: "round1_share_keys.EncryptedShares",
        MessageKind.DELIVERED_SHARES: "round2_masked_input.MaskedInput",
        MessageKind.UNMASKING_REQUEST: "rounds3_4_unmasking.AnsweredFor.by",
    }
    setup = SessionSetup(population=5, corrupted=0, mode=mode, suite=suite)
    reports = 0
    for kind in (*kinds, None):
        session = InsecurePairwiseSession(setup)
        for _ in range(5):
            for outgoing in session.pending:
                client, message = session.clients[outgoing.receiver], outgoing.message
                spoilt = message if kind is not None else message[:-1] + bytes([message[-1] ^ 1])
                with pytest.MonkeyPatch.context() as patched:
                    if kind is not None and message_kind(message) is kind:
                        patched.setattr(f"secagg.protocols.pairwise_mask.{kinds[kind]}", _fails)
                    text = _report(client, spoilt)
                if text:
                    reports += 1
                    assert_shows_nothing(text, collector)
            if session.server.state is ServerState.AWAITING_UNMASKING_SHARES:
                break
            fresh = InsecurePairwiseSession(setup)
            fresh.reach(_following(session.server.state, mode))
            session = fresh
    assert reports >= 20


def _following(state: ServerState, mode: SecurityMode) -> ServerState:
    states = [
        s for s in ServerState if mode is SecurityMode.ACTIVE or s is not ServerState.AWAITING_SURVIVOR_SIGNATURES
    ]
    return states[states.index(state) + 1]


def _fails(*_: Any, **__: Any) -> Any:
    raise OSError("the disk is full")


def _report(client: Client, message: bytes) -> str:
    try:
        client.answer(message)
    except Exception as error:  # noqa: BLE001 -- whatever it is, it is printed
        return "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    return ""
