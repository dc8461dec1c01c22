"""Cost of the pairwise protocol beyond its masks: a client's upload, the server's unmasking, memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from figures import Figure, best_seconds
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import accumulate
from secagg.crypto.prime_field import random_root
from secagg.crypto.reconstruction import reconstruct
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import split_many
from secagg.identifiers import ServerId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask import Server, ServerState, Topology
from secagg.simulation.synthetic_updates import WindowedInputs
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup, restored, stored, unmask
from tests.harness.pairwise_traffic import bonawitz_bits, expansion

LENGTH = 1 << 20
NEIGHBOURS = 100
CLIENTS, DROPPED, SPARSE_NEIGHBOURS, SERVER_LENGTH = 100, 5, 30, 1_000_000
MODULUS_BITS = 32
ROUNDS = 7
MIB = 1 << 20


def measure() -> Iterator[Figure]:
    """Take every figure of this file; each ratio comes from contenders that ran in turns."""
    for mode in SecurityMode:
        yield from _client_step(mode)
    yield from _server_unmask()
    yield from _traffic()


def _client_step(mode: SecurityMode) -> Iterator[Figure]:
    """Time the step from the neighbours' shares to the upload, against only expanding and adding its masks."""
    steps = uploads_of(NEIGHBOURS, LENGTH, mode)
    ring, floor = Ring(MODULUS_BITS), Ring(MODULUS_BITS).zeros(LENGTH)
    keys = [Secret.random("mask_key", 16, SystemCoins()) for _ in range(NEIGHBOURS + 1)]
    # A client uploads once, so each round takes the next client.
    seconds = best_seconds(
        {
            "masks": partial(accumulate, floor, ring, add=keys[::2], subtract=keys[1::2]),
            "step": lambda: next(steps)(),  # noqa: PLW0108 -- another step in every round
        },
        ROUNDS,
    )
    size = f"k={NEIGHBOURS}, 2^20 x {MODULUS_BITS} bits"
    yield Figure(name=f"masks alone, {size}, {mode.value}", value=1000 * seconds["masks"], unit="ms")
    yield Figure(
        name=f"client step / masks alone, {size}, {mode.value}",
        value=seconds["step"] / seconds["masks"],
        unit="ratio",
        at_most=2.0,
    )
    uploaded = list[bytes]()
    peak = _peak_of(lambda: uploaded.append(next(steps)()))
    vector_bytes = LENGTH * ring.word_bytes
    yield Figure(
        name=f"client step, peak beyond payload and upload, {mode.value}",
        value=(peak - len(uploaded[0])) / MIB,
        unit="MiB",
        at_most=(vector_bytes + 2 * MIB) / MIB,
    )


def session_of(setup: SessionSetup, length: int, input_bits: int = 0) -> InsecurePairwiseSession:
    """Return a session with inputs of ``input_bits`` bits, or with inputs that fill a ring of exactly 32."""
    bits = input_bits or MODULUS_BITS - (setup.population - 1).bit_length()
    inputs = WindowedInputs(input_bits=bits, length=length, clients=setup.population, seed=b"benchmark")
    return InsecurePairwiseSession(
        replace(setup, layout=inputs.layout),
        payload_of=lambda client: inputs.payload_of(setup.client_ids.index(client)),
    )


def uploads_of(neighbours: int, length: int, mode: SecurityMode, threads: int = 1) -> Iterator[Callable[[], bytes]]:
    """Run a full graph of clients until each has its neighbours' shares, and return their next steps."""
    session = session_of(SessionSetup(population=neighbours + 1, mode=mode), length)
    for client in session.client_ids:
        member = session.member(client)
        member.threads = threads
        session.clients[client] = member.join(session.setup.subject, session.update_of(client))
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    return (partial(session.clients[sent.receiver].answer, sent.message) for sent in session.pending)


