"""Computation of a client, a holder and the server of the one-message protocol, against one mask and one hash.

All measurements are processor time of one thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from time import process_time

import numpy as np

from figures import Figure, best_seconds
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import Ring, RingVector
from secagg.crypto.secret import Secret
from secagg.protocols.one_message.decoding import SumOfSecrets, recovered
from secagg.protocols.one_message.holder import HeldShare, open_share, summed
from secagg.protocols.one_message.masks import EpochRing
from secagg.protocols.one_message.opening import Accumulator, Opening
from secagg.protocols.one_message.parameters import Parameters, Values
from secagg.protocols.one_message.session import choose_committee, dealt_bytes, plan
from secagg.protocols.one_message.sharing import Dealing, deal

LENGTH = 1 << 20
CAPACITY = 100
CLIENTS = 100
DEGREES = (4096,)
ROUNDS = 9
CHALLENGE = bytes(32)
COINS = SystemCoins()


def measure() -> Iterator[Figure]:
    """Take every figure of this file; each ratio comes from contenders that ran in turns."""
    values = [Values(LENGTH, 15, (-128, 127))]
    parameters = plan(values, CAPACITY, choose_committee(24, 3), degrees=DEGREES)
    vector = Ring(15).from_integers(np.arange(LENGTH) % 256 - 128)
    ring = EpochRing(parameters, COINS.draw(32).hex()[:32].encode())
    uploads = [ring.mask([vector], _seed()) for _ in range(2)]
    yield from _client(parameters, ring, vector)
    yield from _server(parameters, ring, uploads, vector)
    for holders, corrupted in ((5, 1), (24, 3)):
        yield from _holders(plan(values, CAPACITY, choose_committee(holders, corrupted), degrees=DEGREES))


def _client(parameters: Parameters, ring: EpochRing, vector: RingVector) -> Iterator[Figure]:
    prepared = EpochRing(parameters, bytes(32))
    prepared.prepare()
    key = Secret.random("mask key", 16, COINS)
    seconds = best_seconds(
        {
            "mask": partial(expand, key, Ring(32), LENGTH),
            "client": partial(_masked_and_hashed, ring, vector),
            "prepared": partial(_masked_and_hashed, prepared, vector),
        },
        ROUNDS,
        process_time,
    )
    case = f"2^20 x 8 bits, N = {CAPACITY}"
    yield Figure(name=f"one AES mask of 2^20 x 32 bits, {case}", value=seconds["mask"] * 1e3, unit="ms")
    yield Figure(name=f"client, with hash, {case}", value=seconds["client"] * 1e3, unit="ms")
    yield Figure(name="client / mask", value=seconds["client"] / seconds["mask"], unit="ratio", at_most=30)
    yield Figure(name="client / mask, transforms kept", value=seconds["prepared"] / seconds["mask"], unit="ratio")
    packed = LENGTH * 15 / 8
    yield Figure(name="upload / packed vector", value=parameters.upload_bytes / packed, unit="ratio", at_most=1.158)


def _server(
    parameters: Parameters, ring: EpochRing, uploads: list[tuple[bytes, Secret]], vector: RingVector
) -> Iterator[Figure]:
    planes = [np.zeros(parameters.coefficients, f"<u{bits // 8 or 1}") for bits in parameters.runs[0].plane_bits]
    sums = [
        np.zeros(parameters.coefficients, np.uint64 if bits == 32 else np.uint32)
        for bits in parameters.runs[0].plane_bits
    ]
    turn = count()

    def add() -> Accumulator:
        total = totals[next(turn) // 50]
        total.add(uploads[0][0])
        return total

    def hash_and_add() -> None:
        hashlib.sha256(uploads[0][0]).digest()
        add()

    def hash_and_add_planes() -> None:
        hashlib.sha256(uploads[0][0]).digest()
        for total, plane in zip(sums, planes, strict=True):
            np.add(total, plane, out=total)

    totals = [Accumulator(ring.parameters) for _ in range(4)]
    contenders = {"add": add, "hash and add": hash_and_add, "hash and planes": hash_and_add_planes}
    seconds = best_seconds(contenders, 4 * ROUNDS, process_time)
    yield Figure(name="server, adding one upload", value=seconds["add"] * 1e3, unit="ms")
    ratio = seconds["hash and add"] / seconds["hash and planes"]
    yield Figure(name="server, hash and add / hash and plane add", value=ratio, unit="ratio", at_most=1.3)
    total, secrets = _full_sum(parameters, ring, vector)
    seconds = best_seconds({"open": partial(_opened, ring, total, secrets)}, 5, process_time)
    yield Figure(name=f"server, opening a sum of {CLIENTS}", value=seconds["open"] * 1e3, unit="ms", at_most=30)
    exact = Ring(15).lift(_opened(ring, total, secrets))
    assert np.array_equal(exact, CLIENTS * Ring(15).lift(vector).astype(np.int64))


def _holders(parameters: Parameters) -> Iterator[Figure]:
    contexts = [b"holder %d" % position for position in range(parameters.holders)]
    dealing = _dealt(parameters, contexts)
    polynomial = dealing.polynomial(CHALLENGE)
    last = parameters.holders - 1
    answers = {
        position: summed(parameters, [open_share(parameters, position, dealing.shares[position], context)])
        for position, context in enumerate(contexts)
    }
    contenders: dict[str, Callable[[], object]] = {
        "deal": lambda: _dealt(parameters, contexts).polynomial(CHALLENGE),
        "seed": partial(_checked, parameters, 0, dealing.shares[0], contexts[0], polynomial),
        "words": partial(_checked, parameters, last, dealing.shares[last], contexts[last], polynomial),
        "recover": lambda: next(recovered(parameters, answers, 0, COINS)),
    }
    seconds = best_seconds(contenders, 3 * ROUNDS, process_time)
    case = f"C = {parameters.holders}, T = {parameters.threshold}, rho = {parameters.packing}"
    yield Figure(name=f"dealing, {case}", value=seconds["deal"] * 1e3, unit="ms")
    yield Figure(name=f"holder, a share from a seed checked, {case}", value=seconds["seed"] * 1e3, unit="ms")
    yield Figure(name=f"holder, a share of words checked, {case}", value=seconds["words"] * 1e3, unit="ms")
    yield Figure(name=f"server, recovering the sum of secrets, {case}", value=seconds["recover"] * 1e3, unit="ms")
    yield Figure(name=f"shares and polynomial, {case}", value=dealt_bytes(parameters) / 1e3, unit="kB")


def _seed() -> Secret:
    return Secret.random("seed", 32, COINS)


def _masked_and_hashed(ring: EpochRing, vector: RingVector) -> bytes:
    upload, secret = ring.mask([vector], _seed())
    secret.wipe()
    return hashlib.sha256(upload).digest()


def _full_sum(parameters: Parameters, ring: EpochRing, vector: RingVector) -> tuple[Accumulator, SumOfSecrets]:
    total, secrets = Accumulator(ring.parameters), np.zeros(parameters.degree, np.int32)
    for _ in range(CLIENTS):
        upload, secret = ring.mask([vector], _seed())
        total.add(upload)
        secrets += np.frombuffer(secret.expose(), np.int8)
    return total, secrets


def _opened(ring: EpochRing, total: Accumulator, secrets: SumOfSecrets) -> RingVector:
    opening = Opening(ring)
    opening.require_plausible(secrets, CLIENTS)
    return opening.opened([opening.unmasked(total, secrets)], CLIENTS).vector(0)


def _dealt(parameters: Parameters, contexts: list[bytes]) -> Dealing:
    secret = Secret("ring secret", bytes([1]) * parameters.degree)
    return deal(secret, parameters, contexts, COINS)


def _checked(parameters: Parameters, position: int, share: Secret, context: bytes, polynomial: bytes) -> HeldShare:
    held = open_share(parameters, position, share, context)
    held.require_on(polynomial, CHALLENGE)
    return held
