"""What a session sends: every byte accounted for, against the formula of [BIK+17] and against the packed vector.

The formulas here are written from the message layouts and not from the code: a field that is added to a message, or a
copy of something that a client has already, breaks an equality.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from secagg.contract import Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask import Server, ServerState, SessionConfiguration, Topology
from secagg.protocols.pairwise_mask.configuration import Roster
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup
from tests.harness.pairwise_traffic import bonawitz_bits, expansion

HEADER, DIGEST, ELEMENT, SIGNATURE, TAG = 7 + 8, 32, 32, 64, 16
"""Every message of a session begins with its header and the tag of its context."""
COUNT = 4
X25519_KEY, HYBRID_KEY = 32, 1184 + 32
HYBRID_SEALING = 1088 + 32 + TAG
ADVERTISING, SHARING, MASKING, CONFIRMING, UNMASKING = (
    ServerState.AWAITING_KEY_ADVERTISEMENTS,
    ServerState.AWAITING_ENCRYPTED_SHARES,
    ServerState.AWAITING_MASKED_INPUTS,
    ServerState.AWAITING_SURVIVOR_SIGNATURES,
    ServerState.AWAITING_UNMASKING_SHARES,
)


@dataclass(frozen=True)
class Traffic:
    """What went to and from each client in each round of a finished session."""

    server: Server
    configuration: SessionConfiguration
    down: dict[ServerState, dict[ClientId, int]] = field(default_factory=lambda: defaultdict(dict))
    up: dict[ServerState, dict[ClientId, int]] = field(default_factory=lambda: defaultdict(dict))

    @property
    def roster(self) -> Roster:
        return self.server.roster

    def of(self, client: ClientId) -> int:
        return sum(by_client.get(client, 0) for table in (self.down, self.up) for by_client in table.values())

    def sent_by(self, client: ClientId) -> int:
        return sum(by_client.get(client, 0) for by_client in self.up.values())


def traffic_of(setup: SessionSetup, length: int) -> Traffic:
    """Play a session of 16-bit values; those who drop out do so in turn before each round after the first."""
    bits = 16 + (setup.population - 1).bit_length()
    session = InsecurePairwiseSession(replace(setup, corrupted=0, layout=Layout((RingSegment(bits, length),))))
    traffic = Traffic(session.server, session.server.configuration)
    leaving = [session.client_ids[turn * setup.population // setup.dropped] for turn in range(setup.dropped)]
    session.step()
    while session.server.state is not UNMASKING:
        session.drop(*leaving[:1])
        del leaving[:1]
        session.step()
    session.drop(*leaving)
    session.finish()
    for each in session.log:
        if isinstance(each.receiver, ClientId):
            traffic.down[each.state][each.receiver] = len(each.message)
        elif isinstance(each.sender, ClientId):
            traffic.up[each.state][each.sender] = len(each.message)
    return traffic


# --- The formulas -----------------------------------------------------------------------------------------------------


def nodes_of_proof(positions: Iterable[int], count: int) -> int:
    """How many hashes prove these leaves of a tree: level by level, the siblings that nobody has."""
    known, width, nodes = set(positions), count, 0
    while width > 1:
        siblings = {position ^ 1 for position in known}
        nodes += len({sibling for sibling in siblings - known if sibling < width})
        known, width = {position >> 1 for position in known}, (width + 1) >> 1
    return nodes


def bits_for(count: int) -> int:
    """Count the bytes of a set among this many."""
    return (count + 7) // 8


def masked_bytes(configuration: SessionConfiguration) -> int:
    """Count the bytes of each segment and of the weight, with check words of 64 bits and 8 words at least."""
    widths = [(segment.modulus_bits, segment.length) for segment in configuration.layout.require_rings()]
    widths.append(((configuration.maximum_population * configuration.maximum_weight).bit_length(), 1))
    return sum(bits_for(bits * (length + max(8, -(-64 // bits)))) for bits, length in widths)


@dataclass(frozen=True)
class Terms:
    """The sizes that depend on mode and suite alone."""

    active: bool
    hybrid: bool

    @property
    def key(self) -> int:
        return HYBRID_KEY if self.hybrid else X25519_KEY

    @property
    def signature(self) -> int:
        return SIGNATURE if self.active else 0

    @property
    def credential(self) -> int:
        """An identity key, the authority's signature on it, and a signature made with it."""
        return DIGEST + 2 * SIGNATURE if self.active else 0

    @property
    def entry(self) -> int:
        """What a client learns of a neighbour in round 0."""
        return 2 * self.key + (DIGEST if self.active else 0) + self.credential

    @property
    def sealed(self) -> int:
        """Two sealed shares, and a commitment to them."""
        return 2 * ELEMENT + (HYBRID_SEALING if self.hybrid else TAG) + (DIGEST if self.active else 0)

    @property
    def edge(self) -> int:
        """The sealed seed of an edge and the commitment to it, from one of its ends."""
        return DIGEST + ELEMENT + HYBRID_SEALING if self.hybrid else 0

    @property
    def shown(self) -> int:
        """A share, and the digest of the other one."""
        return ELEMENT + (DIGEST if self.active else 0)


