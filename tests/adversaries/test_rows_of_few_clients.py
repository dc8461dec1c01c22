"""A host that looks for rows, such as embeddings of words, that only one client has changed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import secagg
from secagg.choices import Accumulation, ReleaseForm
from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.contract.decoder import Aggregate
from secagg.contract.layout import RowSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration
from secagg.protocols.enclave.trusted.messages import BufferRelease
from secagg.quick import in_process
from secagg.quick.in_process import simulated
from secagg.quick.model_session import Session
from secagg.session.registry import ProtocolName, find, names
from secagg.session.roles import LazyUpdate, Released, Subject, Update
from secagg.session.run import Measured, run
from tests.harness.enclave_buffers import NOW, EnclaveSetup, InsecureEnclaveSession
from tests.harness.session_worlds import SETTINGS, client_ids

ROWS, WIDTH, LEAST, CLIENTS = 5, 3, 3, 6
LAYOUT = Layout((RingSegment(16, 4), RingSegment(20, ROWS * WIDTH), RowSegment(ROWS, least=LEAST)))
OTHERS = sorted(set(names()) - {"enclave"})
Touches = npt.NDArray[np.bool_]


def payload_of(layout: Layout, touches: Sequence[Touches], seed: int) -> Payload:
    """Return values with whole rows of zeros, and one matrix of touches for each row segment."""
    generator, left, values = np.random.default_rng(seed), list(touches), list[Any]()
    for segment, following in zip(layout.segments, (*layout.segments[1:], None), strict=True):
        if isinstance(segment, RowSegment):
            values.append(left.pop(0).astype(segment.ring.word))
            continue
        drawn = generator.integers(1, 1 << min(segment.ring.modulus_bits, 62), segment.length)
        if isinstance(following, RowSegment):
            drawn.reshape(following.blocks, -1)[~left[0]] = 0
        values.append(drawn.astype(segment.ring.word))
    return Payload(layout, tuple(values))


def setup_of(layout: Layout, **changes: Any) -> EnclaveSetup:
    return EnclaveSetup(layout=layout, codebooks=(), minimum_cohort=2, **changes)


def uploaded(setup: EnclaveSetup, payloads: Sequence[Payload]) -> InsecureEnclaveSession:
    session = InsecureEnclaveSession(setup)
    session.host.open_buffer(0, bytes(32))
    for number, payload in enumerate(payloads, 1):
        session.host.receive(session.seal(number, payload=payload).encode())
    return session


# --- The sum ----------------------------------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_row_of_enough_clients_is_exact_and_any_other_is_zeros(data: st.DataObject) -> None:
    segments = list[Any]()
    for _ in range(data.draw(st.integers(1, 3))):
        blocks, width, bits = (data.draw(st.integers(1, most)) for most in (9, 4, 64))
        segments.append(RingSegment(bits, blocks * width))
        if data.draw(st.booleans()) or len(segments) == 1:
            segments.append(RowSegment(blocks, least=data.draw(st.integers(2, 5))))
    layout, clients = Layout(tuple(segments)), data.draw(st.integers(2, CLIENTS))
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 32)))
    rows = [segment for segment in segments if isinstance(segment, RowSegment)]
    share = data.draw(st.sampled_from((0.2, 0.6, 1.0)))
    touches = [[generator.random(each.blocks) < share for each in rows] for _ in range(clients)]
    payloads = [payload_of(layout, each, number) for number, each in enumerate(touches)]
    setup = setup_of(layout, accumulation=data.draw(st.sampled_from(Accumulation)))
    session = uploaded(setup, payloads)
    aggregate, receipt = session.host.release()
    assert EnclaveConfiguration.decode(session.configuration.encode(), ()) == session.configuration
    assert aggregate.contributors == receipt.contributors == clients
    for place, segment in enumerate(segments):
        if isinstance(segment, RowSegment):
            continue
        due = segment.ring.sum((payload.values[place] for payload in payloads), segment.length)
        if (following := dict(enumerate(segments)).get(place + 1)) and isinstance(following, RowSegment):
            number = [each for each, one in enumerate(segments) if isinstance(one, RowSegment)].index(place + 1)
            enough = np.sum([each[number] for each in touches], axis=0) >= following.least
            due.reshape(following.blocks, -1)[~enough] = 0
            assert aggregate.values[place + 1].tolist() == enough.tolist()
        assert aggregate.values[place].tolist() == due.tolist()


def test_a_row_that_one_client_alone_touched_does_not_leave_the_enclave() -> None:
    """Only client 1 changed row 0, and two changed row 1; the host's data about both is uniform."""
    touches = [np.array([number == 0, number < 2, True, True, False]) for number in range(CLIENTS)]
    payloads = [payload_of(LAYOUT, [each], number) for number, each in enumerate(touches)]
    session = uploaded(setup_of(LAYOUT), payloads)
    masked = vars(session.host.server)["_sums"][1].copy()
    release = BufferRelease.decode(session.enclave.release())
    masks = Aggregate.decode(release.aggregate, session.configuration.released).values[1]
    due = LAYOUT.segments[1].ring.sum((payload.values[1] for payload in payloads), ROWS * WIDTH)
    opened = LAYOUT.segments[1].ring.subtract(masked, masks).reshape(ROWS, WIDTH)
    assert opened[2:4].tolist() == due.reshape(ROWS, WIDTH)[2:4].tolist()
    assert not (opened == due.reshape(ROWS, WIDTH))[[0, 1, 4]].any()
    assert not masks.reshape(ROWS, WIDTH)[[0, 1, 4]].any()
    aggregate, _ = session.host.release()
    assert not aggregate.values[1].reshape(ROWS, WIDTH)[[0, 1, 4]].any()
    assert aggregate.values[2].tolist() == [0, 0, 1, 1, 0]


