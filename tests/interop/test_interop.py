"""The interop suite, run against the library: every case, message and refusal, with its reason.

The generator recomputes the library's results for small cases, and a test compares them with the committed ones; here
the receiving side runs small cases: decoders, checks, reconstruction.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg import wire
from secagg.cli.shared import plan_of
from secagg.crypto import key_derivation
from secagg.crypto.labels import Label
from secagg.crypto.merkle import recover_root
from secagg.crypto.public_keys import X25519PublicKey
from secagg.crypto.reconstruction import reconstruct
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import Share
from secagg.errors import Reason, SecAggError
from secagg.identifiers import ClientId
from secagg.protocols.one_message.lattice import Sampler
from secagg.protocols.one_message.requests import Receipt
from secagg.protocols.pairwise_mask.configuration import decode_clients
from secagg.session.certificates import Certificate, SigningKey, VerifiedIdentity
from secagg.session.identities import load_identity
from secagg.transport.description import SessionDescription
from secagg.transport.proof import read_header
from secagg.wire import MessageKind, message_kind
from tests.harness.recorded_coins import InsecureRecordedCoins
from tests.protocols.pairwise_mask.test_vectors import Replay
from tests.vectors import generate, generate_interop, one_message_play

FOLDER = generate_interop.FOLDER
LEAST_REFUSALS = 300
MOST_BYTES = 3_000_000
Case = dict[str, Any]


def files_of(root: Path) -> list[str]:
    """Return the files of all forms that this version supports, each as FORM/STEP/NAME."""
    return sorted(
        f"{form}/{file.parent.name}/{file.stem}" for form in wire.FORMS for file in (root / str(form)).glob("*/*.json")
    )


FILES = files_of(FOLDER.parent)


@cache
def read(name: str) -> Case:
    found: Case = json.loads((FOLDER.parent / f"{name}.json").read_text(encoding="utf-8"))
    form = name.partition("/")[0]
    for case in found.get("cases", []):
        if "before" in case:
            case["session"] = f"{form}/{case['session']}"
    found["form"] = int(form)
    if "messages" in found:
        found["messages"] = {said: "".join(part for _, part in parts) for said, parts in found["messages"].items()}
        found["operations"] = found["steps"]
    return found


def files_in(*steps: str) -> list[str]:
    return [name for name in FILES if name.split("/", 1)[1].startswith(steps)]


def of(*names: str) -> list[Any]:
    found = files_in(*names)
    return [pytest.param(case, id=f"{name}-{at}") for name in found for at, case in enumerate(read(name)["cases"])]


def secret(text: str) -> Secret:
    return Secret("of the kit", bytes.fromhex(text))


def shown(value: Secret) -> str:
    return bytes(value.expose()).hex()


def unhex(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def reason_of(error: pytest.ExceptionInfo[SecAggError]) -> Reason:
    return error.value.reason


# --- Small cases ------------------------------------------------------------------------------------------------------


def play_headers(case: Case) -> None:
    assert message_kind(bytes.fromhex(case["header"])) is MessageKind(case["kind"])


def play_id_lists(case: Case) -> None:
    assert decode_clients(bytes.fromhex(case["bytes"])) == tuple(ClientId(int(one)) for one in case["ids"])


def play_trees(case: Case) -> None:
    leaves, nodes = unhex(case["leaves"]), unhex(case["nodes"])
    known: list[int] = case["known"]
    assert recover_root(len(leaves), {at: leaves[at] for at in known}, nodes).hex() == case["root"]


def play_x25519(case: Case) -> None:
    if case["verdict"] == "ok":
        X25519PublicKey(bytes.fromhex(case["key"]))
        return
    with pytest.raises(SecAggError) as refused:
        X25519PublicKey(bytes.fromhex(case["key"]))
    assert reason_of(refused) == case["verdict"]


def play_certificates(case: Case, tmp_path: Path) -> None:
    identity = load_identity(written(case["key_file"], tmp_path))
    assert identity.client == ClientId(int(case["id"]))
    public, grant = bytes.fromhex(case["public"]), bytes.fromhex(case["certificate"])
    assert identity.certificate == Certificate(identity.client, public, grant)
    assert identity.authority.public_key == SigningKey(secret(case["authority_seed"])).public_key


def written(text: str, folder: Path) -> Path:
    path = folder / "client.key"
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return path


def play_packing(case: Case) -> None:
    unpacked = Ring(case["bits"]).unpack(bytes.fromhex(case["packed"]), len(case["values"]))
    assert list(map(str, unpacked.tolist())) == case["values"]


def play_shares(case: Case) -> None:
    last = [Share(at, secret(share)) for at, share in enumerate(case["shares"], 1)][-case["threshold"] :]
    assert shown(reconstruct(last, threshold=case["threshold"])) == case["secret"]


def play_codes(case: Case) -> None:
    plan = plan_of("pairwise", json.loads(case["terms"]))
    for at in range(8):
        coins = InsecureRecordedCoins(generate_interop.drawn("rounding", at))
        payload = plan.encode(np.array([float(value) for value in case["values"]], np.float32), coins)
        for made, right in zip(payload.values[0].tolist(), case["elements"], strict=True):
            assert str(made) in right


def play_proofs(case: Case) -> None:
    client, proof = read_header(case["authorization"]) or pytest.fail("it was not read")
    identity = VerifiedIdentity(client, SigningKey(secret(case["seed"])).public_key)
    identity.verify(proof[1:], Label.HTTP_PROOF, case["description"].encode(), client.encode(), proof[:1])
    assert str(client.value) == case["id"]


def play_cards(case: Case) -> None:
    description = SessionDescription.decode(case["description"].encode())
    assert (str(description.round_number), description.terms) == (case["round"], json.loads(case["terms"]))


PLAYS = {name.removeprefix("play_"): made for name, made in globals().items() if name.startswith("play_")}


@pytest.mark.parametrize("name", [name for name in FILES if name.rpartition("/")[2] in PLAYS])
def test_every_small_case_is_taken(name: str, tmp_path: Path) -> None:
    play = PLAYS[name.rpartition("/")[2]]
    for case in read(name)["cases"]:
        play(case, tmp_path) if play is play_certificates else play(case)


# --- Sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", files_in("pairwise/"))
def test_a_session_of_pairwise_masks(name: str) -> None:
    replay = Replay(read(name))
    for step in read(name)["steps"]:
        replay.perform(step)
    assert replay.result == read(name)["result"]


@pytest.mark.parametrize("name", files_in("one_message/"))
def test_a_sum_of_one_message(name: str) -> None:
    vector = read(name)
    play = one_message_play.Play(vector)
    play.messages["record"] = play.record.encode()
    for step in vector["steps"]:
        play.perform(step)
    assert {said: message.hex() for said, message in play.messages.items()} == vector["messages"]
    assert play.result is not None
    assert one_message_play.result_of(play.result) == vector["result"]
    for client in vector["computed"]["clients"].values():
        for what, name_of in (("secret", Label.ONE_MESSAGE_SECRET), ("error", Label.ONE_MESSAGE_NOISE)):
            key = key_derivation.expand("key of noise", 32, secret(client["draws"][1]), name_of)
            assert Sampler(key).draw(len(client[what]) // 2).tobytes().hex() == client[what]


# --- Refusals ---------------------------------------------------------------------------------------------------------


def altered(case: Case, message: bytes) -> bytes:
    if "change" not in case:
        return message
    change = case["change"]
    at, removed = change["at"], bytes.fromhex(change["removes"])
    assert message[at : at + len(removed)] == removed
    return message[:at] + bytes.fromhex(change["inserts"]) + message[at + len(removed) :]


def taken_by(case: Case, steps: list[Case]) -> Case:
    """Return the step in which a refusal's message is processed by the party that refuses it."""
    [step] = [one for one in steps if one.get("message") == case["takes"] and one["role"] == case["taker"]]
    return {**step, **({"from": case["sender"]} if "sender" in case else {})}


