"""Make the vectors of the pairwise-mask protocol: ``python tests/vectors/generate.py`` writes them to their folder.

The library produces positive vectors with recorded coins. The expectations of negative vectors are written by hand in
``NEGATIVES``, not computed by the library. Nothing here is random except HPKE's draws inside the backend; an existing
vector's ciphertexts are reused once everything around them is equal, so that another run changes no file unless the
protocol has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np

from secagg.contract import Aggregate, Layout, Payload, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import Client, PairwiseMember, Server, SessionConfiguration, SessionPlan, Topology
from secagg.protocols.pairwise_mask.session import SERVER_TRANSITIONS
from secagg.session.certificates import NO_STANDING, Authority, SigningKey, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import uncharged
from secagg.session.signing_keys import issue_certificate
from secagg.session.store import decoded_standing
from secagg.wire import MessageKind, message_kind
from tests.harness.pairwise_sessions import OfferedSubject, close_round, plan_of, unmask, update_of
from tests.harness.recorded_coins import InsecureRecordedCoins

from .negative_cases import NEGATIVES, negative

FOLDER = Path(__file__).resolve().parent / "pairwise_mask"
PROTOCOL = "pairwise_mask/3"
POSITIVE = "tests/vectors/generate.py, from the library; recomputed by tests/protocols/pairwise_mask/slow_reference"
NEGATIVE = "tests/vectors/generate.py, one change to its base; the expectation is written by hand"
Vector = dict[str, Any]
ODD_WIDTHS = ((1, 9), (7, 5), (20, 6), (33, 3), (64, 2))


# --- Positive vectors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Parameters of one session; its name determines all draws."""

    name: str
    comment: str
    clients: tuple[int, ...]
    layout: tuple[tuple[int, int], ...] = ((20, 5), (7, 3))
    plan: Mapping[str, Any] = field(default_factory=dict[str, Any])
    committee: tuple[int, int] | None = None
    dropouts: Mapping[int, int] = field(default_factory=dict[int, int])
    """The round from which each silent client sends nothing."""
    runs: int = 0
    """Number of accumulated derived runs; 0 for one stored run."""

    def derive(self, run: int, *parts: str, size: int) -> bytes:
        """Return bytes derived from the scenario's name and their purpose."""
        return hashlib.shake_256("/".join((PROTOCOL, self.name, str(run), *parts)).encode()).digest(size)


