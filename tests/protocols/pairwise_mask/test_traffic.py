"""A session's messages and declared costs: every byte of every message is accounted for.

The formulas here are written from the message layouts, not from the code: an added field, or a copy of data that a
client already has, breaks an equality.
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
from secagg.protocols.pairwise_mask import PairwiseOptions, Server, ServerState, SessionConfiguration, Topology
from secagg.protocols.pairwise_mask.configuration import Roster
from secagg.protocols.pairwise_mask.simulation import ENTRY
from secagg.protocols.pairwise_mask.simulation import costs as pairwise_costs
from secagg.simulation.rehearsal import Rehearsal, client_ids
from secagg.simulation.synthetic_updates import WindowedInputs
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup
from tests.harness.pairwise_traffic import expansion

HEADER, DIGEST, ELEMENT, GRANT, SIGNATURE, TAG = 7 + 8, 32, 32, 72, 64, 16
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
    """The messages to and from each client in each round of a finished session."""

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
    """Run a session of 16-bit values; dropouts leave in turn before each round after the first."""
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
    """Return how many hashes prove these leaves of a tree: level by level, the missing siblings."""
    known, width, nodes = set(positions), count, 0
    while width > 1:
        siblings = {position ^ 1 for position in known}
        nodes += len({sibling for sibling in siblings - known if sibling < width})
        known, width = {position >> 1 for position in known}, (width + 1) >> 1
    return nodes


def bits_for(count: int) -> int:
    return (count + 7) // 8


def masked_bytes(configuration: SessionConfiguration) -> int:
    """Count the bytes of each segment and of the count, with check words of at least 64 bits and 8 words."""
    widths = [(segment.modulus_bits, segment.length) for segment in configuration.layout.require_rings()]
    widths.append((configuration.maximum_population.bit_length(), 1))
    return sum(bits_for(bits * (length + max(8, -(-64 // bits)))) for bits, length in widths)


@dataclass(frozen=True)
class Terms:
    """The sizes that depend only on mode and suite."""

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
        return DIGEST + GRANT + SIGNATURE if self.active else 0

    @property
    def entry(self) -> int:
        """A client's data about a neighbour in round 0."""
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
    """Every message of one client that answered everywhere, from public data about its place in the graph."""
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
        + (COUNT + configuration.quorum * (COUNT + DIGEST + GRANT + SIGNATURE))
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


# --- What a session is said to cost -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "suite"), [(20, Suite.CLASSIC), (20, Suite.HYBRID), (130, Suite.CLASSIC)], ids=str)
def test_a_session_of_pairwise_masks_sends_what_the_model_says(clients: int, suite: Suite) -> None:
    inputs = WindowedInputs(input_bits=16, length=3000, clients=clients, seed=b"costs")
    rare = clients // 20
    rehearsal = Rehearsal(
        entry=ENTRY,
        settings=PairwiseOptions(corrupted=rare, dropped=rare, suite=suite),
        inputs=inputs,
        clients=clients,
        # Planned dropouts at the very end do not change the earlier messages of others.
        dropouts={"unmasking": frozenset(client_ids(rare))},
    )
    rounds = [figures for figures in rehearsal.run().session.figures if figures.answered]
    if clients > 128:
        # Only few clients certify the survivors; the model counts one that does not.
        rounds = [figures for figures in rounds if figures.name != "consistency check"]
    (costs,) = pairwise_costs(inputs.layout, clients, suite)
    assert costs.up_bytes == pytest.approx(sum(each.bytes_up / len(each.answered) for each in rounds), abs=1)
    received = sum(each.bytes_down / each.sent for each in rounds)
    # The model assumes evenly spaced neighbours in the roster, for which the proof of their keys is longest.
    assert costs.down_bytes == pytest.approx(received, rel=0.04)


def test_a_server_removes_a_mask_of_each_contributor_and_those_of_dropouts_edges() -> None:
    (costs,) = pairwise_costs(Layout((RingSegment(32, 1000),)), 100, Suite.CLASSIC)
    masks = 95 + 5 * 16
    # The count has a ring of its own, of one word.
    assert costs.server.cipher_calls == masks * (1000 * 4 // 16 + 1)
    assert costs.server.word_operations == (95 + masks) * 1001
    assert "for 5 corrupted and" in costs.plan


def test_a_session_without_a_sparse_graph_has_a_full_one() -> None:
    (three,), (four,) = (pairwise_costs(Layout((RingSegment(32, 8),)), clients, Suite.CLASSIC) for clients in (3, 4))
    assert three.server.cipher_calls == 3 * 3
    assert three.up_bytes < four.up_bytes + 200
    with pytest.raises(InvalidParameters, match="plan for fewer, or invite more"):
        next(iter(pairwise_costs(Layout((RingSegment(32, 8),)), 2, Suite.CLASSIC)))
