"""Policies without effect, and a silent enclave."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, PeerMisbehaved, Reason
from secagg.identifiers import ClientId
from secagg.platforms import client_node
from secagg.platforms.client_node import ClientNode
from secagg.platforms.client_round import Node, begun_app
from secagg.platforms.one_message_plug import StandingHolders
from secagg.platforms.plugs import NodeSide, plug_of
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import SecAggSettings
from secagg.protocols.enclave.attestation import SnpCollateral
from secagg.protocols.enclave.client import Invitation
from secagg.protocols.enclave.collateral import encode_collateral, read_collateral
from secagg.session import registry
from secagg.session.identities import make_identities
from secagg.session.ledger import Spent
from secagg.session.registry import find, names
from secagg.session.roles import Subject
from secagg.session.sealed_state import StateDirectory
from secagg.session.store import Store
from tests.harness.one_message_sums import InsecureSum, SumSetup
from tests.harness.wire_sums import update_of

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
    policy = ClientNode.of({name: STRICTER[name]})
    with pytest.raises(
        InvalidParameters, match=f"secagg-{name.replace('_', '-')}, which {protocol} cannot enforce"
    ) as found:
        policy.require_protocol(protocol)
    assert found.value.reason is Reason.BELOW_FLOOR
    policy.require_protocol("pairwise")
    if name not in {"minimum_threshold", "privacy_bits"}:
        policy.require_protocol("one-message")


@pytest.mark.parametrize(
    ("protocol", "floor"),
    [
        ("one-message", {"minimum_threshold": 3}),
        ("one-message", {"privacy_bits": 41}),
        ("lightsecagg", {"minimum_threshold": 3}),
        ("lightsecagg", {"minimum_holders": 9}),
        ("pairwise", {"minimum_holders": 9}),
        ("two-servers", {"assumed_corrupted_holders": 2}),
        ("enclave", {"topologies": "full"}),
        ("registered", {"minimum_cohort": 4}),
        ("registered", {"maximum_population": 9}),
    ],
)
def test_other_policies_that_would_act_nowhere_are_refused_too(
    monkeypatch: pytest.MonkeyPatch, protocol: str, floor: dict[str, Any]
) -> None:
    """A registered protocol enforces the options that its entry names, and none by default."""
    registered = replace(find("lightsecagg"), name="registered", keeps=frozenset())
    monkeypatch.setattr(registry, "_REGISTERED", {name: find(name) for name in names()} | {"registered": registered})
    policy = ClientNode.of({"protocols": protocol, **floor})
    with pytest.raises(InvalidParameters, match="cannot enforce"):
        policy.require_protocol(protocol)


@pytest.mark.parametrize("floor", [{"minimum_cohort": 9}, {"assumed_corrupted": 2}, {"maximum_population": 9}])
def test_policies_that_light_secaggs_have_are_not_refused(floor: dict[str, Any]) -> None:
    ClientNode.of({"protocols": "lightsecagg", **floor}).require_protocol("lightsecagg")


@pytest.mark.parametrize("zero", [0, 0.0])
def test_an_operator_who_writes_zero_takes_no_budget_and_no_norm_away(zero: float) -> None:
    own = ClientNode(noise=1.0, norm=0.5, epsilon=2.0, delta=1e-7)
    assert own.raised_by({f"secagg-{name}": zero for name in ("noise", "norm", "epsilon", "delta")}) == own


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("-inf")])
@pytest.mark.parametrize("own", [0.0, 2.0])
def test_a_budget_that_is_no_number_above_zero_is_refused(value: float, own: float) -> None:
    with pytest.raises(InvalidParameters, match="epsilon must be a number of at least 0"):
        ClientNode(noise=1.0, norm=0.5, epsilon=own).raised_by({"secagg-epsilon": value})


def test_a_delta_without_an_epsilon_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="secagg-delta needs secagg-epsilon, which is 0"):
        ClientNode().raised_by({"secagg-delta": 1e-9}).privacy_ledger(None)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("allow_simulated_enclave", "no", "must be True or False"),
        ("allow_repeats", 0, "must be True or False"),
        ("protocols", 3, "must be a list of names"),
        ("suites", (1,), "must be some of classic, hybrid"),
        ("minimum_cohort", "10", "must be an integer"),
        ("minimum_cohort", True, "must be an integer"),
        ("minimum_cohort", float("nan"), "must be an integer"),
        ("noise", "1", "is a number|must be a number"),
        ("noise", True, "must be a number"),
        ("noise", float("nan"), "must be a number"),
        ("servers", 3, "must be text"),
        ("minimum_cohorts", 3, "did you mean minimum_cohort"),
        ("authority", bytes(32), "there is no option authority"),
    ],
)
def test_a_floor_of_another_type_or_name_is_refused(name: str, value: object, said: str) -> None:
    with pytest.raises(InvalidParameters, match=said):
        begun_app({name: value}, None)


def test_a_pattern_that_names_no_tensor_is_refused() -> None:
    """A typing error would leave the intended tensor unchanged in every round."""
    model = {"lora.a": np.zeros(4, np.float32), "base": np.zeros(4, np.float32)}
    rounds = Rounds(SecAggSettings(tensors="lora.*, bsae"))
    with pytest.raises(InvalidParameters, match=r"secagg-tensors names bsae, but the model has lora\.a, base"):
        rounds.begun(model, clients=5, task="run", number=1, weighted_by="n")


def test_what_is_known_of_one_model_is_not_known_of_another() -> None:
    rounds = Rounds(SecAggSettings())
    first, second = {"b": np.arange(3)}, {"b": np.full((2, 2), 0.5, np.float32)}
    assert rounds.restored(first)["b"].dtype.kind == "i"
    assert np.array_equal(rounds.restored(second)["b"], second["b"])
    # A strategy multiplies by floats.
    assert rounds.restored({"b": first["b"] * 1.0})["b"].dtype.kind == "i"


def identity_of(client: int, authority: bytes = bytes(32)) -> Any:
    """Return the part of an identity that ledgers use."""
    return SimpleNamespace(client=ClientId(client), authority=SimpleNamespace(public_key=authority))


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDirectory:
    monkeypatch.setenv(client_node.DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    return StateDirectory(tmp_path / "states", coins=SystemCoins())


def test_an_epoch_that_a_client_reached_is_never_older(states: StateDirectory) -> None:
    del states
    newest = Store.at(client_node.state_folder())
    for number in (2, 3, 1):
        newest.reach(b"authority", 7, number)
    assert [newest.newest(b"authority", 7), newest.newest(b"authority", 8), newest.newest(b"another", 7)] == [3, 0, 0]


def test_a_new_key_or_another_authority_brings_no_new_ledger(states: StateDirectory) -> None:
    """Otherwise a server could have clients certified again and request the same updates."""
    spent = Spent(b"a task", 1, b"m" * 32)
    usual, named = ClientNode(attempts=1), ClientNode(attempts=1, data_name="ward 3")
    usual.charges(identity_of(3), states, ClientId(3)).charge(spent)
    with pytest.raises(PeerMisbehaved):
        usual.charges(identity_of(3, b"another"), states, ClientId(3)).charge(spent)
    with pytest.raises(InvalidParameters, match=r"may be the same: name all of them with secagg-data-name"):
        usual.charges(identity_of(7, b"another"), states, ClientId(7))
    named.charges(identity_of(7, b"another"), states, ClientId(7)).charge(spent)
    for identity in (identity_of(8), identity_of(9, b"a third"), None):
        with pytest.raises(PeerMisbehaved):
            named.charges(identity, states, ClientId(9)).charge(spent)
    with pytest.raises(InvalidParameters, match=r"may be the same"):
        usual.charges(identity_of(4), states, ClientId(4))


def test_clients_of_one_authority_have_ledgers_of_their_own(states: StateDirectory) -> None:
    for client in (3, 4):
        ClientNode(attempts=1).charges(identity_of(client), states, ClientId(client)).charge(
            Spent(b"a task", 1, b"m" * 32)
        )


def test_a_budget_belongs_to_data(states: StateDirectory) -> None:
    del states
    settings = ClientNode(noise=1.0, norm=0.5, epsilon=2.0, data_name="ward 3")
    ledgers = [settings.privacy_ledger(each) for each in (identity_of(1), identity_of(2, b"another"), None)]
    assert {repr(each) for each in ledgers} == {repr(ledgers[0])}
    with pytest.raises(InvalidParameters, match=r"no key that identifies it: name its data"):
        replace(settings, data_name="").privacy_ledger(None)


def test_a_client_without_a_key_has_its_updates_counted(states: StateDirectory) -> None:
    """Regression: they were identified only by number, and one model's update went into any number of sums."""
    charges = ClientNode(attempts=2).charges(None, states, ClientId(5))
    for number in (1, 2):
        charges.charge(Spent(b"a task", number, b"m" * 32))
    with pytest.raises(PeerMisbehaved, match="2 times for the model"):
        charges.charge(Spent(b"a task", 3, b"m" * 32))
    again = ClientNode(attempts=2).charges(None, states, ClientId(5))
    with pytest.raises(PeerMisbehaved, match="2 times for the model"):
        again.charge(Spent(b"another run", 1, b"m" * 32))


