"""Flower's SecAgg+ and this library, measured in turns in one run: a client's upload, and the server's unmasking.

Run it with `make bench-peers`, which installs Flower into a separate environment. Flower's steps are Flower's own
functions. Only the loop of its server's last stage is copied, because in Flower it is part of a method that needs a
running network.

Both sides start from a float32 update, clip it to [-8, 8], quantise it to 22 bits, and mask it modulo 2^32 under k
pairwise masks and a self mask. Flower draws masks from a Mersenne Twister, shares among the neighbours, and sends 8
bytes for each value; its time does not include protocol steps that it omits.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from figures import EXPLAINED, Figure, best_seconds, machine
from pairwise_mask import answered, uploads_of
from secagg.compression.fixed_point import FixedPoint
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import accumulate
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.parameters import SecurityMode
from tests.harness.pairwise_sessions import restored, stored, unmask

DIMENSION: Final = 1_000_000
NEIGHBOURS: Final = (10, 30)
"""Number of a client's neighbours."""
CLIENT_TARGET: Final = 8.0
CLIENTS, DROPPED, SERVER_NEIGHBOURS = 100, 5, 30
SERVER_TARGET: Final = 100.0
CLIENT_ROUNDS, SERVER_ROUNDS = 5, 2
CLIP, TARGET_RANGE, MODULUS, MAXIMUM_CONTRIBUTORS = 8.0, 1 << 22, 1 << 32, 1000.0
WEIGHT: Final = 100
Update = npt.NDArray[np.float32]


def measure() -> Iterator[Figure]:
    """Take every figure of this file; each ratio comes from contenders that ran in turns."""
    update = np.random.default_rng(0).normal(0, 0.05, DIMENSION).astype(np.float32)
    flower = Flower()
    for neighbours in NEIGHBOURS:
        for mode in SecurityMode:
            yield from _client(flower, update, neighbours, mode)
    yield from _server(flower, update)


def _client(flower: Flower, update: Update, neighbours: int, mode: SecurityMode) -> Iterator[Figure]:
    codec = FixedPoint(length=DIMENSION, clip=CLIP, fraction_bits=18, modulus_bits=32)
    steps = uploads_of(neighbours, DIMENSION, mode)
    threaded = uploads_of(neighbours, DIMENSION, mode, threads=2)
    theirs = flower.masking_client(neighbours, update)
    ring, keys = Ring(32), [Secret.random("mask_key", 16, SystemCoins()) for _ in range(neighbours + 1)]
    total = ring.zeros(DIMENSION)
    seconds = best_seconds(
        {
            "flower": theirs,
            "ours": lambda: next(steps)(),  # noqa: PLW0108 -- another step in every round
            "two threads": lambda: next(threaded)(),  # noqa: PLW0108 -- another step in every round
            "quantising": lambda: codec.encode(update, SystemCoins()),
            "masks": lambda: accumulate(total, ring, add=keys, subtract=[]),
            "hash": lambda: hashlib.sha256(total.data),
        },
        CLIENT_ROUNDS,
    )
    size = f"client, k={neighbours}, 10^6 values"
    is_signed = mode is SecurityMode.ACTIVE
    least = seconds["masks"] + (seconds["hash"] if is_signed else 0)
    if mode is SecurityMode.SEMI_HONEST:
        yield Figure(name=f"Flower {flower.version}: {size}", value=1000 * seconds["flower"], unit="ms")
        sent = sum(map(len, theirs()))
        yield Figure(
            name=f"Flower's masked upload / ours, k={neighbours}", value=sent / len(next(steps)()), unit="times"
        )
        yield Figure(name="ours, quantising: FixedPoint.encode", value=1000 * seconds["quantising"], unit="ms")
    yield Figure(name=f"ours, {mode.value}, quantised input given: {size}", value=1000 * seconds["ours"], unit="ms")
    yield Figure(
        name=f"Flower / ours, {mode.value}, quantised input given: {size}",
        value=seconds["flower"] / seconds["ours"],
        unit="times",
        at_least=CLIENT_TARGET,
        limit=seconds["flower"] / least / EXPLAINED,
        why=f"Flower's over {EXPLAINED} times the masks{' and SHA-256 of the upload' if is_signed else ''}",
    )
    yield Figure(
        name=f"Flower / ours on two threads, {mode.value}, quantised input given: {size}",
        value=seconds["flower"] / seconds["two threads"],
        unit="times",
    )
    yield Figure(
        name=f"Flower / ours, {mode.value}, quantising included: {size}",
        value=seconds["flower"] / (seconds["ours"] + seconds["quantising"]),
        unit="times",
    )