SMALL = tuple(range(1, 5))
SPARSE = tuple(range(10, 90, 10))
ACTIVE = {"mode": SecurityMode.ACTIVE}
SEMI_HONEST = {"mode": SecurityMode.SEMI_HONEST}
FULL, RING = {"topology": Topology.FULL}, {"topology": Topology.SPARSE}
SCENARIOS = (
    Scenario(
        name="semi_honest_full",
        comment="everybody stays; segments of 1, 7, 20, 33 and 64 bits",
        clients=SMALL,
        layout=ODD_WIDTHS,
        plan=SEMI_HONEST | FULL,
    ),
    Scenario(
        name="semi_honest_full_wide_ids",
        comment="a second attempt of a late round, 40 check words, ids from 0 to 2^64 - 1",
        clients=(0, 1, 130, 2**32, 2**64 - 2, 2**64 - 1, 2**63),
        layout=((64, 1), (1, 1)),
        plan=SEMI_HONEST
        | FULL
        | {"check_words": 40, "round_number": 2**53 + 1, "attempt": 1, "dropped": 1}
        | {"minimum_cohort": 6}
        | {"task": b"\xff\x00 task", "model_digest": bytes(range(32)), "application_digest": bytes(range(32, 64))},
        dropouts={130: 4},
    ),
    Scenario(
        name="semi_honest_sparse_dropouts_everywhere",
        comment="one client is gone before each of the rounds 0, 1, 2 and 4",
        clients=SPARSE,
        layout=((33, 4), (7, 7), (1, 3)),
        plan=SEMI_HONEST | RING | {"dropped": 2, "late": 1, "attempt": 1},
        dropouts={10: 0, 60: 1, 40: 2, 80: 4},
    ),
    Scenario(
        name="active_full",
        comment="everybody stays; every message is signed",
        clients=SMALL,
        layout=ODD_WIDTHS,
        plan=ACTIVE | FULL,
    ),
    Scenario(
        name="active_full_one_dropout_after_sharing",
        comment="client 3 shares keys and uploads nothing",
        clients=tuple(range(1, 7)),
        plan=ACTIVE | FULL | {"dropped": 1},
        dropouts={3: 2},
    ),
    Scenario(
        name="active_full_one_dropout_before_confirming",
        comment="client 2 uploads and is gone before the consistency check",
        clients=tuple(range(1, 7)),
        plan=ACTIVE | FULL | {"dropped": 1},
        dropouts={2: 3},
    ),
    Scenario(
        name="active_sparse_committee",
        comment="a committee of 4 of 8 certifies the survivors; one of its members is gone before uploading",
        clients=SPARSE,
        layout=((1, 4), (33, 3)),
        plan=ACTIVE | RING | {"dropped": 1},
        committee=(4, 3),
        dropouts={30: 2},
    ),
    Scenario(
        name="active_sparse_one_dropout_before_unmasking",
        comment="everybody certifies; one client is gone before sharing keys and one before unmasking",
        clients=tuple(range(1, 10)),
        layout=((64, 3), (20, 2)),
        plan=ACTIVE | RING | {"dropped": 2},
        dropouts={4: 1, 8: 4},
    ),
    Scenario(
        name="hybrid_semi_honest_sparse",
        comment="the hybrid suite; two clients share keys and upload nothing",
        clients=tuple(range(1, 7)),
        layout=((20, 3),),
        plan=SEMI_HONEST | RING | {"suite": Suite.HYBRID, "dropped": 1},
        dropouts={2: 2, 5: 2},
    ),
    Scenario(
        name="hybrid_active_full",
        comment="the hybrid suite, signed; one client shares keys and uploads nothing; some are half a ring apart",
        clients=tuple(range(1, 7)),
        layout=((33, 2),),
        plan=ACTIVE | FULL | {"suite": Suite.HYBRID, "dropped": 1},
        dropouts={4: 2},
    ),
    Scenario(
        name="accumulated_semi_honest_sparse",
        comment="32 clients, 4 runs; dropouts in every round",
        clients=tuple(range(3, 163, 5)),
        layout=ODD_WIDTHS,
        plan=SEMI_HONEST | RING | {"corrupted": 1, "dropped": 3, "late": 1},
        dropouts={8: 0, 43: 1, 78: 2, 113: 4},
        runs=4,
    ),
    Scenario(
        name="accumulated_active_sparse",
        comment="32 clients, 3 runs; dropouts in every round",
        clients=tuple(range(7, 7 + 32 * 1000, 1000)),
        layout=ODD_WIDTHS,
        plan=ACTIVE | RING | {"corrupted": 1, "dropped": 4, "late": 1},
        dropouts={1007: 0, 9007: 1, 12007: 2, 20007: 3, 29007: 4},
        runs=3,
    ),
)


def configure(scenario: Scenario, run: int) -> Vector:
    """Return a vector up to its operations: parameters, coins, identities, inputs."""
    server = scenario.derive(run, "coins", "server", size=64)
    layout = Layout(tuple(RingSegment(*segment) for segment in scenario.layout))
    identities = {
        role: scenario.derive(run, "identity", role, size=32)
        for role in ("authority", *(f"client/{client}" for client in scenario.clients))
        if scenario.plan["mode"] is SecurityMode.ACTIVE
    }
    authority = _signing_key(identities["authority"]).public_key if identities else bytes(32)
    standing = NO_STANDING
    if identities:
        key = _signing_key(identities["authority"])
        digest = hashlib.sha256(f"{scenario.name}/{SALT}".encode()).digest()
        standing = Standing(number=MADE, digest=digest, revoked=(3, 1000)).signed(key)
    asked: Vector = {"corrupted": 0, "dropped": 0, "minimum_cohort": 3, **scenario.plan}
    plan = plan_of(
        layout,
        InsecureRecordedCoins(server),
        **asked,
        population=len(scenario.clients),
        authority=authority,
        standing=standing,
    )
    configuration = plan.configuration
    if scenario.committee is not None:
        size, quorum = scenario.committee
        configuration = replace(configuration, committee_size=size, quorum=quorum)
    coins, inputs = dict[str, str](), dict[str, list[list[str]]]()
    for client in scenario.clients:
        role = f"client/{client}"
        # A root of the channel, a root of the masks and a self-mask seed, and the coefficients of two polynomials.
        size = 32 * (3 + 2 * (configuration.threshold - 1)) if scenario.dropouts.get(client, 5) > 1 else 96
        coins[role] = scenario.derive(run, "coins", role, size=size if scenario.dropouts.get(client, 5) else 0).hex()
        drawn = scenario.derive(run, "input", role, size=8 * sum(length for _, length in scenario.layout))
        words = [int.from_bytes(drawn[start : start + 8], "little") for start in range(0, len(drawn), 8)]
        values = iter(words)
        inputs[role] = [[str(next(values) % 2**bits) for _ in range(length)] for bits, length in scenario.layout]
    return {
        "parameters": _parameters(configuration),
        "plan": {"corrupted": plan.corrupted, "dropped": plan.dropped, "privacy_bits": plan.privacy_bits},
        "policy": {
            "minimum_cohort": 3,
            "minimum_threshold": 2,
            "minimum_modulus_bits": min(bits for bits, _ in scenario.layout),
            "maximum_length": sum(length for _, length in scenario.layout),
            "maximum_population": len(scenario.clients),
            "assumed_corrupted": plan.corrupted,
            "privacy_bits": plan.privacy_bits,
            "capacity": str(configuration.maximum_population),
        },
        "coins": {"server": server.hex(), **coins},
        "identities": {role: seed.hex() for role, seed in identities.items()},
        "inputs": inputs,
        "dropouts": {f"client/{client}": gone_by for client, gone_by in scenario.dropouts.items()},
    }