def test_a_client_without_a_key_or_a_name_is_told_how_it_is_known(
    states: StateDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ClientNode(data_name="ward 3").charges(None, states, ClientId(7041))
    assert "no key" not in caplog.text
    ClientNode().charges(None, states, ClientId(7041))
    assert "no key and no secagg-data-name: its uploads are known by its number 7041 only" in caplog.text


def test_an_operator_who_raises_such_a_floor_is_heard() -> None:
    policy = ClientNode().raised_by({"secagg-assumed-corrupted": 3})
    with pytest.raises(InvalidParameters, match="leave enclave out of secagg-protocols"):
        policy.require_protocol("enclave")
    policy.raised_by({"secagg-protocols": "pairwise"}).require_protocol("pairwise")


def test_policies_that_protocols_have_are_no_obstacle() -> None:
    policy = ClientNode.of({"minimum_cohort": 9, "minimum_threshold": 2, "suites": ("hybrid",)})
    policy.require_protocol("enclave")
    policy.require_protocol("two-servers")


@pytest.fixture
def silent(tmp_path: Path) -> Iterator[Path]:
    """Yield a socket whose process accepts a connection, sends nothing, and exits a minute later."""
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
        protocol="enclave", roster=str(tmp_path / "keys" / "roster.txt"), enclave_socket=str(silent), stage_timeout=0.2
    )
    model = {"w": np.zeros(4, np.float32)}
    task = Rounds(settings).begun(model, clients=5, task="run", number=1, weighted_by="n")
    with ExitStack() as resources, pytest.raises(ConnectionError, match="timed out"):
        task.opened(5, frozenset(), SystemCoins(), resources)


