"""What a node has for a session, from the terms that it was sent: its member, its ledger, and what it sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Final, cast

from secagg.compression.model_update import ModelUpdate, decode_parameters
from secagg.compression.outside import Factory, outside_factory
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.session.ledger import Spent
from secagg.session.roles import ClientSession, Member
from secagg.session.sealed_state import StateDirectory

from .charges import Charges
from .floors import NodeSettings
from .keys.identities import ClientIdentity
from .leaving import LOG
from .pairwise_plug import floors_of
from .plugs import NodeSide, plug_of
from .terms import Record, Terms, record_of

_LATCHES: Final = "latches"
_HOLDINGS: Final = "holdings"


def begun_app(floors: Mapping[str, Any], scheme: str | None) -> tuple[NodeSettings, dict[str, Factory]]:
    """Return the floors of an app, and the scheme from outside that it brings.

    Raises:
        InvalidParameters: a floor that there is not, is of another type or protects nobody; a scheme that is none.
    """
    known = [item.name for item in fields(NodeSettings)]
    if unknown := [name for name in floors if name not in known]:
        raise InvalidParameters(f"{unknown[0]} is no floor of a client; there are {', '.join(known)}")
    given: dict[str, Any] = {
        name: tuple(cast("Iterable[object]", value)) if isinstance(value, list) else value
        for name, value in floors.items()
    }
    settings = NodeSettings(**given)
    floors_of(settings)
    return settings, {} if scheme is None else {scheme: outside_factory(scheme)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a platform: the floors of its app, raised by its operator, and where it keeps what must last."""

    settings: NodeSettings
    config: Mapping[str, Any]
    """The operator's own keys."""
    client: ClientId
    """Who it is where clients have no keys."""
    run: str
    """What the platform calls its run; a server may say more, such as the number of its own process."""
    states: StateDirectory
    outside: Mapping[str, Factory]
    """Schemes from outside that the app itself brings, by name."""
    judge: object | None = None

    def begun(self, terms: Terms) -> NodeRound:
        """Look at the terms of a session.

        Raises:
            InvalidParameters: a floor is above them, or they are of another run.
        """
        if not f"{terms.task} ".startswith(f"{self.run} "):
            raise InvalidParameters(
                f"the server says {terms.task!r}, and this is {self.run!r}", reason=Reason.BELOW_FLOOR
            )
        self.settings.require_protocol(terms.protocol)
        update = decode_parameters(terms.parameters, outside=self.outside)
        identity = self.settings.load_identity(self.config) if terms.is_certified else None
        if identity is None:
            charges = Charges.of_node(self.states, self.client.value)
        else:
            attempts = None if self.settings.allow_repeats else self.settings.attempts
            charges = Charges.of_key(identity.signing_key.public_key, attempts=attempts)
        return NodeRound(node=self, terms=terms, update=update, identity=identity, charges=charges)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRound:
    """A node in one session."""

    node: Node
    terms: Terms
    update: ModelUpdate
    identity: ClientIdentity | None
    charges: Charges

    def require_open(self) -> None:
        """Refuse a round that was uploaded for before.

        Raises:
            PeerMisbehaved: it was.
        """
        self.charges.require_open(Spent(self.terms.task.encode(), self.terms.round_number))

    def member(self, invitation: bytes) -> Member:
        """Return the client; the invitation is empty where a session goes on."""
        node = self.node
        side = NodeSide(
            settings=node.settings,
            client=node.client if self.identity is None else self.identity.client,
            certified=self.identity,
            invitation=invitation,
            judge=node.judge,
            latches=node.states.beside(_LATCHES),
            holdings=node.states.folder / _HOLDINGS,
            noise=node.settings.noise_for(self.terms.protocol, self.update),
            privacy=node.settings.privacy_ledger(self.identity.signing_key.public_key if self.identity else None),
            coins=SystemCoins(),
            clock=lambda: datetime.now(UTC),
        )
        return plug_of(self.terms.protocol).member(side)

    def answer(self, session: ClientSession, message: bytes) -> Record:
        """Return the record that answers a message.

        It is signed where the client has a key, so that none in its name counts that is not its own.
        """
        answer = session.answer(message)
        for fault in session.faults:
            LOG.warning("%s: %s", session.client, fault)
        LOG.debug("%s: answered a message of round %d", session.client, self.terms.round_number)
        key = None if self.identity is None else self.identity.signing_key
        signature = b"" if key is None else key.sign(Label.PLATFORM_ANSWER, self.terms.digest, answer)
        return record_of(answer, session.client, signature=signature)
