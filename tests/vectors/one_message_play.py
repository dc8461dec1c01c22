"""A sum of one message a client from the materials of a vector: who is there, and what each is handed and says."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from secagg.contract import Aggregate, Layout, Payload, RingSegment
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.one_message.client import Ledger, OneMessageMember
from secagg.protocols.one_message.configuration import NO_KEY, Agreement, EpochRecord, HolderIdentity, Offer
from secagg.protocols.one_message.holder import Holder
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.session import plan_epoch, plan_offer
from secagg.protocols.one_message.tally import Tally
from secagg.session.certificates import NO_STANDING, SigningKey, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.roles import ClientSession, LazyUpdate, Subject, Update
from secagg.session.signing_keys import issue_certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import FORM
from tests.harness.recorded_coins import InsecureRecordedCoins

Vector = dict[str, Any]
NOW = 1_800_000_000
EXPIRY = NOW + 3600
MODEL = hashlib.sha256(b"a model").digest()
SERVER = "server"


class Play:
    """Everybody who takes part in the sum of a vector."""

    def __init__(self, vector: Vector) -> None:
        """Prepare the parties; of the messages, those that are recorded are used again."""
        self.vector, self.messages = vector, dict[str, bytes]()
        self.recorded: Mapping[str, str] = vector.get("messages", {})
        self.setting: Vector = vector["setting"]
        self.keys = {role: _signing_key(seed) for role, seed in vector["identities"].items()}
        self.mode, self.suite = SecurityMode(self.setting["mode"]), Suite(self.setting["suite"])
        self.layout = Layout(tuple(RingSegment(*row) for row in self.setting["layout"]))
        self.positions = range(self.setting["holders"])
        self.clients = [ClientId(int(role.partition("/")[2])) for role in vector["inputs"]]
        self.coins = {role: InsecureRecordedCoins(bytes.fromhex(coins)) for role, coins in vector["coins"].items()}
        self._holders, self._server = dict[int, Holder](), list[Tally]()
        self.result: Aggregate | None = None

    # --- Who is there -------------------------------------------------------------------------------------------------

    @property
    def record(self) -> EpochRecord:
        """What the authority signs."""
        holders = [HolderIdentity(number=50 + at, public_key=self._public_key(f"holder/{at}")) for at in self.positions]
        record = plan_epoch(
            holders,
            number=1,
            expiry=EXPIRY,
            corrupted=self.setting["corrupted"],
            suite=self.suite,
            authority=self._public_key("authority"),
        )
        return record.signed(self.keys["authority"]) if self.keys else record

    def _public_key(self, role: str) -> bytes:
        return self.keys[role].public_key if self.keys else NO_KEY

    @property
    def policy(self) -> ClientPolicy:
        """What clients insist on, and holders in their place."""
        return ClientPolicy(
            authority=self._public_key("authority") if self.keys else None,
            suites=frozenset({self.suite}),
            modes=frozenset({self.mode}),
            minimum_holders=len(self.positions),
            assumed_corrupted_holders=self.setting["corrupted"],
            assumed_corrupted=1,
            minimum_cohort=3,
            minimum_modulus_bits=1,
            maximum_length=1 << 10,
            maximum_population=self.setting["capacity"],
        )

    @property
    def subject(self) -> Subject:
        """What clients train for."""
        return Subject(
            task=self.setting["task"].encode(),
            round_number=self.setting["round_number"],
            layout=self.layout,
            capacity=self.setting["capacity"],
            model_digest=MODEL,
        )

    def holder(self, position: int) -> Holder:
        """Return a holder, which begins once."""
        if position not in self._holders:
            role = f"holder/{position}"
            drawn = b"".join(bytes.fromhex(part) for part in self.vector["roots"][role])
            self._holders[position] = Holder(
                EpochRecord.decode(self.messages["record"]),
                position,
                coins=InsecureRecordedCoins(drawn),
                policy=self.policy,
                clock=_clock,
                signing_key=self.keys.get(role),
                ticks=lambda: 0.0,
            )
        return self._holders[position]

    def client(self, client: ClientId) -> OneMessageMember:
        """Return a client that has uploaded nothing."""
        role = f"client/{client.value}"
        key = self.keys.get(role)
        return OneMessageMember(
            client,
            policy=self.policy,
            ledger=lambda task: Ledger(task, lambda _: None),
            coins=self.coins[role],
            clock=_clock,
            signing_key=key,
            certificate=issue_certificate(self.keys["authority"], client, key.public_key) if key else None,
        )

    def session(self, client: ClientId) -> ClientSession:
        """Return a client's session, which has answered nothing."""
        role = f"client/{client.value}"
        rows = self.vector["inputs"][role]
        values = [
            segment.ring.from_integers([int(value) for value in row])
            for segment, row in zip(self.layout.require_rings(), rows, strict=True)
        ]
        update = Update(Payload(self.layout, tuple(values)), MODEL)
        return self.client(client).join(self.subject, LazyUpdate(lambda: update))

    def upload(self, client: ClientId, offer: bytes) -> bytes:
        """Have a client answer an offer; what HPKE draws, and what is signed with it, is taken over."""
        made = self.session(client).answer(offer)
        before = bytes.fromhex(self.recorded.get(f"upload/{client.value}", ""))
        return before if before and _repeatable(before) == _repeatable(made) else made

    def offer(self) -> Offer:
        """Return the offer, once the holders have published their keys."""
        bounds = [tuple(bound) if bound else None for bound in self.setting["bounds"]]
        return plan_offer(
            EpochRecord.decode(self.messages["record"]),
            [self.messages[f"keys/{position}"] for position in self.positions],
            self.subject,
            capacity=self.setting["capacity"],
            minimum_cohort=3,
            corrupted_clients=1,
            bounds=bounds,
            standing=self.standing,
            message_form=self.vector.get("form", FORM),
        )

    @property
    def standing(self) -> Standing:
        """The head of the authority's roster, on which others were revoked."""
        if not self.keys:
            return NO_STANDING
        return Standing(number=NOW, digest=MODEL, revoked=(3, 1000)).signed(self.keys["authority"])

    @property
    def agreement(self) -> Agreement:
        """What everything is bound to."""
        return Offer.decode(self.messages["proposal"]).agree()

    @property
    def server(self) -> Tally:
        """The server, which begins with the offer to holders."""
        if not self._server:
            self._server.append(Tally(Offer.decode(self.messages["proposal"]), InsecureSeededCoins(bytes(32))))
        return self._server[0]

    # --- What happens -------------------------------------------------------------------------------------------------

    def operations(self) -> list[Vector]:
        """Return what happens, in order: who takes what or does what, and what it says."""
        holders = [f"holder/{position}" for position in self.positions]
        found = [_operation(role, "record", [f"keys/{at}"]) for at, role in enumerate(holders)]
        found.append({"party": SERVER, "does": "plan", "says": ["proposal"]})
        found += self._asked("proposal", "greeting")
        found.append({"party": SERVER, "does": "offer", "says": ["offer"]})
        found += [_operation(f"client/{one.value}", "offer", [f"upload/{one.value}"]) for one in self.clients]
        found += [_operation(SERVER, f"upload/{one.value}", []) for one in self.clients]
        found.append({"party": SERVER, "does": "deliver", "says": [f"delivery/{at}" for at in self.positions]})
        found += [_operation(role, f"delivery/{at}", [f"receipt/{at}"]) for at, role in enumerate(holders)]
        found += [_operation(SERVER, f"receipt/{at}", []) for at in self.positions]
        found.append({"party": SERVER, "does": "list", "says": ["list"]})
        found += self._asked("list", "signature")
        found.append({"party": SERVER, "does": "certify", "says": ["certified_list"]})
        found += self._asked("certified_list", "answer")
        found.append({"party": SERVER, "does": "open", "says": []})
        return found

    def _asked(self, request: str, reply: str) -> list[Vector]:
        asked = [_operation(f"holder/{at}", request, [f"{reply}/{at}"]) for at in self.positions]
        return asked + [_operation(SERVER, f"{reply}/{at}", []) for at in self.positions]

    def perform(self, operation: Vector, instead: bytes | None = None) -> None:
        """Let an operation happen, and keep what is said; ``instead`` is taken in the place of its message."""
        party, _, number = operation["party"].partition("/")
        taken = str(operation.get("takes", ""))
        message = self.messages.get(taken, b"") if instead is None else instead
        if "does" in operation:
            self._do(operation["does"])
        elif party == "holder":
            [said] = operation["says"]
            self.messages[said] = self.holder(int(number)).respond(message)
        elif party == "client":
            [said] = operation["says"]
            self.messages[said] = self.upload(ClientId(int(number)), message)
        elif taken.startswith("upload/"):
            self.server.receive_upload(ClientId(int(str(operation.get("from", taken)).partition("/")[2])), message)
        else:
            self.server.receive(int(taken.partition("/")[2]), message)

    def _do(self, what: str) -> None:
        messages = self.messages
        match what:
            case "plan":
                messages["proposal"] = self.offer().encode()
            case "offer":
                messages["offer"] = self.server.offer
            case "deliver":
                messages.update({f"delivery/{at}": sent for at, sent in self.server.deliver().items()})
            case "list":
                self.server.settle()
                self.server.fix_list()
                messages["list"] = self.server.upload_list.encode()
            case "certify":
                self.server.certify()
                messages["certified_list"] = self.server.requests()[0]
            case _:
                self.result = self.server.open().aggregate


def _operation(party: str, takes: str, says: list[str]) -> Vector:
    return {"party": party, "takes": takes, "says": says}


def _repeatable(upload: bytes) -> tuple[object, ...]:
    """Return what of an upload follows from its client's coins: all but what HPKE drew, and what is made over that."""
    read = Upload.decode(upload)
    return (
        read.t0,
        read.header,
        read.pieces,
        read.vector,
        len(read.polynomial),
        tuple(map(len, read.sealed)),
        len(read.signature),
    )


def _signing_key(seed: str) -> SigningKey:
    return SigningKey(Secret("signing_seed", bytes.fromhex(seed)))


def _clock() -> datetime:
    return datetime.fromtimestamp(NOW, UTC)


def result_of(aggregate: Aggregate) -> Vector:
    """Write down a sum."""
    return {
        "values": [[str(value) for value in segment.tolist()] for segment in aggregate.values],
        "contributors": aggregate.contributors,
    }


def resigned(message: Any, key: SigningKey, agreement: Agreement, label: Any) -> bytes:
    """Return a holder's message with a signature on what it says now."""
    encoded: bytes = replace(message, signature=agreement.sign(key, label, *message.parts)).encode()
    return encoded