def test_the_collateral_of_a_folder_is_in_the_invitation_of_each_round(tmp_path: Path) -> None:
    make_identities(tmp_path / "keys", map(ClientId, range(5)), SystemCoins())
    folder = tmp_path / "collateral"
    settings = SecAggSettings(
        protocol="enclave", roster=str(tmp_path / "keys" / "roster.txt"), enclave_collateral=str(folder)
    )
    model = {"w": np.zeros(4, np.float32)}

    def relayed(number: int) -> bytes:
        task = Rounds(settings).begun(model, clients=5, task="run", number=number, weighted_by="n")
        with ExitStack() as resources:
            session = task.opened(5, frozenset(), SystemCoins(), resources)
            message = session.message_to(ClientId(0))
            assert message is not None
            return Invitation.decode(message).collateral

    with pytest.raises(InvalidParameters, match="cannot read the collateral folder"):
        relayed(1)
    folder.mkdir()
    for name in ("chip_certificate", "authority_certificate", ".hidden"):
        (folder / name).write_bytes(b"1")
    with pytest.raises(InvalidParameters, match="contains authority_certificate, chip_certificate; SEV-SNP collateral"):
        relayed(2)
    (folder / "root_certificate").write_bytes(b"1")
    first = SnpCollateral(chip_certificate=b"1", authority_certificate=b"1", root_certificate=b"1")
    assert relayed(3) == encode_collateral(first)
    (folder / "root_certificate").write_bytes(b"22")
    (folder / "revocation_list").write_bytes(b"3")
    assert relayed(4) == encode_collateral(read_collateral(folder)) != encode_collateral(first)
    (folder / "endorsement").write_bytes(b"signed")
    assert relayed(5) == encode_collateral(read_collateral(folder), b"signed")


# --- Holders that are waited for --------------------------------------------------------------------------------------


