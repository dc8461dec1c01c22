"""Cost of a whole round of two servers beyond its kernels: messages, envelopes, signatures, and bookkeeping.

A client is compared with generating its point functions and proving them, and a server with the check's products and
one addition of a client's lanes. Times are of one of ten clients, and are also compared with plain AES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from time import perf_counter
from typing import Final, TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from figures import Figure, best_seconds
from secagg.choices import SharingMode
from secagg.contract import Payload
from secagg.contract.layout import IndexSegment, Layout
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.opened_upload import HistogramShare
from secagg.protocols.two_servers.point_functions.generation import ServerShare, generate_shares
from secagg.protocols.two_servers.point_functions.one_hot_check import OneHotVerifier, RoundChallenges
from secagg.protocols.two_servers.point_functions.one_hot_proof import OneHotProof, UploadContext, prove
from secagg.protocols.two_servers.point_functions.shares import ExplicitShare
from secagg.protocols.two_servers.server import IndexingServer
from secagg.session.certificates import SigningKey, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.signing_keys import issue_certificate
from tests.harness.indexing_rounds import SharingClient

BLOCKS: Final = 100_000
CODEWORDS: Final = 32
CLIENTS: Final = 10
_ROUNDS: Final = 3
_FLOOR_CHUNK: Final = 1 << 18
_FLOOR_BYTES: Final = 1 << 24
_TASK: Final = b"benchmark"
_COINS: Final = SystemCoins()
_Said = TypeVar("_Said")
_SEGMENT: Final = IndexSegment(CODEWORDS, BLOCKS)
_LAYOUT: Final = Layout((_SEGMENT,))
_PAYLOAD: Final = Payload(_LAYOUT, ((np.arange(BLOCKS) * 7919 % CODEWORDS).astype(_SEGMENT.ring.word),))


def measure() -> Iterator[Figure]:
    """Measure rounds with and without the check of clients, on one thread and on two."""
    for mode in (SharingMode.CHECKED_POINT_FUNCTIONS, SharingMode.UNCHECKED_POINT_FUNCTIONS):
        yield from _mode(_Bench(mode))


@dataclass(slots=True)
class _Taken:
    """Measurements of a round."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("client", "server 0", "server 1"), 0.0))
    """Seconds of one upload, by role."""
    sent: int = 0
    """Bytes of an upload, to both servers."""

    def timed(self, role: str, step: Callable[[], _Said]) -> _Said:
        started = perf_counter()
        done = step()
        self.seconds[role] += (perf_counter() - started) / CLIENTS
        return done


@dataclass(slots=True)
class _Bench:
    """Servers and clients of one layout, from one round to the next."""

    mode: SharingMode
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    numbers: Iterator[int] = field(default_factory=count)
    keys: list[SigningKey] = field(default_factory=lambda: [_new_key() for _ in range(3)])
    configuration: IndexingConfiguration = field(init=False)

    def __post_init__(self) -> None:
        self.configuration = IndexingConfiguration(
            task=_TASK,
            suite=Suite.CLASSIC,
            authority=self.keys[2].public_key,
            server_keys=(self.keys[0].public_key, self.keys[1].public_key),
            layout=_LAYOUT,
            mode=self.mode,
            minimum_cohort=2,
            maximum_cohort=CLIENTS,
            maximum_rejections=0,
            expiry=int((self.now + timedelta(days=1)).timestamp()),
            standing=Standing(number=int(self.now.timestamp())).signed(self.keys[2]),
        )

    def round(self, threads: int) -> _Taken:
        """Run a round until the servers have decided about every upload."""
        number = next(self.numbers)
        with Secret.random("pair key", 32, _COINS) as pair_key:
            zero, one = (
                IndexingServer(
                    self.configuration,
                    ServerId(index),
                    round_number=number,
                    signing_key=self.keys[index],
                    pair_key=pair_key,
                    coins=_COINS,
                    threads=threads,
                )
                for index in (0, 1)
            )
        taken = _Taken()
        for client in range(CLIENTS):
            share = partial(self.client(client, threads).share, _PAYLOAD, configuration=self.configuration)
            offers = zero.offer, one.offer
            halves = taken.timed("client", partial(share, round_number=number, offers=offers, now=self.now))
            taken.sent = sum(len(half.encode()) for half in halves)
            for server, half in zip((zero, one), halves, strict=True):
                taken.timed(f"server {server.server.index}", partial(server.receive, half.encode()))
        proposal = taken.timed("server 1", partial(one.propose, one.waiting()))
        answer = taken.timed("server 0", partial(zero.answer, proposal))
        conclusion = taken.timed("server 1", partial(one.conclude, answer))
        taken.timed("server 0", partial(zero.settle, conclusion))
        return taken

    def client(self, number: int, threads: int) -> SharingClient:
        key = _new_key()
        return SharingClient(
            certificate=issue_certificate(self.keys[2], ClientId(number), key.public_key),
            signing_key=key,
            policy=ClientPolicy(
                suites=frozenset({Suite.CLASSIC}),
                authority=self.keys[2].public_key,
                server_keys=self.configuration.server_keys,
                minimum_cohort=2,
                maximum_length=BLOCKS,
                sharings=frozenset({self.mode}),
            ),
            layout=_LAYOUT,
            capacity=CLIENTS,
            coins=_COINS,
            threads=threads,
        )