def _parameters(configuration: SessionConfiguration) -> Vector:
    written = Vector()
    for name in (item.name for item in fields(configuration) if item.init):
        value = getattr(configuration, name)
        match value:
            case bytes():
                written[name] = value.hex()
            case Standing():
                revoked = b"".join(each.to_bytes(4, "big") for each in value.revoked)
                count = len(value.revoked).to_bytes(4, "big")
                head = value.number.to_bytes(8, "big") + value.digest
                written[name] = (head + count + revoked + value.signature).hex()
            case Layout():
                written[name] = [[segment.modulus_bits, segment.length] for segment in value.require_rings()]
                written["layout_version"] = value.version.hex()
            case int():
                written[name] = str(value) if name == "round_number" else value
            case _:
                written[name] = str(value)
    return written


def configuration_of(parameters: Mapping[str, Any]) -> SessionConfiguration:
    """Return the configuration for a vector's parameters."""
    given = dict(parameters)
    version = bytes.fromhex(given.pop("layout_version"))
    given["layout"] = Layout(tuple(RingSegment(*segment) for segment in given["layout"]), version)
    given["round_number"] = int(given["round_number"])
    for name, kind in (("mode", SecurityMode), ("suite", Suite), ("topology", Topology)):
        given[name] = kind(given[name])
    standing = bytes.fromhex(given.pop("standing"))
    given["standing"] = decoded_standing(standing[:40] + standing[44:])
    read: dict[str, Any] = {name: _read(value) for name, value in given.items()}
    return SessionConfiguration(**read)


def _read(value: Any) -> Any:
    """Read hexadecimal; a member of an enumeration is not exactly of this type."""
    return bytes.fromhex(value) if type(value) is str else value


# --- Playing a session ------------------------------------------------------------------------------------------------