def test_a_release_tells_of_a_withheld_row_only_that_it_is_withheld() -> None:
    """Two clients or none: with the same seeds every byte of both releases would be the same."""

    def marks(first: int) -> list[Any]:
        touches = [np.array([number < first, True, True, True, True]) for number in range(CLIENTS)]
        session = uploaded(
            setup_of(LAYOUT), [payload_of(LAYOUT, [each], number) for number, each in enumerate(touches)]
        )
        released = session.host.release()[0]
        assert {type(segment) for segment in released.layout.segments} == {RingSegment}
        return [released.values[1][:WIDTH].tolist(), released.values[2].tolist()]

    assert marks(0) == marks(2) == [[0] * WIDTH, [0, 1, 1, 1, 1]]
    assert marks(3)[1] == [1] * ROWS


def test_a_withheld_row_is_zeros_where_masked_values_are_rounded() -> None:
    layout = Layout((RingSegment(16, ROWS * WIDTH, fine_bits=4), RowSegment(ROWS, least=LEAST)))
    touches = np.array([True, False, False, True, True])
    session = uploaded(setup_of(layout), [payload_of(layout, [touches], number) for number in range(4)])
    released = session.host.release()[0].values
    assert released[1].tolist() == touches.tolist()
    assert not released[0].reshape(ROWS, WIDTH)[~touches].any()


# --- What a client sends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("touched", [range(0), range(1), range(ROWS)])
def test_an_upload_is_as_long_whatever_was_touched(touched: range) -> None:
    touches = np.isin(np.arange(ROWS), list(touched))
    session = InsecureEnclaveSession(setup_of(LAYOUT))
    one = session.seal(1, payload=payload_of(LAYOUT, [touches], 1))
    nothing = session.seal(2, payload=Payload(LAYOUT, tuple(each.ring.zeros(each.length) for each in LAYOUT.segments)))
    assert len(one.encode()) == len(nothing.encode())
    assert len(one.shortened()) == len(nothing.shortened())


# --- The client's own floor -------------------------------------------------------------------------------------------

MODEL = {"bias": np.zeros(2), "words": np.zeros((4, 3))}