@pytest.mark.parametrize("case", of("refusals/pairwise_client", "refusals/pairwise_server"))
def test_a_refusal_in_a_session_of_pairwise_masks(case: Case) -> None:
    vector = read(case["session"])
    replay, steps = Replay(vector), vector["steps"]
    for step in steps[: case["before"]]:
        replay.perform(step)
    failing: list[Case] = []
    if "takes" in case:
        changed = altered(case, bytes.fromhex(vector["messages"][case["takes"]])).hex()
        failing.append({name: value for name, value in taken_by(case, steps).items() if name != "sends"})
        failing[0]["message"] = changed
    if "shows" in case:
        failing += steps[case["resumes"] : case["shows"] + 1]
    for step in failing[:-1]:
        replay.perform(step)
    with pytest.raises(SecAggError) as refused:
        replay.perform(failing[-1])
    assert reason_of(refused) == case["reason"]
    if "change" not in case or "shows" in case:
        return
    good = taken_by(case, steps)
    if case["then"] == "continues":
        replay.perform(good)
        return
    with pytest.raises(SecAggError) as late:
        replay.perform(good)
    assert reason_of(late) == "wrong_kind"


@pytest.mark.parametrize(
    "case", of("refusals/one_message_client", "refusals/one_message_server", "refusals/one_message_holder")
)
def test_a_refusal_in_a_sum_of_one_message(case: Case) -> None:
    vector = read(case["session"])
    play = one_message_play.Play(vector)
    play.messages.update({name: bytes.fromhex(message) for name, message in vector["messages"].items()})
    good = play.messages[case["takes"]]
    bad = altered(case, good)
    if case["taker"].startswith("client"):
        session = play.session(ClientId(int(case["taker"].rpartition("/")[2])))
        with pytest.raises(SecAggError) as refused:
            session.answer(bad)
        assert reason_of(refused) == case["reason"]
        assert len(session.answer(good)) == len(vector["messages"][case["takes"].replace("offer", "upload/2")]) // 2
        return
    for step in vector["steps"][: case["before"]]:
        if step["party"] == case["taker"]:
            play.perform(step)
    [step] = [one for one in vector["steps"] if (one["party"], one.get("takes")) == (case["taker"], case["takes"])]
    if case["then"] == "receipt":
        play.perform(step, bad)
        assert Receipt.decode(play.messages[step["says"][0]]).judged[0].verdict.name.lower() == case["reason"]
        return
    with pytest.raises(SecAggError) as refused:
        play.perform({**step, "from": case.get("sender")} if "sender" in case else step, bad)
    assert reason_of(refused) == case["reason"]
    play.perform(step, good)