def due(traffic: Traffic, client: ClientId) -> dict[tuple[ServerState, str], int]:
    """Every message of one client that answered everywhere, from what is public about its place in the graph."""
    configuration, roster = traffic.configuration, traffic.roster
    terms = Terms(configuration.mode is SecurityMode.ACTIVE, configuration.suite is Suite.HYBRID)
    position = roster.clients.index(client)
    neighbours = roster.graph.neighbours(position)
    k, n = len(neighbours), roster.population
    sharers = {roster.clients.index(other) for other in traffic.up[SHARING]}
    contributors = {roster.clients.index(other) for other in traffic.up[MASKING]}
    present = [other for other in neighbours if other in sharers]
    sends = roster.graph.sends_edge_seed
    received_edges = sum(terms.edge for other in present if sends(other, position))
    sent_edges = sum(terms.edge for other in neighbours if sends(position, other))
    paths = 0
    if terms.active:
        for other in present:
            theirs = roster.graph.neighbours(other)
            paths += SIGNATURE + 1 + DIGEST * nodes_of_proof([theirs.index(position)], len(theirs))
    survivors = sum(other in contributors for other in present)
    lost_edges = sum(terms.hybrid and other not in contributors for other in present)
    messages = {
        (ADVERTISING, "down"): len(configuration.encode()),
        (ADVERTISING, "up"): HEADER + 8 + 2 * terms.key + DIGEST + terms.credential,
        # The first id takes two bytes of the list here, and each gap one.
        (SHARING, "down"): HEADER + (COUNT + n + 1) + DIGEST + DIGEST + (COUNT + k * terms.entry)
        + (COUNT + DIGEST * nodes_of_proof([position, *neighbours], n)),
        (SHARING, "up"): HEADER + terms.signature + k * terms.sealed + sent_edges,
        (MASKING, "down"): HEADER + bits_for(n) + len(present) * terms.sealed + received_edges + paths,
        (MASKING, "up"): HEADER + terms.signature + masked_bytes(configuration),
        (UNMASKING, "down"): HEADER + bits_for(n)
        + (COUNT + configuration.quorum * (COUNT + DIGEST + 2 * SIGNATURE))
        + (COUNT + (survivors * (DIGEST + SIGNATURE) if terms.active else 0)),
        (UNMASKING, "up"): HEADER + terms.signature + bits_for(len(present)) + len(present) * terms.shown
        + lost_edges * ELEMENT,
    }  # fmt: skip
    if terms.active and client in traffic.up[CONFIRMING]:
        messages[CONFIRMING, "down"] = HEADER + 2 * bits_for(n)
        messages[CONFIRMING, "up"] = HEADER + SIGNATURE
    return messages


# --- The formula of [BIK+17] ------------------------------------------------------------------------------------------


def test_the_formula_gives_the_published_expansion() -> None:
    assert expansion(1 << 10, 1 << 20) == pytest.approx(1.734, abs=0.0005)
    assert expansion(1 << 14, 1 << 24) == pytest.approx(1.984, abs=0.0005)


@pytest.mark.parametrize("arguments", [(0, 1), (1, 0), (1, 1, 0)])
def test_the_formula_refuses_counts_below_one(arguments: tuple[int, ...]) -> None:
    with pytest.raises(InvalidParameters):
        bonawitz_bits(*arguments)


@pytest.mark.parametrize(("clients", "length"), [(8, 100), (24, 2000)])
def test_a_full_graph_exceeds_the_formula_by_tags_ids_and_framing_alone(clients: int, length: int) -> None:
    traffic = traffic_of(SessionSetup(population=clients, dropped=0, mode=SecurityMode.SEMI_HONEST), length)
    configuration, n = traffic.configuration, clients
    # The formula leaves out authenticated encryption: a tag on each pair of shares, one sent and one received. Of each
    # client it counts one bit of the survivors; here everybody gets a byte of its id, a bit of the sharers, a bit of
    # the survivors, and answers with a bit for each neighbour. It counts a share of one's own, which nobody sends.
    excess_bits = 2 * (n - 1) * TAG * 8 + (n + 1) * 8
    excess_bits += 2 * 8 * bits_for(n) + 8 * bits_for(n - 1) - n
    excess_bits -= 256
    framing = 7 * HEADER + len(configuration.encode())
    framing += 8 + DIGEST  # Advertised: one's id and the commitment to one's self-mask seed.
    framing += COUNT + DIGEST + DIGEST + COUNT + COUNT  # With the roster: root, opening, three counts.
    framing += 2 * COUNT  # With the survivors: no endorsements, no views.
    (segment,) = configuration.layout.require_rings()
    framing_bits = 8 * (framing + masked_bytes(configuration)) - length * segment.modulus_bits
    for client in traffic.roster.clients:
        formula = bonawitz_bits(clients, length)
        # A ring of codes of 16 bits, with their sign, is as wide as the formula's.
        assert 8 * traffic.of(client) == formula + excess_bits + framing_bits


# --- Every message ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", [0, 4])
@pytest.mark.parametrize("suite", list(Suite))
@pytest.mark.parametrize("mode", list(SecurityMode))
@pytest.mark.parametrize("topology", list(Topology))
def test_every_message_has_the_length_that_its_place_in_the_graph_gives(
    topology: Topology, mode: SecurityMode, suite: Suite, dropped: int
) -> None:
    bits = 100 if mode is SecurityMode.ACTIVE else 40
    setup = SessionSetup(mode=mode, topology=topology, suite=suite, population=20, dropped=dropped, privacy_bits=bits)
    traffic = traffic_of(setup, 33)
    finished = traffic.up[UNMASKING].keys()
    assert len(finished) == 20 - dropped
    for client in finished:
        sizes = {
            (state, direction): table[state][client]
            for direction, table in (("down", traffic.down), ("up", traffic.up))
            for state in table
            if client in table[state]
        }
        assert sizes == due(traffic, client)
