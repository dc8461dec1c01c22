"""The symbolic models match the library: its labels with their fields, its checks, its claims."""

from __future__ import annotations

import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest

from secagg.crypto import labels
from secagg.crypto.labels import Label
from secagg.identifiers import CLIENT_ID_BYTES
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.one_message.configuration import Offer
from secagg.protocols.pairwise_mask.round0_advertise_keys import KeyAdvertisement
from secagg.session.certificates import GRANT_BYTES, SIGNATURE_BYTES
from secagg.wire import MessageKind
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, model_digest
from tests.harness.one_message_sums import InsecureSum, SumSetup
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup

OF_PAIRWISE_MASKS = ("keys", "survivors", "hybrid", "inputs")
"""Those of the hybrid suite; ``classic`` is about the other."""
NUMBER_BYTES = 4
POSITION_BYTES = 2
KIND_BYTES = 2
DIGEST_BYTES = 32
NONCE_BYTES = (16, 32)
"""Random values of a client and of a holder."""
Bound = dict[Label, set[tuple[bytes, ...]]]


@pytest.fixture(scope="module")
def models(repository: Path) -> Iterator[tuple[ModuleType, ModuleType]]:
    """Import the folder's modules, which are not in a package."""
    name = "secagg_symbolic"
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(repository / "proofs" / "symbolic")]
    sys.modules[name] = module_from_spec(spec)
    yield import_module(f"{name}.source"), import_module(f"{name}.cases")
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


@contextmanager
def noting() -> Generator[Bound]:
    """Record everything that is bound to a label in the meantime."""
    bound: Bound = defaultdict(set)
    original = labels.bind
    # Modules imported later would keep the recording function, and the next session would find it already patched.
    import_module("secagg.crypto.hybrid_key_agreement")

    def noted(label: Label, *parts: bytes) -> bytes:
        bound[label].add(parts)
        return original(label, *parts)

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name.startswith("secagg.") and getattr(module, "bind", None) is original:
                patch.setattr(module, "bind", noted)
        yield bound


@pytest.fixture(scope="module")
def session_and_bound() -> tuple[InsecurePairwiseSession, Bound]:
    """Run an active session of the hybrid suite with pairwise masks."""
    with noting() as bound:
        session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE, suite=Suite.HYBRID))
        session.finish()
    return session, bound


@pytest.fixture(scope="module")
def classic_session_and_bound() -> tuple[InsecurePairwiseSession, Bound]:
    """Run an active session of the classic suite."""
    with noting() as bound:
        session = InsecurePairwiseSession(SessionSetup(mode=SecurityMode.ACTIVE, suite=Suite.CLASSIC))
        session.finish()
    return session, bound


def readings(session: InsecurePairwiseSession) -> dict[str, Callable[[bytes], bool]]:
    """Return the values in a session for a model's field names."""
    configuration, roster = session.server.configuration, session.server.roster
    sent = [session.sent_by(client, MessageKind.KEY_ADVERTISEMENT) for client in session.client_ids]
    advertised = [KeyAdvertisement.decode(message, configuration) for message in sent]
    attempt, context = configuration.context.digest, roster.context.digest
    channels = {item.channel_key for item in advertised}
    masks = {item.mask_key for item in advertised}
    commitments = {item.self_mask_commitment for item in advertised}
    identities = {item.credential.identity_key for item in advertised if item.credential}
    clients = {client.encode() for client in session.client_ids}
    named = {attempt, context, roster.opening, session.authority.public_key, *commitments, *identities}
    return {
        "attempt": lambda part: part == attempt,
        "context": lambda part: part == context,
        "opening": lambda part: part == roster.opening,
        "authority": lambda part: part == session.authority.public_key,
        "identity": lambda part: part in identities,
        "client": lambda part: part in clients,
        "peer": lambda part: part in clients,
        "channel": lambda part: part in channels,
        "mask": lambda part: part in masks,
        "commitment": lambda part: part in commitments,
        "digest": lambda part: len(part) == len(attempt) and part not in named,
        "offer": lambda part: part == configuration.encode(),
        "entry": lambda part: len(part) > len(attempt),
        "number": lambda part: len(part) == NUMBER_BYTES,
        "kind": lambda part: part == int(MessageKind.ENCRYPTED_SHARES).to_bytes(KIND_BYTES, "big"),
        "size": lambda part: len(part) == NUMBER_BYTES,
        "population": lambda part: part == len(clients).to_bytes(NUMBER_BYTES, "big"),
        "set": lambda part: len(part) == 1,
    }