def _mode(bench: _Bench) -> Iterator[Figure]:
    name = "checked" if bench.configuration.is_checked else "unchecked"
    kernels = _Kernels(bench.configuration)
    best = best_seconds(
        {
            "aes": _raw_ecb,
            "client": kernels.client,
            "server 0": partial(kernels.server, 0),
            "server 1": partial(kernels.server, 1),
        },
        _ROUNDS,
    )
    # Each is the mean over ten clients already.
    rounds = {threads: bench.round(threads) for threads in (1, 2)}
    aes = best["aes"] / _FLOOR_BYTES * 16 * kernels.cipher_calls
    one, two = rounds[1].seconds, rounds[2].seconds
    for role, seconds in one.items():
        yield Figure(
            name=f"{role} of a round / its kernels, {name}",
            value=seconds / best[role],
            unit="x",
            note=f"{1e3 * seconds:.1f} ms an upload, {seconds / aes:.1f} times the AES of one evaluation",
        )
        yield Figure(name=f"{role}: one thread / two, {name}", value=seconds / two[role], unit="times")
    sent = rounds[1].sent
    yield Figure(
        name=f"bytes of an upload beyond its lanes, {name}",
        value=sent - kernels.payload_bytes,
        unit="B",
        note=f"{sent:,} B",
    )


class _Kernels:
    """The mathematics of one upload, without any message."""

    def __init__(self, configuration: IndexingConfiguration) -> None:
        self._configuration = configuration
        self._shape = configuration.shape(_SEGMENT)
        self.cipher_calls = float(self._shape.cipher_calls) * BLOCKS
        self.payload_bytes = ExplicitShare.encoded_bytes(self._shape, BLOCKS)
        self._shares = self._generated()
        self._totals = [HistogramShare(self._shape, BLOCKS, index) for index in (0, 1)]
        self._context: UploadContext | None = None
        if configuration.is_checked:
            self._context = UploadContext(
                attempt=configuration.context,
                round_number=0,
                client=ClientId(0),
                layout_digest=_LAYOUT.digest,
                segment=0,
                shape=configuration.check_shape(_SEGMENT),
                correction_digest=bytes(32),
                nonce=self._shares[0].binding.nonce,
            )
            self._proofs = self._proven(self._context, self._shares)

    def client(self) -> None:
        """Generate, and prove if clients are checked."""
        shares = self._generated()
        if self._context is not None:
            self._proven(self._context, shares)

    def server(self, index: int) -> None:
        """Check if clients are checked, and add."""
        share = self._shares[index]
        if self._context is not None:
            with Secret("pair key", bytes(32)) as pair_key:
                challenges = RoundChallenges(pair_key, self._configuration.context, 0)
            OneHotVerifier(self._context, share, self._proofs[index], challenges).commit()
        self._totals[index].add(share)

    def _generated(self) -> tuple[ServerShare, ServerShare]:
        return generate_shares(self._shape, _PAYLOAD.values[0], context=bytes(32), client=ClientId(0), coins=_COINS)

    @staticmethod
    def _proven(context: UploadContext, shares: tuple[ServerShare, ServerShare]) -> tuple[OneHotProof, OneHotProof]:
        return prove(context, _PAYLOAD.values[0], (shares[0].digest, shares[1].digest), _COINS)


def _new_key() -> SigningKey:
    with Secret.random("key", 32, _COINS) as seed:
        return SigningKey(seed)


def _raw_ecb() -> None:
    # Safe because: nothing is encrypted; this measures the permutation's speed.
    encryptor = Cipher(algorithms.AES(bytes(16)), modes.ECB()).encryptor()  # noqa: S305 -- see above
    source, target = bytes(_FLOOR_CHUNK), bytearray(_FLOOR_CHUNK + 15)
    for _ in range(_FLOOR_BYTES // _FLOOR_CHUNK):
        encryptor.update_into(source, target)
