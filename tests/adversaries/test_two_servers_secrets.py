"""What two servers and their clients leave behind: nothing that opens an upload, and nothing that shows a secret."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest

from secagg.choices import SharingMode
from secagg.crypto.secret import Secret
from secagg.errors import Misuse, PeerError, Reason, SecAggError, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.two_servers import client as client_module
from secagg.protocols.two_servers import upload as upload_module
from secagg.protocols.two_servers.client import Client
from secagg.protocols.two_servers.point_functions.one_hot_proof import prove
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound
from tests.harness.made_secrets import Made, shows

halves: Any = upload_module
SETUP = IndexingSetup()
OF_THE_ROUND = {"one-hot round key", "nonce key", "commitment nonce"}
"""The last one is part of the server's share of the sum, and is opened with it."""
MODES = pytest.mark.parametrize(
    "setup",
    [
        SETUP,
        replace(SETUP, suite=Suite.HYBRID),
        replace(SETUP, depth=0),
        replace(SETUP, depth=2, mode=SharingMode.UNCHECKED_POINT_FUNCTIONS),
    ],
    ids=["checked", "hybrid", "without a tree", "unchecked"],
)


def is_namespace(found: Any) -> bool:
    return type(found) is dict and "__builtins__" in found


def reachable(holder: object) -> Iterator[Any]:
    """Return all that somebody holds, directly or not, but no code."""
    seen: dict[int, Any] = {id(holder): holder}
    todo: list[Any] = [holder]
    while todo:
        referents: list[Any] = gc.get_referents(todo.pop())
        for found in referents:
            is_code = isinstance(found, (type, ModuleType, FunctionType, MethodType))
            if id(found) not in seen and not is_code and not is_namespace(found):
                seen[id(found)] = found
                todo.append(found)
    yield from seen.values()


def left_in(holder: object, made_secrets: Made) -> set[str]:
    memory = list[bytes]()
    for held in reachable(holder):
        if type(held) in (bytes, bytearray, memoryview):
            memory.append(bytes(held))
        elif isinstance(held, np.ndarray):
            memory.append(held.tobytes())
        elif isinstance(held, Secret) and not held.is_wiped:
            memory.append(bytes(held.expose()))
    everything = b"|".join(memory)
    return {secret.kind for secret, held in made_secrets if held in everything}


def seeds_left(made_secrets: Made) -> list[str]:
    """Return the kinds of what opens an upload and was not overwritten; this test's own list keeps it alive."""
    seeds = {"upload seed", "point function seed", "one-hot seed", "ring_mask_key", "body_key"}
    return [secret.kind for secret, _ in made_secrets if secret.kind in seeds and not secret.is_wiped]


def lying(*args: Any) -> Any:
    """Prove, and say of the other server's part what is not so."""
    zero, one = prove(*args)
    return zero, replace(one, other_part=bytes(32))


# --- What is left -----------------------------------------------------------------------------------------------------


@MODES
def test_a_client_keeps_nothing_of_what_it_shared(setup: IndexingSetup, made_secrets: Made) -> None:
    made = InsecureIndexingRound(setup)
    of_servers = len(made_secrets)
    uploads = made.share(1)
    of_client = made_secrets[of_servers:]
    assert {secret.kind for secret, _ in of_client} >= {"upload seed", "point function seed", "body_key"}
    assert left_in((made.clients[0], uploads), of_client) == set()
    assert seeds_left(of_client) == []


@MODES
def test_nothing_of_an_upload_stays_at_a_server_that_took_it(setup: IndexingSetup, made_secrets: Made) -> None:
    made = InsecureIndexingRound.of(setup, 1, 2)
    for server in made.servers:
        held = left_in(server, made_secrets)
        assert "upload seed" not in held
        assert held & {"point function seed", "one-hot seed"}, "they are needed until the upload is taken"
    made.check()
    for server in made.servers:
        assert left_in(server, made_secrets) <= OF_THE_ROUND
    assert seeds_left(made_secrets) == []
    made.finish()
    for server in made.servers:
        assert left_in(server, made_secrets) <= OF_THE_ROUND


