"""Two servers on platforms: this process is server 0; server 1 belongs to another operator, or is simulated.

Parameters of a round are part of its configuration, so configurations differ per round. Server 1 takes part if its
operator's policy admits the configuration; clients bind both servers to it, and name the two keys that they trust.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters, Reason
from secagg.parameters import LEAST_COHORT
from secagg.protocols.two_servers import (
    OperatorPolicy,
    PeerLink,
    StandingRounds,
    StandingServer,
    TwoServersHelpers,
    TwoServersMember,
    TwoServersOptions,
    asking,
    configure,
    exchange_bytes,
    load_server_keys,
    load_server_pair,
    open_session,
    simulated_servers,
    trial_server_keys,
)
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import uncharged
from secagg.session.roles import ServerSession
from secagg.session.sockets import HelperLost
from secagg.session.store import Store

from . import LOG
from .client_node import state_folder
from .plugs import NodeSide, ServerSide
from .settings import PREFIX

_LONGEST: Final = timedelta(hours=24)
_MOST_LANES: Final = 1 << 34


def opened(side: ServerSide) -> ServerSession:
    """Start a round with server 1."""
    chosen: TwoServersOptions = side.chosen
    helpers = _real(side, chosen) if side.settings.second_server else _simulated(side)
    return open_session(side.subject, chosen, side.invited, helpers)


def _real(side: ServerSide, chosen: TwoServersOptions) -> TwoServersHelpers:
    settings = side.settings
    pair = load_server_pair(Path(settings.servers))
    zero = side.resources.enter_context(load_server_keys(Path(settings.server_keys), 0))
    if zero.public != pair.operators[0]:
        raise InvalidParameters(f"{PREFIX}server-keys is not the key file of server 0 in {settings.servers}")

    def ask(request: bytes) -> bytes:
        try:
            return link.ask(request)
        except OSError as error:
            raise HelperLost(
                f"no server 1 answers at {PREFIX}second-server = {settings.second_server} ({error}); ask its operator "
                "to start `secagg server serve` with the same keys and journal. This round is over, and the updates "
                "sent for it are spent; the next round has another number"
            ) from error

    helpers = TwoServersHelpers(
        keys=zero,
        server_one=pair.operators[1],
        authority=side.authority,
        standing=side.standing,
        ask=ask,
        coins=side.coins,
        clock=side.clock,
    )
    longest = exchange_bytes(configure(side.subject, chosen, side.invited, helpers))
    link = PeerLink(settings.second_server, zero, pair.operators[1], side.coins, answer_bytes=longest)
    side.resources.callback(link.close)
    return helpers


def _simulated(side: ServerSide) -> TwoServersHelpers:
    LOG.warning("a simulated second server protects no client from this one; set %ssecond-server to a real one", PREFIX)
    zero, one = (side.resources.enter_context(keys) for keys in trial_server_keys(side.coins))
    policy = OperatorPolicy(
        weakest=ClientPolicy(
            authority=side.authority,
            server_keys=(zero.public.signing_key, one.public.signing_key),
            minimum_cohort=LEAST_COHORT,
        ),
        task_prefix=side.subject.task,
        maximum_cohort=side.population,
        maximum_lanes=_MOST_LANES,
        maximum_lifetime=_LONGEST,
    )
    standing = StandingServer(one, zero.public, policy, StandingRounds(), coins=side.coins)
    side.resources.callback(standing.end_round)
    return TwoServersHelpers(
        keys=zero,
        server_one=one.public,
        authority=side.authority,
        standing=side.standing,
        ask=asking(standing.answer),
        coins=side.coins,
        clock=side.clock,
        is_simulated=True,
    )


def member(side: NodeSide) -> TwoServersMember:
    """Return a client; its upload is charged when its update is made."""
    identity, settings = side.identity, side.settings
    return TwoServersMember(
        certificate=identity.certificate,
        signing_key=identity.signing_key,
        policy=replace(settings.policy, authority=identity.authority.public_key, server_keys=_believed(side)),
        charge=uncharged,
        clock=side.clock,
        coins=side.coins,
        standings=Store.at(state_folder()),
        accepts_simulated=settings.allow_simulated_second_server,
    )


def _believed(side: NodeSide) -> tuple[bytes, bytes]:
    """Return the keys of the two servers that this client trusts not to collude."""
    if (shown := simulated_servers(side.invitation)) is not None:
        if side.settings.allow_simulated_second_server:
            return shown
        raise InvalidParameters(
            "the first server simulates the second and can read all updates; let another party run a server, or set "
            "allow_simulated_second_server in a simulation",
            reason=Reason.BELOW_FLOOR,
        )
    if side.settings.servers is None:
        raise InvalidParameters(
            f"this client has no two servers to trust; set {PREFIX}servers on the node, or SecAggMod(servers=...)",
            reason=Reason.BELOW_FLOOR,
        )
    return load_server_pair(Path(side.settings.servers)).server_keys