def _server(flower: Flower, update: Update) -> Iterator[Figure]:
    session = answered(CLIENTS, DROPPED, SERVER_NEIGHBOURS, DIMENSION)
    snapshot = stored(session)
    ready = [restored(snapshot) for _ in range(SERVER_ROUNDS)]
    codec = FixedPoint(length=DIMENSION, clip=CLIP, fraction_bits=18, modulus_bits=32)
    counts, ring = list[int](), Ring(32)

    def ours() -> npt.NDArray[np.float64]:
        sums = unmask(ready.pop(), lambda _, count: counts.append(count)).values[0]
        return np.ldexp(sums.view(np.int32).astype(np.float64), -codec.fraction_bits)

    theirs = flower.unmasking_server(CLIENTS, DROPPED, SERVER_NEIGHBOURS, update)
    keys, total = [Secret.random("mask_key", 16, SystemCoins()) for _ in range(CLIENTS)], ring.zeros(DIMENSION)
    masks = partial(accumulate, total, ring, add=keys, subtract=[])
    seconds = best_seconds({"flower": theirs, "ours": ours, "masks": masks}, SERVER_ROUNDS)
    size = f"server unmask, {CLIENTS} clients, {DROPPED} dropped, k={SERVER_NEIGHBOURS}, 10^6 values"
    yield Figure(name=f"Flower {flower.version}: {size}", value=1000 * seconds["flower"], unit="ms")
    yield Figure(name=f"ours, active: {size}", value=1000 * seconds["ours"], unit="ms")
    yield Figure(
        name=f"Flower / ours: {size}",
        value=seconds["flower"] / seconds["ours"],
        unit="times",
        at_least=SERVER_TARGET,
        limit=seconds["flower"] / (seconds["masks"] * counts[-1] / CLIENTS) / EXPLAINED,
        why=f"Flower's over {EXPLAINED} times {counts[-1]} masks",
    )