@pytest.mark.parametrize("case", of("refusals/texts"))
def test_a_refused_text(case: Case, tmp_path: Path) -> None:
    def taken() -> object:
        match case["what"]:
            case "terms":
                return plan_of("pairwise", json.loads(case["text"]))
            case "description":
                return SessionDescription.decode(case["text"].encode())
            case _:
                return load_identity(written(case["text"], tmp_path))

    with pytest.raises(SecAggError) as refused:
        taken()
    assert reason_of(refused) == case["reason"]


# --- The interop suite itself -----------------------------------------------------------------------------------------


def test_the_generator_writes_the_suite_as_it_is() -> None:
    made = dict(generate_interop.suite())
    assert sorted(f"{wire.FORM}/{name}" for name in made) == [name for name in FILES if name[0] == str(wire.FORM)]
    for name, vector in made.items():
        assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == generate.to_text(vector), name


def test_the_suites_of_all_spoken_forms_are_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in (1, 2, 3):
        (tmp_path / f"{form}/bind").mkdir(parents=True)
        (tmp_path / f"{form}/bind/sets.json").touch()
    monkeypatch.setattr(wire, "FORMS", range(2, 4))
    assert files_of(tmp_path) == ["2/bind/sets", "3/bind/sets"]


def test_the_suite_is_small_and_refuses_much() -> None:
    assert sum(file.stat().st_size for file in FOLDER.glob("**/*")) < MOST_BYTES
    assert sum(len(read(name)["cases"]) for name in files_in("refusals/")) >= LEAST_REFUSALS