def planned(at_least: int | None = LEAST, **more: Any) -> Session[Any]:
    options: dict[str, Any] = {"clients": CLIENTS, "clip": 1.0, "bits": 12, "protocol": "enclave", "at_least": at_least}
    return Session.for_model(MODEL, **(options | more))


@pytest.mark.parametrize("offered", [2, 4, None])
def test_a_host_with_another_floor_gets_no_update(offered: int | None) -> None:
    theirs, mine, made = planned(offered, corrupted=0), planned(LEAST), list[int]()
    subjects = [each.subject(task=b"t", round_number=1, model=MODEL) for each in (theirs, mine)]

    def make() -> Update:
        made.append(1)
        raise AssertionError

    with closing(theirs.simulate(coins=SystemCoins(), clock=lambda: NOW)) as world:
        session = world.open(subjects[0], frozenset(map(ClientId, range(CLIENTS))))
        client = world.member(ClientId(1)).join(subjects[1], LazyUpdate(make))
        message = session.message_to(ClientId(1))
        assert message is not None
        with pytest.raises(InvalidParameters, match="row minimum differ") as caught:
            client.answer(message)
    assert caught.value.reason is Reason.BELOW_FLOOR
    assert not made
    assert not client.ledger.seals  # type: ignore[attr-defined]


def test_a_histogram_of_touches_is_another_layout() -> None:
    """A host that declares the touches as indices could count them one by one, for clients that accept histograms."""
    histograms = Layout((*LAYOUT.segments[:-1], IndexSegment(2, ROWS)))
    theirs = InsecureEnclaveSession(setup_of(histograms, form=ReleaseForm.HISTOGRAM))
    client = theirs.new_client(1, about=replace(theirs.subject, layout=LAYOUT))
    with pytest.raises(InvalidParameters, match="row minimum differ"):
        client.admit(theirs.verified(), NOW)


# --- What is no floor -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layout": Layout((RowSegment(2, least=2), RingSegment(8, 2)))}, "must follow a ring segment"),
        ({"layout": Layout((RingSegment(8, 5), RowSegment(2, least=2)))}, "must follow a ring segment"),
        ({"layout": Layout((RingSegment(8, 2), RowSegment(2, least=2), RowSegment(2, least=2)))}, "must follow a ring"),
        ({"layout": Layout((*LAYOUT.segments, IndexSegment(4, 2)))}, "can only be combined with ring segments"),
    ],
)
def test_an_enclave_that_would_tell_the_few_of_a_row_apart_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidParameters, match=expected):
        replace(InsecureEnclaveSession(setup_of(LAYOUT)).configuration, **changes)


def test_rows_are_not_withheld_next_to_noise_that_does_not_cover_them() -> None:
    noised = Layout((RingSegment(30, ROWS * WIDTH),))
    session = InsecureEnclaveSession(setup_of(noised, noise_multiplier=Fraction(1), l2_bounds=(9,), capacity=CLIENTS))
    with pytest.raises(InvalidParameters, match="cannot be combined with noise"):
        replace(session.configuration, layout=Layout((*noised.segments, RowSegment(ROWS, least=LEAST))))


def test_older_models_are_taken() -> None:
    made = replace(InsecureEnclaveSession(setup_of(LAYOUT)).configuration, oldest=1)
    assert made.has_rows


@pytest.mark.parametrize("protocol", OTHERS)
def test_other_protocols_refuse_with_the_reason(protocol: ProtocolName) -> None:
    with pytest.raises(InvalidParameters, match=r"reveals the whole sum to its server.*protocol='enclave'"):
        planned(protocol=protocol)