class Play:
    """A session of the library, recorded message by message."""

    def __init__(self, vector: Vector, recorded: Mapping[str, str]) -> None:
        """Prepare the parties; ``recorded`` has the messages of an earlier run."""
        self.operations = list[Vector]()
        self.messages = dict[str, str]()
        self.fresh = dict[str, list[list[int]]]()
        self._vector, self._recorded = vector, recorded
        configuration, opening = configuration_of(vector["parameters"]), bytes.fromhex(vector["coins"]["server"])[:32]
        self._server = Server(SessionPlan(configuration, opening, **vector["plan"]))
        self._coins = {role: InsecureRecordedCoins(bytes.fromhex(vector["coins"][role])) for role in vector["inputs"]}
        self._clients = {role: client_of(vector, role, configuration, coins) for role, coins in self._coins.items()}

    def run(self) -> Vector:
        """Run all rounds, and return the vector with its operations, messages and result."""
        server, gone_by = self._server, self._vector["dropouts"]
        self._note(0, "server", "start", sends=["offer"])
        self.messages["offer"] = server.invitation.hex()
        pending = dict.fromkeys(sorted(self._clients, key=_number), "offer")
        for stage, (state, (answer, _)) in enumerate(SERVER_TRANSITIONS.items()):
            if server.state is not state:
                continue
            for role, name in pending.items():
                if gone_by.get(role, 5) > stage:
                    self._exchange(stage, role, name, f"{role}/{answer.name.lower()}")
            if answer is MessageKind.UNMASKING_SHARES:
                break
            outgoing = close_round(server)
            kind = message_kind(outgoing[0].message).name.lower()
            pending = {str(item.receiver): f"{item.receiver}/{kind}" for item in outgoing}
            for item in outgoing:
                self.messages[pending[str(item.receiver)]] = item.message.hex()
            self._note(stage, "server", "close_round", sends=list(pending.values()))
        self._note(4, "server", "unmask")
        result = result_of(unmask(server))
        if not all(self._coins[role].is_exhausted for role in self._coins):
            raise ValueError("more coins are recorded than drawn")
        fresh = {"fresh": self.fresh} if self.fresh else {}
        return {**self._vector, **fresh, "messages": self.messages, "operations": self.operations, "result": result}

    def _exchange(self, stage: int, role: str, name: str, answer: str) -> None:
        """Pass a client its message, and the server the client's answer."""
        sent = self._clients[role].answer(bytes.fromhex(self.messages[name]))
        self._note(stage, role, "receive", message=name, sends=[answer])
        if answer.endswith("encrypted_shares") and (ranges := self._fresh_ranges(role)):
            self.fresh[answer] = ranges
            before = bytes.fromhex(self._recorded.get(answer, ""))
            if blank(before, ranges) == blank(sent, ranges):
                sent = before
        self.messages[answer] = sent.hex()
        self._server.receive(self._clients[role].client, sent)
        self._note(stage, "server", "receive", **{"from": role}, message=answer)

    def _fresh_ranges(self, role: str) -> list[list[int]]:
        """Return the parts of a client's shares that depend on HPKE's own coins: sealed data and the signature."""
        configuration, roster = self._server.configuration, self._server.roster
        if configuration.suite is Suite.CLASSIC:
            return []
        own = roster.position_of(ClientId(_number(role)))
        is_active = configuration.mode is SecurityMode.ACTIVE
        ranges, at = [[15, 64]] if is_active else list[list[int]](), 15 + 64 * is_active
        for neighbour in roster.graph.neighbours(own or 0):
            ranges.append([at, 1200])
            at += 1200
            if roster.graph.sends_edge_seed(own or 0, neighbour):
                ranges.append([at + 32, 1168])
                at += 1200
            at += 32 * is_active
        return ranges

    def _note(self, stage: int, role: str, does: str, **rest: Any) -> None:
        self.operations.append({"round": stage, "role": role, "do": does, **rest, "expect": "ok"})


MADE = 1_800_000_000
"""Time at which the vectors' authority signed its roster."""
SALT = 12
"""Chosen so that a client of the sparse session's committee drops out."""


def client_of(vector: Vector, role: str, configuration: SessionConfiguration, coins: Coins) -> Client:
    """Return a client of a vector's session."""
    policy, identities = dict(vector["policy"]), vector["identities"]
    client, capacity, signed = ClientId(_number(role)), int(policy.pop("capacity")), dict[str, Any]()
    if identities:
        authority, own = _signing_key(identities["authority"]), _signing_key(identities[role])
        signed["authority"], signed["signing_key"] = Authority(authority.public_key), own
        signed["certificate"] = issue_certificate(authority, client, own.public_key)
    accepted = ClientPolicy(suites=frozenset(Suite), modes=frozenset(SecurityMode), **policy)
    now = datetime.fromtimestamp(MADE + 60, UTC)
    member = PairwiseMember(client, policy=accepted, coins=coins, charge=uncharged, clock=lambda: now, **signed)
    payload = _payload(configuration.layout, vector["inputs"][role])
    subject = OfferedSubject.of(configuration, capacity)
    return Client(member, subject, update_of(payload, configuration.model_digest))


def result_of(aggregate: Aggregate) -> Vector:
    """Return a sum as JSON values."""
    return {
        "values": [[str(value) for value in segment.tolist()] for segment in aggregate.values],
        "contributors": str(aggregate.contributors),
    }


def blank(message: bytes, ranges: list[list[int]]) -> bytes:
    """Return a message with zeros for its unrepeatable parts."""
    blanked = bytearray(message)
    for at, length in ranges:
        blanked[at : at + length] = bytes(len(blanked[at : at + length]))
    return bytes(blanked)