class Flower:
    """The functions of Flower's SecAgg+, under their names there."""

    def __init__(self) -> None:
        """Import the functions; they have moved between releases, so Flower's installed version is pinned."""
        load: Callable[[str], Any] = importlib.import_module
        self.version: str = load("flwr").__version__
        self.client = load("flwr.client.mod.secure_aggregation.secaggplus_mod")
        self.common = load("flwr.common")
        folder = "flwr.common.secure_aggregation"
        self.shamir = load(f"{folder}.crypto.shamir")
        self.symmetric = load(f"{folder}.crypto.symmetric_encryption")
        self.arithmetic = load(f"{folder}.ndarrays_arithmetic")
        self.quantization = load(f"{folder}.quantization")
        self.key = load(f"{folder}.secaggplus_constants").Key
        self.utils = load(f"{folder}.secaggplus_utils")
        self.asymmetric = load("flwr.supercore.primitives.asymmetric")

    def key_pair(self) -> tuple[bytes, bytes]:
        """Return a new private and public key, encoded."""
        private, public = self.asymmetric.generate_key_pairs()
        return self.asymmetric.private_key_to_bytes(private), self.asymmetric.public_key_to_bytes(public)

    def agreed(self, private: bytes, public: bytes) -> bytes:
        """Return the key that two parties share."""
        own, other = self.asymmetric.bytes_to_private_key(private), self.asymmetric.bytes_to_public_key(public)
        shared: bytes = self.symmetric.generate_shared_key(own, other)
        return shared

    def masking_client(self, neighbours: int, update: Update) -> Callable[[], list[bytes]]:
        """Run a client until it has its neighbours' shares, and return its step to the upload."""
        key, holders = self.key, neighbours + 1
        threshold = holders // 2 + 1
        state = self.client.SecAggPlusState()
        state.nid = 1
        own = self.client._setup(  # noqa: SLF001 -- there is no public name
            state,
            {
                key.SAMPLE_NUMBER: holders,
                key.SHARE_NUMBER: holders,
                key.THRESHOLD: threshold,
                key.CLIPPING_RANGE: CLIP,
                key.TARGET_RANGE: TARGET_RANGE,
                key.MOD_RANGE: MODULUS,
                key.MAX_WEIGHT: MAXIMUM_CONTRIBUTORS,
            },
        )
        peers = {peer: (self.key_pair(), self.key_pair()) for peer in range(2, holders + 1)}
        book = {"1": [own[key.PUBLIC_KEY_1], own[key.PUBLIC_KEY_2]]}
        book |= {str(peer): [first[1], second[1]] for peer, (first, second) in peers.items()}
        self.client._share_keys(state, book)  # noqa: SLF001 -- likewise
        seed_shares = self.shamir.create_shares(bytes(32), threshold, holders)
        key_shares = self.shamir.create_shares(peers[2][0][0], threshold, holders)
        sealed = [
            self.symmetric.encrypt(
                self.agreed(second[0], own[key.PUBLIC_KEY_2]),
                self.utils.share_keys_plaintext_concat(peer, 1, seed_shares[0], key_shares[0]),
            )
            for peer, (_, second) in peers.items()
        ]
        delivered = {key.CIPHERTEXT_LIST: sealed, key.SOURCE_LIST: list(peers)}
        parameters = self.common.ndarrays_to_parameters([update])

        def step() -> list[bytes]:
            answer = self.client._collect_masked_vectors(  # noqa: SLF001 -- likewise
                state, delivered, WEIGHT, parameters
            )
            masked: list[bytes] = answer[key.MASKED_PARAMETERS]
            return masked

        return step

    def unmasking_server(self, clients: int, dropped: int, neighbours: int, update: Update) -> Callable[[], Any]:
        """Run a server until it has the survivors' shares, and return its last stage."""
        half, threshold = neighbours // 2, neighbours // 2 + 1
        around = {
            client: sorted((client + step) % clients for step in range(-half, half + 1)) for client in range(clients)
        }
        gone = set(range(0, clients, clients // dropped))
        keys = {client: self.key_pair() for client in around}
        shares = {
            client: [
                share
                for share, holder in zip(
                    self.shamir.create_shares(
                        keys[client][0] if client in gone else bytes(32), threshold, len(holders)
                    ),
                    holders,
                    strict=True,
                )
                if holder not in gone
            ]
            for client, holders in around.items()
        }
        uploads = [np.array([0], dtype=np.int64), np.zeros(update.size, dtype=np.int64)]
        return partial(self._unmask, uploads, shares, around, gone, {c: public for c, (_, public) in keys.items()})

    def _unmask(
        self,
        masked: list[npt.NDArray[np.int64]],
        shares: dict[int, list[bytes]],
        around: dict[int, list[int]],
        gone: set[int],
        public_keys: dict[int, bytes],
    ) -> object:
        """Process the received shares like ``SecAggPlusWorkflow.unmask_stage``."""
        expand = partial(self.utils.pseudo_rand_gen, num_range=MODULUS)
        shape = self.arithmetic.get_parameters_shape(masked)
        for client, present in shares.items():
            secret = self.shamir.combine_shares(present)
            if client not in gone:
                masked = self.arithmetic.parameters_subtraction(masked, expand(secret, dimensions_list=shape))
                continue
            for neighbour in around[client]:
                if neighbour == client:
                    continue
                mask = expand(self.agreed(secret, public_keys[neighbour]), dimensions_list=shape)
                combine = (
                    self.arithmetic.parameters_addition
                    if client > neighbour
                    else self.arithmetic.parameters_subtraction
                )
                masked = combine(masked, mask)
        _, summed = self.arithmetic.factor_extract(self.arithmetic.parameters_mod(masked, MODULUS))
        result: object = self.quantization.dequantize(summed, CLIP, TARGET_RANGE)
        return result


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    host = machine()
    print(", ".join(f"{name}: {value}" for name, value in host.items()))
    figures = list[Figure]()
    for figure in measure():
        figures.append(figure)
        print(figure.line(84), flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(figure) | {"verdict": figure.verdict} for figure in figures]
        options.json.write_text(json.dumps({"machine": host, "figures": rows}, indent=2) + "\n")


if __name__ == "__main__":
    _main()