def test_lost_holders_count_as_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of eight holders was lost earlier, and two answer late: the list is requested until six have answered."""
    world = InsecureSum(SumSetup(holders=8, corrupted=1, absent=1))
    assert max(world.record.threshold, world.record.quorum) == 6
    holders = StandingHolders(world.record, tuple(str(tmp_path / str(at)) for at in range(8)), 60, {})
    late, asked = {5, 6}, list[set[int]]()

    class Helpers:
        def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
            asked.append(set(requests))
            if len(asked) > 2:
                late.clear()
            return [(at, b"SAGG\1\0\x6b") for at in requests if at not in late]

    monkeypatch.setattr(holders, "_helpers", Helpers())
    monkeypatch.setattr("secagg.platforms.one_message_plug._PAUSE", 0.0)
    request = b"SAGG\1\0\x6a" + bytes(32)
    answers = dict(holders.ask_all(dict.fromkeys(range(7), request)))
    assert set(answers) == set(range(7))
    assert asked == [set(range(7)), {5, 6}, {5, 6}]
    # The same list again, while the sum continues: those that answered it count.
    late |= {6}
    asked.clear()
    assert dict(holders.ask_all({6: request})) == {}
    assert asked == [{6}]


def test_a_node_with_a_key_takes_part_without_it_only_by_its_own_word(tmp_path: Path) -> None:
    """Otherwise a server could choose the mode in which nothing protects clients from it."""
    (tmp_path / "client-3.key").write_bytes(b"")
    keyed = {"identity": str(tmp_path / "client-3.key")}
    for node in (ClientNode.of(keyed), ClientNode().raised_by({"secagg-identity": keyed["identity"]})):
        node.require_keys_used(is_certified=True)
        with pytest.raises(InvalidParameters, match="asks for a session without keys") as caught:
            node.require_keys_used(is_certified=False)
        assert caught.value.reason is Reason.BELOW_FLOOR
        for modes in ("semi_honest", "semi_honest,active"):
            node.raised_by({"secagg-modes": modes}).require_keys_used(is_certified=False)
    for others in ({}, {"identity": str(tmp_path)}):
        ClientNode.of(others).require_keys_used(is_certified=False)
    # An app's modes are not those of an operator's key.
    with pytest.raises(InvalidParameters, match="asks for a session without keys"):
        ClientNode.of({"modes": "semi_honest"}).raised_by({"secagg-identity": keyed["identity"]}).require_keys_used(
            is_certified=False
        )


@pytest.mark.parametrize("variable", ["SECAGG_LEDGER_DIRECTORY", "XDG_STATE_HOME"])
def test_a_client_that_starts_elsewhere_does_not_forget_its_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """A relative folder would be another one there, with no upload and a whole budget."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "ledgers")
    make_identities(tmp_path / "keys", [ClientId(3)], SystemCoins())
    node = ClientNode.of({"identity": str(tmp_path / "keys" / "client-3.key")})
    with pytest.raises(InvalidParameters, match="give SECAGG_LEDGER_DIRECTORY an absolute path"):
        node.charges(node.load_identity({}), StateDirectory(tmp_path / "states", coins=SystemCoins()), ClientId(3))
    assert not (tmp_path / "ledgers").exists()


@pytest.mark.parametrize("modes_of", ["nobody", "the app", "the key's owner"])
def test_a_server_that_only_says_that_keys_are_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modes_of: str
) -> None:
    """The terms require certified clients, but the offer's protocol checks no certificates."""
    monkeypatch.setenv("SECAGG_LEDGER_DIRECTORY", str(tmp_path / "ledgers"))
    clients, entry = [ClientId(number) for number in range(5)], find("lightsecagg")
    make_identities(tmp_path / "keys", clients, SystemCoins())
    asked, modes = {"secagg-identity": str(tmp_path / "keys" / "client-3.key")}, {"modes": "semi_honest"}
    node = ClientNode.of({"protocols": "lightsecagg"} | (modes if modes_of == "the app" else {}))
    node = node.raised_by(asked | ({"secagg-modes": "semi_honest"} if modes_of == "the key's owner" else {}))
    states = StateDirectory(tmp_path / "states", coins=SystemCoins())
    side = NodeSide(settings=node, client=clients[3], certified=node.load_identity({}), states=states)
    subject = Subject(task=b"t", round_number=1, layout=Layout((RingSegment(32, 4),)), capacity=1 << 20)
    with closing(entry.simulate(entry.settings(), coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        offer = world.open(subject, frozenset(clients)).message_to(clients[3])
    assert offer is not None
    part = plug_of("lightsecagg", is_suspended=False).member(side).join(subject, update_of(clients[3]))
    if modes_of == "the key's owner":
        assert part.answer(offer)
        return
    with pytest.raises(InvalidParameters, match="holds only against a server that follows the protocol"):
        part.answer(offer)


def test_a_server_without_keys_is_refused_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECAGG_LEDGER_DIRECTORY", str(tmp_path / "ledgers"))
    sent = {"w": np.zeros(4, np.float32)}
    task = Rounds(SecAggSettings(weighting="uniform")).begun(sent, clients=5, task="t", number=1, weighted_by="n")
    node = Node(
        settings=ClientNode.of({"identity": str(tmp_path / "client-3.key")}),
        config={},
        client=ClientId(3),
        run="t",
        states=StateDirectory(tmp_path / "states", coins=SystemCoins()),
        custom={},
    )
    with pytest.raises(InvalidParameters, match="asks for a session without keys"):
        node.begun(task.terms)
