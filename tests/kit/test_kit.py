"""The kit, played against the library: every case, every message of every session, every refusal with its reason."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.cli.wire.shared import plan_of
from secagg.contract import Layout
from secagg.crypto import key_derivation, mask_expansion
from secagg.crypto.check_words import check_words
from secagg.crypto.key_agreement import KeyRole, X25519KeyPair, X25519PublicKey
from secagg.crypto.labels import Label, bind
from secagg.crypto.merkle import MerkleTree, recover_root
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import Share, reconstruct, split
from secagg.errors import Reason, SecAggError
from secagg.identifiers import AttemptContext, ClientId, SessionContext
from secagg.platforms.keys.identities import load_identity
from secagg.protocols.one_message.lattice.gaussian import Sampler
from secagg.protocols.one_message.requests import Receipt
from secagg.protocols.pairwise_mask.graph import Graph, Topology
from secagg.protocols.pairwise_mask.roster import ClientSet, decode_clients, encode_clients
from secagg.session.certificates import Certificate, SigningKey, is_strong_key
from secagg.session.roles import LateUpdate, Update
from secagg.simulation.insecure_coins import InsecureRecordedCoins
from secagg.transport.card import Card, terms_digest
from secagg.transport.proof import header_of, read_header
from secagg.wire import MessageKind, message_kind
from tests.protocols.pairwise_mask.test_vectors import Replay
from tests.vectors import generate, generate_kit, one_message_play

FOLDER = generate_kit.FOLDER
LEAST_REFUSALS = 300
MOST_BYTES = 3_000_000
Case = dict[str, Any]
FILES = sorted(f"{file.parent.name}/{file.stem}" for file in FOLDER.glob("*/*.json"))


@cache
def read(name: str) -> Case:
    found: Case = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    if "messages" in found:
        found["messages"] = {said: "".join(part for _, part in parts) for said, parts in found["messages"].items()}
        found["operations"] = found["steps"]
    return found


def of(*names: str) -> list[Any]:
    return [pytest.param(case, id=f"{name}-{at}") for name in names for at, case in enumerate(read(name)["cases"])]


def secret(text: str) -> Secret:
    return Secret("of the kit", bytes.fromhex(text))


def shown(value: Secret) -> str:
    return bytes(value.expose()).hex()


def unhex(texts: list[str]) -> list[bytes]:
    return [bytes.fromhex(text) for text in texts]


def label(case: Case) -> Label:
    return Label(f"secagg/1/{case['label']}".encode())


def elements(case: Case, name: str = "values") -> Any:  # noqa: ANN401 -- of the ring's type
    return np.array([int(value) for value in case[name]], dtype=Ring(case["bits"]).word)


def reason_of(error: pytest.ExceptionInfo[SecAggError]) -> Reason:
    return error.value.reason


# --- Small cases ------------------------------------------------------------------------------------------------------


def play_labels(case: Case) -> None:
    assert label(case).value.decode() == case["text"]


def play_bound(case: Case) -> None:
    bound = bind(label(case), *unhex(case["parts"]))
    assert (bound.hex(), hashlib.sha256(bound).hexdigest()) == (case["bound"], case["digest"])


def play_commitments(case: Case) -> None:
    opened = bind(label(case), *unhex(case["parts"])) + bytes.fromhex(case["secret"])
    assert hashlib.sha256(opened).hexdigest() == case["digest"]


def play_headers(case: Case) -> None:
    assert message_kind(bytes.fromhex(case["header"])) is MessageKind(case["kind"])


def play_id_lists(case: Case) -> None:
    ids, written = [ClientId(int(one)) for one in case["ids"]], bytes.fromhex(case["bytes"])
    assert (encode_clients(ids), decode_clients(written)) == (written, tuple(ids))


def play_sets(case: Case) -> None:
    assert ClientSet.of(case["population"], case["positions"]).encode().hex() == case["bytes"]


def play_trees(case: Case) -> None:
    leaves, nodes = unhex(case["leaves"]), unhex(case["nodes"])
    assert MerkleTree(leaves).root.hex() == case["root"]
    assert recover_root(len(leaves), {at: leaves[at] for at in case["known"]}, nodes).hex() == case["root"]


def play_pairs(case: Case) -> None:
    pair = X25519KeyPair(secret(case["root"]), KeyRole(case["role"]), AttemptContext(bytes.fromhex(case["t0"])))
    assert pair.public_key.encoded.hex() == case["public"]


def play_agreements(case: Case) -> None:
    attempt, context = AttemptContext(bytes.fromhex(case["t0"])), SessionContext(bytes.fromhex(case["context"]))
    one, two = (ClientId(int(each)) for each in case["ids"])
    masks, channels = (
        [X25519KeyPair(secret(root), role, attempt) for root in case["roots"]]
        for role in (KeyRole.MASK, KeyRole.CHANNEL)
    )
    seed = masks[1].pairwise_seed(two, (one, masks[0].public_key), context)
    assert shown(seed) == case["pairwise_seed"]
    ids = [client.encode() for client in sorted((one, two))]
    key = key_derivation.expand("mask key", 16, seed, Label.PAIRWISE_MASK_KEY, context.digest, *ids)
    assert shown(key) == case["mask_key"]
    assert shown(channels[1].channel_key_from(two, (one, channels[0].public_key), context)) == case["there"]
    assert shown(channels[1].channel_key_to(two, (one, channels[0].public_key), context)) == case["back"]


def play_x25519(case: Case) -> None:
    if case["verdict"] == "ok":
        X25519PublicKey(bytes.fromhex(case["key"]))
        return
    with pytest.raises(SecAggError) as refused:
        X25519PublicKey(bytes.fromhex(case["key"]))
    assert reason_of(refused) == case["verdict"]


def play_ed25519(case: Case) -> None:
    assert is_strong_key(bytes.fromhex(case["key"])) is case["is_strong"]


def play_certificates(case: Case, tmp_path: Path) -> None:
    identity = load_identity(written(case["key_file"], tmp_path))
    assert identity.client == ClientId(int(case["id"]))
    public, signature = bytes.fromhex(case["public"]), bytes.fromhex(case["certificate"])
    assert identity.certificate == Certificate(identity.client, public, signature)
    assert identity.authority.public_key == SigningKey(secret(case["authority_seed"])).public_key


def written(text: str, folder: Path) -> Path:
    path = folder / "client.key"
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return path


def play_streams(case: Case) -> None:
    stream = mask_expansion.expand(
        secret(case["key"]), Ring(8), len(case["stream"]) // 2, first_segment=case["segment"]
    )
    assert stream.tobytes().hex() == case["stream"]


def play_packing(case: Case) -> None:
    ring, values = Ring(case["bits"]), elements(case)
    assert ring.pack(values).hex() == case["packed"]
    assert ring.unpack(bytes.fromhex(case["packed"]), values.size).tolist() == values.tolist()


def play_addition(case: Case) -> None:
    total = elements(case)
    add, subtract = ([secret(one["key"]) for one in case["masks"] if one["sign"] == sign] for sign in (1, -1))
    mask_expansion.accumulate(
        total, Ring(case["bits"]), add=add, subtract=subtract, first_segment=case["first_segment"]
    )
    assert total.tolist() == elements(case, "masked").tolist()


def play_words(case: Case) -> None:
    words = check_words(Ring(case["bits"]), elements(case), len(case["words"]), secret(case["key"]))
    assert list(map(str, words)) == case["words"]


def play_shares(case: Case) -> None:
    threshold, holders = case["threshold"], len(case["shares"])
    coins = InsecureRecordedCoins(bytes.fromhex(case["coins"]))
    shares = split(secret(case["secret"]), threshold=threshold, holders=holders, coins=coins)
    assert [shown(share.value) for share in shares] == case["shares"]
    last = [Share(at, secret(share)) for at, share in enumerate(case["shares"], 1)][-threshold:]
    assert shown(reconstruct(last, threshold=threshold)) == case["secret"]


def play_graphs(case: Case) -> None:
    topology = Topology.SPARSE if case["degree"] else Topology.FULL
    graph = Graph(topology, case["clients"], case["degree"] or case["clients"] - 1, bytes.fromhex(case["seed"]))
    assert [list(graph.neighbours(at)) for at in range(case["clients"])] == case["neighbours"]
    assert list(graph.committee(case["committee_size"] or case["clients"])) == case["committee"]


def play_layouts(case: Case) -> None:
    layout = Layout.decode(bytes.fromhex(case["bytes"]))
    assert [[each.modulus_bits, each.length] for each in layout.require_rings()] == case["segments"]
    assert layout.version.hex() == case["version"]


def play_plans(case: Case) -> None:
    plan = plan_of("pairwise", json.loads(case["terms"]))
    subject = plan.subject(task=b"sum", round_number=1, model=())
    assert (subject.layout.encode().hex(), str(subject.capacity)) == (case["layout"], case["capacity"])
    assert np.array(plan.codec.scales, ">f4").tobytes().hex() == case["scale"]


def play_codes(case: Case) -> None:
    plan = plan_of("pairwise", json.loads(case["terms"]))
    for at in range(8):
        coins = InsecureRecordedCoins(generate_kit.drawn("rounding", at))
        payload = plan.encode(np.array([float(value) for value in case["values"]], np.float32), coins)
        for made, right in zip(payload.values[0].tolist(), case["elements"], strict=True):
            assert str(made) in right


def play_digests(case: Case) -> None:
    digest = terms_digest(json.loads(case["terms"]))
    bound = bind(Label.SESSION_TERMS, int(case["capacity"]).to_bytes(8, "big"), digest)
    assert (digest.hex(), hashlib.sha256(bound).hexdigest()) == (case["digest"], case["application_digest"])


def play_proofs(case: Case) -> None:
    client, session = ClientId(int(case["id"])), bytes.fromhex(case["session"])
    proof = SigningKey(secret(case["seed"])).sign(Label.HTTP_PROOF, session, client.encode())
    assert header_of(client, proof) == case["authorization"]
    assert read_header(case["authorization"]) == (client, proof)


def play_cards(case: Case) -> None:
    card = Card.decode(case["card"].encode())
    assert (str(card.round_number), card.terms) == (case["round"], json.loads(case["terms"]))


SMALL = [name for name in FILES if name.partition("/")[0] not in {"pairwise", "one_message", "refusals"}]
PLAYS = {name.removeprefix("play_"): made for name, made in globals().items() if name.startswith("play_")}


@pytest.mark.parametrize("name", SMALL)
def test_every_small_case(name: str, tmp_path: Path) -> None:
    play = PLAYS[name.rpartition("/")[2]]
    for case in read(name)["cases"]:
        play(case, tmp_path) if play is play_certificates else play(case)


# --- Sessions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("pairwise/")])
def test_a_session_of_pairwise_masks(name: str) -> None:
    replay = Replay(read(name))
    for step in read(name)["steps"]:
        replay.perform(step)
    assert replay.result == read(name)["result"]


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("one_message/")])
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
    """Return the step in which the message of a refusal is taken, by the one who refuses it."""
    [step] = [one for one in steps if one.get("message") == case["takes"] and one["role"] == case["taker"]]
    return {**step, **({"from": case["sender"]} if "sender" in case else {})}


@pytest.mark.parametrize("case", of("refusals/pairwise_client", "refusals/pairwise_server"))
def test_a_refusal_in_a_session_of_pairwise_masks(case: Case) -> None:
    vector = read(case["session"])
    replay, steps = Replay(vector), vector["steps"]
    for step in steps[: case["before"]]:
        replay.perform(step)
    if "takes" in case:
        good = {name: value for name, value in taken_by(case, steps).items() if name != "sends"}
        bad = {**good, "message": altered(case, bytes.fromhex(vector["messages"][case["takes"]])).hex()}
    if "shows" in case:
        for step in [*([bad] if "takes" in case else []), *steps[case["resumes"] : case["shows"]]]:
            replay.perform(step)
        bad = steps[case["shows"]]
    with pytest.raises(SecAggError) as refused:
        replay.perform(bad)
    assert reason_of(refused) == case["reason"]
    if "change" not in case or "shows" in case:
        return
    if case["then"] == "continues":
        is_before = any(step.get("message") == case["takes"] for step in steps[: case["before"]])
        replay.perform(good if is_before else taken_by(case, steps))
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
    with pytest.raises(SecAggError) as refused:
        match case["what"]:
            case "terms":
                plan_of("pairwise", json.loads(case["text"]))
            case "card":
                Card.decode(case["text"].encode())
            case _:
                load_identity(written(case["text"], tmp_path))
    assert reason_of(refused) == case["reason"]


# --- The kit itself ---------------------------------------------------------------------------------------------------


def test_the_generator_writes_the_kit_as_it_is() -> None:
    made = dict(generate_kit.kit())
    assert sorted(made) == FILES
    for name, vector in made.items():
        assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == generate.to_text(vector), name


def test_the_kit_is_small_and_refuses_much() -> None:
    assert sum(file.stat().st_size for file in FOLDER.glob("**/*")) < MOST_BYTES
    assert sum(len(read(name)["cases"]) for name in FILES if name.startswith("refusals/")) >= LEAST_REFUSALS