@pytest.mark.parametrize("name", [name for name, each in SETTINGS.items() if each[0] in OTHERS])
def test_other_protocols_open_no_session_with_rows(name: str) -> None:
    protocol, settings_of, count = SETTINGS[name][:3]
    subject = Subject(task=b"t", round_number=0, layout=LAYOUT, capacity=100, model_digest=bytes(32))
    with (
        closing(find(protocol).simulate(settings_of, coins=SystemCoins(), clock=lambda: NOW)) as world,
        pytest.raises(InvalidParameters, match="segment 2 "),
    ):
        world.open(subject, frozenset(client_ids(count)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"at_least": 1}, "at_least must be an integer in 2..6"),
        ({"at_least": 7}, "at_least must be an integer in 2..6"),
        ({"at_least": 2}, "set at_least=3, or corrupted=0"),
        ({"at_least": 4, "corrupted": 3}, "set at_least=5, or corrupted=2"),
        ({"rows": "word"}, "rows has the pattern 'word'"),
        ({"rows": ["words", "lost"]}, "rows has the pattern 'lost'"),
        ({"only": "bias"}, "no tensor has two dimensions"),
        ({"at_least": None, "rows": "words"}, "rows only applies together with at_least"),
    ],
)
def test_what_hides_nobody_in_a_row_is_not_planned(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidParameters, match=expected):
        planned(**given)


# --- A model ----------------------------------------------------------------------------------------------------------


def released_of(plan: Session[Any], updates: Sequence[Any]) -> Released:
    subject, coins = plan.subject(task=b"t", round_number=1, model=MODEL), SystemCoins()
    clients = [ClientId(number) for number in range(len(updates))]
    with closing(plan.simulate(coins=coins, clock=lambda: NOW)) as world:
        joined = (
            world.member(client).join(subject, plan.update(update, subject=subject, coins=coins))
            for client, update in zip(clients, updates, strict=True)
        )
        return run(Measured(world.open(subject, frozenset(clients))), joined)


def changing(*rows: int) -> Any:
    words = np.zeros((4, 3))
    words[list(rows), 1] = 0.5
    return {"bias": np.full(2, 0.25), "words": words}


@pytest.mark.parametrize(("rows", "bias"), [((), [True] * 2), ("words", [True] * 2), (["*"], [True, False])])
def test_a_model_comes_back_without_the_rows_of_few(rows: Any, bias: list[bool]) -> None:
    plan = planned(rows=rows)
    updates = [changing(*range(number)) for number in (4, 3, 3, 1, 1, 0)]
    if not all(bias):
        for update in updates[2:]:
            update["bias"][1] = 0.0
    released = released_of(plan, updates)
    marks = plan.released_rows(released)
    assert {name: mark.tolist() for name, mark in marks.items()} == {
        **({"bias": bias} if rows == ["*"] else {}),
        "words": [True, True, True, False],
    }
    due = np.sum([update["words"] for update in updates], axis=0)
    due[3] = 0
    total, mean = plan.total(released), plan.mean(released)
    assert np.abs(total["words"] - due).max() <= CLIENTS * plan.step
    assert not total["words"][3].any()
    assert np.abs(total["bias"] - 1.5 * np.array(bias)).max() <= CLIENTS * plan.step
    assert np.abs(mean["words"] - due / CLIENTS).max() <= plan.step


def test_a_sum_of_other_rows_is_not_decoded() -> None:
    released, other = released_of(planned(), [changing(0)] * CLIENTS), planned(rows=("words", "bias"))
    for read in (other.total, other.released_rows, planned(None).total):
        with pytest.raises(Misuse, match="a different layout"):
            read(released)


# --- Heavy hitters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["enclave", "pairwise"])
def test_counts_of_rare_strings_do_not_leave_an_enclave(
    protocol: ProtocolName, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set[int]()

    def watched(*given: Any) -> Any:
        released, measured = simulated(*given)
        seen.update(released.aggregate.values[0].tolist())
        return released, measured

    monkeypatch.setattr(in_process, "simulated", watched)
    texts = ["cat", "cat", "cats", "dog", "cat", "dog", "owl", "cat"]
    assert secagg.heavy_hitters(texts, least=3, protocol=protocol) == {"cat": 4}
    assert bool(seen & {1, 2}) is (protocol != "enclave")