def answered(clients: int, dropped: int, neighbours: int, length: int) -> Server:
    """Run a session with dropouts before uploading up to the unmasking."""
    setup = SessionSetup(population=clients, corrupted=DROPPED, dropped=dropped, topology=Topology.SPARSE)
    session = session_of(setup, length)
    plan = session.setup.plan(session.authority.public_key)
    configuration = replace(plan.configuration, degree=neighbours, threshold=neighbours // 2 + DROPPED + 1)
    session.server = Server(replace(plan, configuration=configuration))
    session.pending = [replace(sent, message=session.server.invitation) for sent in session.pending]
    session.reach(ServerState.AWAITING_MASKED_INPUTS)
    session.drop(*(session.client_ids[turn * clients // dropped] for turn in range(dropped)))
    session.reach(ServerState.AWAITING_UNMASKING_SHARES)
    session.deliver(session.pending)
    return session.server


@dataclass(frozen=True, slots=True)
class Model:
    """Model of a server's time: a mask expansion and a reconstruction for every remaining mask."""

    masks: int
    reconstructions: int
    mask_seconds: float
    reconstruction_seconds: float

    @property
    def seconds(self) -> float:
        """Predicted seconds on one thread."""
        return self.masks * self.mask_seconds + self.reconstructions * self.reconstruction_seconds


def _server_unmask() -> Iterator[Figure]:
    """Time the last step of the server against its model, whose constants are measured in turns with it."""
    server = answered(CLIENTS, DROPPED, SPARSE_NEIGHBOURS, SERVER_LENGTH)
    snapshot, threshold = stored(server), server.configuration.threshold
    counts = list[int]()
    ring, total = Ring(MODULUS_BITS), Ring(MODULUS_BITS).zeros(SERVER_LENGTH)
    keys = [Secret.random("mask_key", 16, SystemCoins()) for _ in range(100)]
    roots = [random_root("root", SystemCoins())]
    (shares,) = split_many(roots, threshold=threshold, holders=SPARSE_NEIGHBOURS, coins=SystemCoins())
    ready = [restored(snapshot) for _ in range(ROUNDS)]
    seconds = best_seconds(
        {
            "masks": partial(accumulate, total, ring, add=keys, subtract=[]),
            "reconstruction": lambda: reconstruct(shares[:threshold], threshold=threshold),
            "unmask": lambda: unmask(ready.pop(), lambda _, count: counts.append(count)),
        },
        ROUNDS,
    )
    model = Model(counts[-1], CLIENTS, seconds["masks"] / len(keys), seconds["reconstruction"])
    size = f"{CLIENTS} clients, {DROPPED} dropped, k={SPARSE_NEIGHBOURS}, 10^6 x {MODULUS_BITS} bits"
    yield Figure(name=f"server unmask, {size}", value=1000 * seconds["unmask"], unit="ms", note=f"{model.masks} masks")
    yield Figure(name="the model of it", value=1000 * model.seconds, unit="ms")
    yield Figure(name="server unmask / model", value=seconds["unmask"] / model.seconds, unit="ratio", at_most=1.3)
    last = restored(snapshot)
    peak = _peak_of(lambda: unmask(last))
    yield Figure(
        name="server unmask, peak memory in vectors", value=peak / (SERVER_LENGTH * ring.word_bytes), unit="vectors"
    )


def _traffic() -> Iterator[Figure]:
    """Count a client's bytes: in a full graph against the published formula, in a sparse one against its vector."""
    clients, length = 64, 1 << 14
    for mode, topology in ((SecurityMode.SEMI_HONEST, Topology.FULL), (SecurityMode.ACTIVE, Topology.SPARSE)):
        setup = SessionSetup(population=clients, corrupted=clients // 20, dropped=0, mode=mode, topology=topology)
        session = session_of(setup, length, input_bits=16)
        session.finish()
        sent = sum(len(each.message) for each in session.log if each.receiver == ServerId()) / clients
        both = sum(len(each.message) for each in session.log) / clients
        size = f"{topology.value} graph of {clients}"
        if topology is Topology.FULL:
            formula = bonawitz_bits(clients, length) / 8
            yield Figure(
                name=f"client's bytes / [BIK+17]'s formula, 2^14 values, {size}", value=both / formula, unit="ratio"
            )
            excess = (both - formula) / (clients - 1)
            yield Figure(name="the difference for each neighbour", value=excess, unit="bytes", note="32 are tags")
        else:
            vector, degree = session.setup.layout.payload_bytes, session.server.configuration.degree
            each = (sent - vector) / degree
            yield Figure(name=f"sent beyond the vector for each neighbour, {size}", value=each, unit="bytes")
    for clients, log2_length in ((1 << 10, 20), (1 << 14, 24)):
        name = f"[BIK+17]'s expansion, {clients} clients, 2^{log2_length} values"
        yield Figure(name=name, value=expansion(clients, 1 << log2_length), unit="times")


def _peak_of(step: Callable[[], object]) -> int:
    """Return a step's peak memory above the memory before it."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = step()
        _, peak = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return peak - before