@pytest.mark.parametrize("model", OF_PAIRWISE_MASKS)
def test_hashed_and_signed_contexts_have_the_fields_of_the_model(
    model: str, models: tuple[ModuleType, ModuleType], session_and_bound: tuple[InsecurePairwiseSession, Bound]
) -> None:
    source, _ = models
    session, bound = session_and_bound
    compare(source, model, bound, readings(session))


def test_the_classic_suite_binds_the_fields_of_its_model(
    models: tuple[ModuleType, ModuleType], classic_session_and_bound: tuple[InsecurePairwiseSession, Bound]
) -> None:
    session, bound = classic_session_and_bound
    compare(models[0], "classic", bound, readings(session))


def test_one_message_hashes_and_signs_the_fields_of_its_model(models: tuple[ModuleType, ModuleType]) -> None:
    with noting() as bound:
        world = InsecureSum(SumSetup(seed=b"noted"))
        server = world.collected()
        server.fix_list()
        world.ask(server, server.requests())
    agreement = Offer.decode(server.offer).agree()
    context, keys = agreement.record.context.digest, {key.sealing_key for key in agreement.epoch.keys if key}
    meaning: dict[str, Callable[[bytes], bool]] = {
        "statement": lambda part: part == agreement.record.statement,
        "record": lambda part: part == context,
        "authority": lambda part: part == agreement.record.authority,
        "identity": lambda part: part in {world.certified(client)[1].public_key for client in world.setup.clients},
        "agreement": lambda part: part == agreement.t0,
        "position": lambda part: len(part) == POSITION_BYTES,
        "holder": lambda part: part in {agreement.holder(position) for position in range(agreement.epoch.count)},
        "client": lambda part: part in {client.encode() for client in world.setup.clients},
        "sealing": lambda part: part in keys,
        "nonce": lambda part: len(part) in NONCE_BYTES and part not in {context, agreement.t0, *keys},
        "terms": lambda part: len(part) == DIGEST_BYTES and part not in {context, agreement.t0},
        "until": lambda part: part == world.record.expiry.to_bytes(8, "big"),
        "digest": lambda part: len(part) == DIGEST_BYTES and part not in {context, agreement.t0},
        "list": lambda part: len(part) == DIGEST_BYTES and part not in {context, agreement.t0},
        "sealed": lambda part: len(part) > DIGEST_BYTES,
        "configuration": lambda part: len(part) > DIGEST_BYTES,
    }
    compare(models[0], "one_message", bound, meaning)


def test_the_enclave_hashes_and_signs_the_fields_of_its_model(models: tuple[ModuleType, ModuleType]) -> None:
    with noting() as bound:
        session = InsecureEnclaveSession(EnclaveSetup(suite=Suite.HYBRID))
        session.host.open_buffer(0, model_digest(0))
        for number in range(1, session.setup.population + 1):
            session.upload(number)
        session.host.release()
    offer, configuration = session.enclave.offer, session.configuration
    named = {offer.context.digest, offer.epoch, offer.receipt_key, configuration.authority}
    numbers = range(1, session.setup.population + 1)
    keys = {offer.receipt_key, *(session.setup.signing_key_of(f"client {n}").public_key for n in numbers)}
    meaning: dict[str, Callable[[bytes], bool]] = {
        "configuration": lambda part: part == configuration.encode(),
        "attempt": lambda part: part == offer.context.digest,
        "epoch": lambda part: part == offer.epoch,
        "sealing": lambda part: part == offer.sealing_key,
        "receipt": lambda part: part == offer.receipt_key,
        "authority": lambda part: part == configuration.authority,
        "client": lambda part: len(part) == CLIENT_ID_BYTES,
        "version": lambda part: len(part) == CLIENT_ID_BYTES and not any(part),
        "identity": lambda part: len(part) == DIGEST_BYTES and part not in named,
        "end": lambda part: part in keys,
        "digest": lambda part: len(part) == DIGEST_BYTES and part not in named,
        "numbers": lambda part: len(part) == 3 * CLIENT_ID_BYTES and part not in named,
    }
    compare(models[0], "enclave", bound, meaning)