def accumulate(vector: Vector, absorbed: Any) -> None:
    """Absorb one run: every message and the result, in the order of their names, each prefixed with its length."""
    values = [value for segment in vector["result"]["values"] for value in segment]
    result = ",".join([*values, vector["result"]["contributors"]]).encode()
    messages = {name: bytes.fromhex(message) for name, message in vector["messages"].items()}
    for name, message in sorted({**messages, "result": result}.items()):
        for part in (name.encode(), message):
            absorbed.update(len(part).to_bytes(4, "big") + part)


def _payload(layout: Layout, values: list[list[str]]) -> Payload:
    def vector(segment: RingSegment, written: list[str]) -> RingVector:
        return np.array([int(value) for value in written], dtype=segment.ring.word)

    pairs = zip(layout.require_rings(), values, strict=True)
    return Payload(layout, tuple(vector(segment, written) for segment, written in pairs))


def _signing_key(seed: bytes | str) -> SigningKey:
    return SigningKey(Secret("signing_seed", bytes.fromhex(seed) if isinstance(seed, str) else seed))


def _number(role: str) -> int:
    return int(role.removeprefix("client/"))


def positive(scenario: Scenario, recorded: Mapping[str, str]) -> Vector:
    """Return a positive vector, or the digest of many."""
    head = {"schema": 1, "protocol": PROTOCOL, "claims": list[str](), "provenance": POSITIVE}
    head["comment"] = scenario.comment
    if not scenario.runs:
        return head | Play(configure(scenario, 0), recorded).run()
    absorbed = hashlib.shake_128()
    for run in range(scenario.runs):
        accumulate(Play(configure(scenario, run), {}).run(), absorbed)
    first = configure(scenario, 0)
    shape = {name: first[name] for name in ("plan", "policy", "dropouts")}
    parameters = {name: value for name, value in first["parameters"].items() if name not in _DRAWN}
    clients = [f"client/{client}" for client in scenario.clients]
    accumulated = {"runs": scenario.runs, "digest": absorbed.hexdigest(32)}
    return head | {"parameters": parameters, **shape, "clients": clients, "accumulated": accumulated}


_DRAWN = ("authority", "graph_commitment", "server_nonce")
"""Parameters that differ from run to run."""


# --- Files ------------------------------------------------------------------------------------------------------------


def vectors(recorded: Mapping[str, Vector]) -> Iterator[tuple[str, Vector]]:
    """Make every vector; ``recorded`` are those of an earlier run, by name."""
    bases = dict[str, Vector]()
    for scenario in SCENARIOS:
        bases[scenario.name] = positive(scenario, recorded.get(scenario.name, {}).get("messages", {}))
        yield scenario.name, bases[scenario.name]
    for case in NEGATIVES:
        head = {"schema": 1, "protocol": PROTOCOL, "claims": list[str](), "provenance": NEGATIVE}
        yield case.name, head | {"comment": case.name.replace("_", " ")} | negative(case, bases[case.base])


def to_text(vector: Vector) -> str:
    """Write a vector with one line for each operation, message and input."""
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {_lines(value)}" for key, value in vector.items()) + "\n}\n"


def _lines(value: Any) -> str:
    match value:
        case {"runs": _} | []:
            return json.dumps(value)
        case dict():
            items = cast("dict[str, object]", value).items()
            return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(item)}" for key, item in items) + "\n }"
        case list():
            return "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in cast("list[object]", value)) + "\n ]"
        case _:
            return json.dumps(value)


def read_folder(folder: Path) -> dict[str, Vector]:
    """Read the vectors of a folder."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}


def write_folder(folder: Path, made: Mapping[str, Vector]) -> None:
    """Write every vector of a folder, and remove obsolete ones."""
    folder.mkdir(exist_ok=True)
    for file in folder.glob("*.json"):
        if file.stem not in made:
            file.unlink()
    for name, vector in made.items():
        (folder / f"{name}.json").write_text(to_text(vector), encoding="utf-8")


def committed() -> dict[str, Vector]:
    """Read the stored vectors."""
    return read_folder(FOLDER)


def main() -> None:
    """Write every vector, and remove obsolete ones."""
    write_folder(FOLDER, dict(vectors(committed())))


if __name__ == "__main__":
    main()
