"""The step of a client that is resumed, made from its record by the functions that made it the first time."""

from __future__ import annotations

from typing import Final

from secagg.errors import MalformedMessage, Reason

from .advertisement import verify_entry
from .client_record import ClientRecord
from .client_set import ClientSet, set_bytes
from .configuration import SessionConfiguration
from .member import Member
from .roster import roster_of
from .round0_advertise_keys import Advertised, AdvertisedKeys, VerifiedKeySet, accept_advertised_keys, advertise_keys
from .round1_share_keys import Shared
from .round2_masked_input import Masked
from .round3_consistency_check import Confirmed
from .transitions import ClientState

BEFORE_UPLOAD: Final = frozenset({ClientState.AWAITING_ADVERTISED_KEYS, ClientState.AWAITING_DELIVERED_SHARES})


def step_of(
    record: ClientRecord, member: Member, configuration: SessionConfiguration
) -> Advertised | Shared | Masked | Confirmed:
    """Return the step; the member's coins are those of the record, as far as any are left.

    Raises:
        MalformedMessage: the record contradicts itself.
        PeerError, InvalidParameters: what the server said then is refused now.
    """
    if record.state not in BEFORE_UPLOAD:
        key_set = _verified_keys(record, member, configuration)
        population = key_set.roster.population
        masked = Masked(
            key_set, _set_of(record.sharers, population), record.delivered, record.shares, record.edge_seeds
        )
        return Confirmed(masked, _set_of(record.contributors, population)) if record.contributors else masked
    # The keys follow from the recorded coins.
    advertised, _ = advertise_keys(member, configuration)
    if record.state is ClientState.AWAITING_ADVERTISED_KEYS:
        return advertised
    key_set = accept_advertised_keys(member, advertised, AdvertisedKeys.decode(record.advertised_keys, configuration))
    return Shared(key_set, advertised.keys, advertised.self_mask_seed, record.edges)


def _verified_keys(record: ClientRecord, member: Member, configuration: SessionConfiguration) -> VerifiedKeySet:
    """Read the roster again, whose proof was checked when it came; of the client's own keys nothing is left."""
    message = AdvertisedKeys.decode(record.advertised_keys, configuration)
    roster = roster_of(configuration, message.clients, message.root, message.opening)
    position = roster.position_of(record.client)
    if position is None:
        raise MalformedMessage("a record's roster does not name its client", reason=Reason.NOT_CANONICAL)
    neighbours = roster.graph.neighbours(position)
    advertisers = {
        neighbour: verify_entry(entry, roster.clients[neighbour], configuration, member.authority)
        for neighbour, entry in zip(neighbours, message.entries, strict=True)
    }
    return VerifiedKeySet(roster, position, neighbours, advertisers)


def _set_of(encoded: bytes, population: int) -> ClientSet:
    bits = int.from_bytes(encoded, "little")
    if len(encoded) != set_bytes(population) or bits >> population:
        raise MalformedMessage("a record's set has another population", reason=Reason.NOT_CANONICAL)
    return ClientSet(population, bits)