def compare(source: ModuleType, model: str, bound: Bound, meaning: Mapping[str, Callable[[bytes], bool]]) -> None:
    """Compare what a model binds to its labels with what a session bound, part by part."""
    meaning = {"term": lambda part: len(part) == GRANT_BYTES - SIGNATURE_BYTES, **meaning}
    declared: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = source.labels_of(source.read(model))
    assert declared
    for name, (fields, _) in declared.items():
        label = next((label for label in Label if _name_of(label) == name), None)
        assert label is not None, f"{model}.pv names {name}, but no label has this name"
        assert bound[label], f"a session binds nothing to {label.name}"
        for parts in bound[label]:
            assert len(parts) == len(fields), f"{model}.pv gives {name} {fields}, the library {len(parts)} parts"
            strange = [field for field, part in zip(fields, parts, strict=True) if not meaning[field](part)]
            assert not strange, f"{model}.pv: {name} has another field in place of {strange}"


def test_fields_in_another_order_are_detected(session_and_bound: tuple[InsecurePairwiseSession, Bound]) -> None:
    session, bound = session_and_bound
    meaning = readings(session)
    fields = ("attempt", "client", "mask", "channel", "commitment")
    for parts in bound[Label.SIGNED_ADVERTISEMENT]:
        assert not all(meaning[field](part) for field, part in zip(fields, parts, strict=True))


def test_every_signed_context_up_to_the_answers_is_modelled(
    models: tuple[ModuleType, ModuleType], session_and_bound: tuple[InsecurePairwiseSession, Bound]
) -> None:
    source, _ = models
    signed = {_name_of(label) for label, parts in session_and_bound[1].items() if parts and "SIGNED_" in label.name}
    modelled = {name for model in OF_PAIRWISE_MASKS for name in source.labels_of(source.read(model))}
    # The signature on an answer is only for the server; no client verifies it.
    assert signed - modelled == {"signed_unmasking"}


def test_every_check_of_a_model_is_a_function_of_the_library(models: tuple[ModuleType, ModuleType]) -> None:
    for check, place in models[1].CHECKS.items():
        if not place:
            assert check[1].endswith(" holds"), f"{check} names no function of the library"
            continue
        module, _, names = place.partition(":")
        found: object = import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
        assert callable(found), check


def test_removing_a_check_changes_the_model(models: tuple[ModuleType, ModuleType]) -> None:
    source, cases = models
    for case in cases.PLANTED:
        text = source.read(case.model)
        for check in case.missing:
            missing = frozenset({check})
            assert source.variant(text, case.query, missing) != source.variant(text, case.query), check
        assert "(*#" not in source.variant(text, case.query).replace("(*# label", "").replace("(*# quer", "")


def test_every_query_that_holds_supports_a_claim(models: tuple[ModuleType, ModuleType], repository: Path) -> None:
    ledger = tomllib.loads((repository / "proofs" / "claims.toml").read_text(encoding="utf-8"))
    claimed = [query for claim in ledger["claim"] for query in claim.get("queries", ())]
    cases = models[1]
    assert len(set(claimed)) == len(claimed)
    assert set(claimed) == {str(case) for case in cases.AS_IT_IS if case.answer is cases.Answer.HOLDS}
    attacked = {(case.model, case.query) for case in cases.PLANTED}
    holding = {(case.model, case.query) for case in cases.AS_IT_IS if case.answer is cases.Answer.HOLDS}
    assert holding == attacked, "no claim names these queries"
    counted = f"{len(holding)}, {len(cases.PLANTED)}"
    row = f"| queries of `symbolic/` that hold, attacks found with a check removed | {counted} |"
    written = (repository / "proofs" / "README.md").read_text(encoding="utf-8")
    assert row in written.splitlines()
    flowing = " ".join(written.split())
    reached = len(cases.AS_IT_IS) - len(holding)
    told = f"{len(holding)} hold, {reached} events are reached, {len(cases.STILL)} hold despite a removed check"
    assert told in flowing
    assert f"and for {len(cases.PLANTED)} ProVerif reconstructs an attack" in flowing


def _name_of(label: Label) -> str:
    return label.name.lower()
