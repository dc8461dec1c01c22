"""What a node has for a session, from the terms that it was sent: its member, its ledger, and what it sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from secagg.compression.model_update import ModelUpdate, decode_parameters
from secagg.compression.outside import Factory
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label
from secagg.identifiers import ClientId
from secagg.session.roles import Member, Subject
from secagg.session.sealed_state import StateDirectory

from .charges import Charges
from .floors import NodeSettings
from .keys.identities import ClientIdentity
from .plugs import NodeSide, plug_of
from .terms import Terms

_LATCHES: Final = "latches"
_HOLDINGS: Final = "holdings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a platform: the floors of its app, raised by its operator, and where it keeps what must last."""

    settings: NodeSettings
    config: Mapping[str, Any]
    """The operator's own keys."""
    client: ClientId
    """Who it is where clients have no keys."""
    states: StateDirectory
    outside: Mapping[str, Factory]
    """Schemes from outside that the app itself brings, by name."""
    judge: object | None = None

    def begun(self, terms: Terms) -> NodeRound:
        """Look at the terms of a session.

        Raises:
            InvalidParameters: a floor is above them.
        """
        self.settings.require_protocol(terms.protocol)
        update = decode_parameters(terms.parameters, outside=self.outside)
        identity = self.settings.load_identity(self.config) if terms.is_certified else None
        if identity is None:
            charges = Charges.of_node(self.states, self.client.value)
        else:
            is_strict = not self.settings.allow_repeats
            charges = Charges.of_key(identity.signing_key.public_key, is_strict=is_strict)
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
        self.charges.require_open(self.terms.task.encode(), self.terms.round_number)

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

    def signature(self, answer: bytes) -> bytes:
        """Sign an answer, so that none in this client's name counts that is not its own; nothing without a key."""
        if self.identity is None:
            return b""
        return self.identity.signing_key.sign(Label.PLATFORM_ANSWER, self.terms.digest, answer)

    def subject(self, model_digest: bytes | None) -> Subject:
        """Return what this client expects the session to be about."""
        return Subject(
            task=self.terms.task.encode(),
            round_number=self.terms.round_number,
            layout=self.update.layout,
            capacity=self.update.capacity,
            tables=self.update.tables,
            terms=self.terms.digest,
            model_digest=model_digest,
        )