def test_nothing_of_an_upload_stays_at_a_server_that_rejected_it(
    made_secrets: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(halves, "prove", lying)
        made = InsecureIndexingRound.of(SETUP, 1, 2)
    made.check()
    for server in made.servers:
        assert set(server.rejected) == {ClientId(1), ClientId(2)}
        assert left_in(server, made_secrets) <= OF_THE_ROUND
    assert seeds_left(made_secrets) == []


@pytest.mark.parametrize("damage", ["body", "signature", "sealed_seeds", "second vote"])
def test_nothing_of_an_upload_stays_at_a_server_that_refused_it(damage: str, made_secrets: Made) -> None:
    made = InsecureIndexingRound(SETUP)
    upload = made.share(1)
    if damage == "second vote":
        made.clients[0] = made.new_client(2)
        made.deliver(made.share(1))
        made.check()
    seeds = len(made_secrets)
    for server, half in zip(made.servers, upload, strict=True):
        wrong: dict[str, Any] = {
            "body": bytes(len(half.body)),
            "signature": bytes(64),
            "sealed_seeds": (bytes(len(half.sealed_seeds[0])),) * 2,
        }
        altered = (
            replace(half, **{damage: wrong[damage]}) if damage in wrong else replace(half, body=bytes(len(half.body)))
        )
        with pytest.raises(PeerError):
            server.receive(altered.encode())
        assert left_in(server, made_secrets[:seeds]) <= OF_THE_ROUND
        assert [secret.kind for secret, _ in made_secrets[seeds:] if not secret.is_wiped] == []


@pytest.mark.parametrize("stage", ["collecting", "asked", "signed", "opened"])
def test_a_server_that_was_wiped_holds_and_releases_nothing(stage: str, made_secrets: Made) -> None:
    made = InsecureIndexingRound.of(SETUP, 1, 2, 3)
    late = made.share(4)
    commitments = b"", b""
    if stage == "asked":
        made.zero.answer(made.one.propose(made.one.waiting()))
    elif stage != "collecting":
        made.check()
        made.lists()
        if stage == "opened":
            commitments = made.agreed()
            made.zero.open(commitments[1])
            made.one.open(commitments[0])
    for server, half in zip(made.servers, late, strict=True):
        state = vars(server)
        held: object = state["_totals"]
        totals = vars(held)
        sums = list(totals["_vectors"])
        server.wipe()
        assert left_in(server, made_secrets) == set()
        assert not any(array.any() for array in sums)
        for step in (
            server.close,
            lambda server=server: server.agree(b""),
            lambda server=server: server.open(commitments[1 - server.server.index]),
            lambda server=server: server.combine(b""),
            lambda server=server, half=half: server.receive(half.encode()),
        ):
            with pytest.raises((Misuse, UnexpectedMessage)):
                step()


def test_a_server_that_was_wiped_has_no_sum_and_opens_nothing() -> None:
    made = InsecureIndexingRound.of(SETUP, 1, 2, checked=True)
    for server, half in zip(made.servers, made.share(3), strict=True):
        state = vars(server)
        held: object = state["_totals"]
        totals = vars(held)
        histograms = list(totals["_histograms"].values())
        upload = server.read(half.encode())
        server.wipe()
        assert len(histograms) == len(made.configuration.index_segments)
        for histogram in histograms:
            with pytest.raises(Misuse, match="was wiped"):
                histogram.rows()
        with pytest.raises(Misuse, match="was wiped"):
            state["_opener"].open(upload)


# --- What is shown ----------------------------------------------------------------------------------------------------


def joined(made: InsecureIndexingRound) -> Client:
    return made.clients[0].session(made.setup.payload_of(1), task=made.setup.task, round_number=7)


@MODES
def test_nothing_that_a_server_holds_shows_a_secret(setup: IndexingSetup, made_secrets: Made) -> None:
    made = InsecureIndexingRound.of(setup, 1, 2)
    made.check()
    made.upload(3)
    made.one.propose(made.one.waiting())
    things = [joined(made), *made.servers, made.configuration, made.clients[0].ledger]
    for server in made.servers:
        things += [held for held in reachable(server) if type(held).__module__.startswith("secagg.")]
    text = "".join(f"{thing!r}{thing}" for thing in things)
    assert {"IndexingServer", "RoundTotals", "RoundRules", "PointFunctionExchange"} <= {
        type(held).__name__ for held in things
    }
    assert [secret.kind for secret, held in made_secrets if shows(text, held)] == []
    assert [array for array in shares_at(made) if str(array.reshape(-1)[:4].tolist())[1:-1] in text] == []
    assert re.search(r"vectors|rows|lanes", text) is None


def shares_at(made: InsecureIndexingRound) -> Iterator[Any]:
    """Return shares that are not public: of the sums, and of an upload that waits."""
    for server in made.servers:
        state = vars(server)
        held: object = state["_totals"]
        totals = vars(held)
        yield from totals["_vectors"]
        yield from (histogram.rows() for histogram in totals["_histograms"].values())
        waiting: list[Any] = list(state["_pending"].values())
        for pending in waiting:
            yield from pending.vectors


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_what_holds_secrets_is_not_copied(attempt: Callable[[object], object]) -> None:
    made = InsecureIndexingRound.of(SETUP, 1, 2)
    made.check()
    made.upload(3)
    confined: list[Any] = [joined(made), made.clients[0].ledger]
    for server in made.servers:
        state = vars(server)
        [pending] = state["_pending"].values()
        confined += [server, state["_totals"], state["_opener"], vars(server)["_release"], pending.exchange]
    for thing in confined:
        with pytest.raises(Misuse) as caught:
            attempt(thing)
        assert caught.value.reason is Reason.SECRET_EXPOSURE


def test_no_log_shows_a_secret(
    made_secrets: Made, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.DEBUG), monkeypatch.context() as patch:
        patch.setattr(halves, "prove", lying)
        made = InsecureIndexingRound.of(SETUP, 1)
        patch.undo()
        made.upload(2, 3)
        made.check()
        made.finish()
    assert "rejects an upload of client/1" in caplog.text
    everything = "".join(f"{record.__dict__!r}" for record in caplog.records)
    assert [secret.kind for secret, held in made_secrets if shows(caplog.text + everything, held)] == []
    reasons = "".join(reason for server in made.servers for reason in server.rejected.values())
    assert not any(shows(reasons, held) for _, held in made_secrets)


@pytest.mark.parametrize("fault", ["body", "public_part", "rings", "proposal", "share"])
def test_no_traceback_shows_a_secret_even_with_its_locals(fault: str, made_secrets: Made) -> None:
    made = InsecureIndexingRound.of(SETUP, 1, 2)
    made.check()
    half = made.share(3)[1]
    if fault in {"body", "public_part"}:
        zeros: dict[str, Any] = {fault: bytes(len(getattr(half, fault)))}
        altered = replace(half, **zeros).encode()
        step: Callable[[], object] = lambda: made.one.receive(altered)  # noqa: E731 -- one of several
    elif fault == "rings":
        made.clients[3] = made.new_client(4)
        step = lambda: made.one.receive(with_a_bit_that_fills(made))  # noqa: E731
    elif fault == "proposal":
        step = lambda: made.zero.answer(made.one.propose(())[:-1])  # noqa: E731
    else:
        commitments = made.agreed()
        made.zero.open(commitments[1])
        wrong = bytearray(made.one.open(commitments[0]))
        wrong[-1] ^= 1
        step = lambda: made.zero.combine(bytes(wrong))  # noqa: E731
    with pytest.raises(SecAggError) as caught:
        step()
    frames = caught.tb.tb_next.tb_next if caught.tb.tb_next else None
    rendered = "".join(traceback.TracebackException(caught.type, caught.value, frames, capture_locals=True).format())
    assert " in " in rendered
    opened = {"commitment nonce"} if fault == "share" else set[str]()
    assert {secret.kind for secret, held in made_secrets if shows(rendered, held)} <= opened
    assert re.search(r"\barray\(", rendered) is None


def with_a_bit_that_fills(made: InsecureIndexingRound) -> bytes:
    """Let a client send ring segments whose last byte has a bit that no element has."""
    honest: Any = vars(client_module)["masked_rings"]

    def filled(*args: Any, **named: Any) -> list[bytes]:
        return [bytes(part)[:-1] + b"\xff" for part in honest(*args, **named)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "masked_rings", filled)
        return made.share(4)[1].encode()
