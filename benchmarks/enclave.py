"""Cost of an enclave and its client, against the cheapest way to do the same work.

A masked sum is compared with masking a copy of the vector and sealing 32 bytes, and the enclave's part with expanding
one mask. Sealed indices are compared with AES-GCM over the same number of bytes. One thread, hybrid suite.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import figures
from figures import EXPLAINED, Figure, best_seconds
from secagg.choices import Accumulation, ReleaseForm
from secagg.compression.byte_accounting import Accounting, plain_bytes, product_quantization_layout, upload_bytes
from secagg.contract import Layout, Payload
from secagg.contract.codewords import CodewordTable
from secagg.contract.layout import IndexSegment, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import accumulate, expand
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.enclave.client import Client, Upload
from secagg.protocols.enclave.remote_enclave import SimulatedEnclave, SimulatedJudge
from secagg.protocols.enclave.seal_ledger import SealLedger
from secagg.protocols.enclave.session import EnclaveMember, EnclaveOptions
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration
from secagg.protocols.enclave.trusted.messages import ModelStamp
from secagg.protocols.enclave.verified_enclave import VerifiedEnclave
from secagg.session.certificates import Authority, SigningKey
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import Spent
from secagg.session.roles import Subject
from secagg.session.signing_keys import issue_certificate
from tests.harness.paper_models import CELEBA, FEMNIST_3_CHANNEL

_CLIENTS: Final = 40
_ROUNDS: Final = 12
_BLOCKS: Final = 1_000_000
_LARGE: Final = 50_000_000
_TASK: Final = b"benchmark"
_COINS: Final = SystemCoins()


def measure() -> Iterator[Figure]:
    """Measure masked sums of two lengths, then Secure Indexing."""
    yield from _masked_sum("2^20 values", 1 << 20, _ROUNDS)
    yield from _masked_sum("11.2M values", 11_200_000, 3)
    for bits in (32, 21):
        yield from _bounded_sum(bits, 10**6)
    yield from _indexing()
    yield from _large_payload()
    yield from _uplink()


@dataclass(slots=True)
class _Bench:
    """An enclave and certified clients for one layout."""

    layout: Layout
    accumulation: Accumulation = Accumulation.OBLIVIOUS
    max_norms: tuple[int, ...] = ()
    form: ReleaseForm = ReleaseForm.DECODED_SUM
    tables: tuple[tuple[CodewordTable, ...], ...] = ()
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    configuration: EnclaveConfiguration = field(init=False)
    enclave: SimulatedEnclave = field(init=False)
    verified: VerifiedEnclave = field(init=False)
    authority: SigningKey = field(default_factory=lambda: SigningKey(Secret.random("key", 32, _COINS)))

    def __post_init__(self) -> None:
        settings = EnclaveOptions(
            minimum_cohort=2,
            maximum_cohort=_CLIENTS,
            accumulation=self.accumulation,
            form=self.form,
            max_norms=self.max_norms,
        )
        self.configuration = settings.plan(self.subject, Authority(self.authority.public_key), self.now)
        self.enclave = SimulatedEnclave(self.configuration, coins=_COINS, memory_bytes=1 << 40)
        self.verified = VerifiedEnclave(
            self.enclave.offer,
            self.enclave.evidence,
            configuration=self.configuration,
            judge=SimulatedJudge(),
            now=self.now,
        )

    @property
    def subject(self) -> Subject:
        """The subject of the sum."""
        return Subject(task=_TASK, round_number=0, layout=self.layout, capacity=1 << 20, tables=self.tables)

    def client(self, number: int) -> Client:
        identity = SigningKey(Secret.random("key", 32, _COINS))
        ledger = SealLedger(_TASK)
        member = EnclaveMember(
            certificate=issue_certificate(self.authority, ClientId(number), identity.public_key),
            signing_key=identity,
            policy=ClientPolicy(
                suites=frozenset(Suite),
                minimum_cohort=2,
                maximum_length=1 << 40,
                authority=self.authority.public_key,
                forms=frozenset(ReleaseForm),
                accumulations=frozenset(Accumulation),
            ),
            judge=SimulatedJudge(),
            ledger=lambda _: ledger,
            clock=lambda: self.now,
            coins=_COINS,
        )
        return member.join(self.subject)

    def seal(self, client: Client, payload: Payload, version: int) -> Upload:
        model = ModelStamp(version=version, digest=version.to_bytes(32, "big"))
        client.admit(self.verified, self.now)
        client.charge(Spent(self.configuration.task, version, model.digest), self.configuration)
        return client.sealed(payload, enclave=self.verified, model=model)

    def sealer(self, payload: Payload) -> Callable[[], Upload]:
        """Return a function that seals the payload for successive models."""
        client, versions = self.client(0), count()
        return lambda: self.seal(client, payload, next(versions))

    def seconds_for_a_client(self, payload: Payload, version: int, clients: list[Client]) -> tuple[float, float]:
        """Fill a buffer and release it; return the seconds of one upload and of one client's part of the release."""
        uploads = [self.seal(client, payload, version).sealed.encode() for client in clients]
        self.enclave.open_buffer(version, version.to_bytes(32, "big"))
        taken = list[float]()
        for upload in uploads:
            started = figures.usual_clock()
            self.enclave.receive(upload)
            taken.append(figures.usual_clock() - started)
        started = figures.usual_clock()
        self.enclave.release()
        return sorted(taken)[len(taken) // 2], (figures.usual_clock() - started) / len(clients)


def _masked_sum(name: str, length: int, rounds: int) -> Iterator[Figure]:
    ring = Ring(32)
    bench = _Bench(Layout((RingSegment(32, length),)))
    payload = Payload(bench.layout, (ring.from_integers(np.arange(length) % 1000),))
    values = payload.values[0]
    with Secret.random("key", 32, _COINS) as key, Secret.random("plaintext", 36, _COINS) as plaintext:

        def mask_a_copy() -> None:
            vector = ring.zeros(length)
            vector[:] = values
            accumulate(vector, ring, add=[key], subtract=[])

        best = best_seconds(
            {
                "step": bench.sealer(payload),
                "mask": mask_a_copy,
                "seal": lambda: bench.verified.seal(plaintext, b"info"),
                "expand": lambda: expand(key, ring, length),
                "hash": lambda: hashlib.sha256(values.data),
            },
            rounds,
        )
    cheapest = best["mask"] + best["seal"]
    yield Figure(
        name=f"client's step over mask and one HPKE seal, {name}",
        value=best["step"] / cheapest,
        unit="x",
        at_most=1.4,
        limit=EXPLAINED * (cheapest + best["hash"]) / cheapest,
        why=f"{EXPLAINED} times mask, seal and SHA-256 of the masked vector",
        note=f"{1e3 * best['step']:.2f} ms",
    )
    clients = [bench.client(number) for number in range(1, _CLIENTS + 1)]
    taken = [bench.seconds_for_a_client(payload, version, clients) for version in range(3)]
    receive, release = (min(times) for times in zip(*taken, strict=True))
    yield Figure(
        name=f"enclave's work for a client over one mask expansion, {name}",
        value=(receive + release) / best["expand"],
        unit="x",
        at_most=1.2,
        note=f"{1e3 * receive:.2f} ms at the upload, {1e3 * release:.2f} ms at the release",
    )


def _bounded_sum(bits: int, length: int) -> Iterator[Figure]:
    """Compare with expanding a mask of the same length."""
    ring = Ring(bits)
    bench = _Bench(Layout((RingSegment(bits, length),)), max_norms=(1 << 20,))
    payload = Payload(bench.layout, (ring.from_integers(np.arange(length) % 1000),))
    clients = [bench.client(number) for number in range(1, _CLIENTS + 1)]
    taken = [sum(bench.seconds_for_a_client(payload, version, clients)) for version in range(3)]
    packed, opened, cipher = ring.pack(payload.values[0]), bytearray(ring.packed_bytes(length)), AESGCM(bytes(32))
    sealed, total, values = cipher.encrypt(bytes(12), packed, None), ring.zeros(length), payload.values[0]
    with Secret.random("key", 32, _COINS) as key:
        best = best_seconds(
            {
                "expand": lambda: expand(key, ring, length),
                "open": lambda: cipher.decrypt_into(bytes(12), sealed, None, opened),
                "unpack": lambda: ring.unpack(packed, length),
                "norm": lambda: np.dot(values.view(np.int32), values.view(np.int32)),
                "add": lambda: np.add(total, values * values.dtype.type(3), out=total),
            },
            _ROUNDS,
        )
    parts = 2 * best["open"] + 2 * best["unpack"] + best["norm"] + best["add"]
    yield Figure(
        name=f"enclave's work for a client whose norm it bounds over one mask, 10^6 values of {bits} bits",
        value=min(taken) / best["expand"],
        unit="x",
        at_most=2.0,
        limit=EXPLAINED * parts / best["expand"],
        why=f"{EXPLAINED} times opening and unpacking twice, one dot product and one scaled addition",
        note=f"{1e3 * min(taken):.2f} ms",
    )


def _indexing() -> Iterator[Figure]:
    segment = IndexSegment(64, _BLOCKS)
    indices = (np.arange(_BLOCKS) * 7919 % 64).astype(segment.ring.word)
    tables = ((CodewordTable(_BLOCKS, np.arange(64 * 4, dtype=np.int64).reshape(64, 4)),),)
    for accumulation, target in ((Accumulation.DIRECT, 12), (Accumulation.OBLIVIOUS, None)):
        bench = _Bench(Layout((segment,)), accumulation, tables=tables)
        payload = Payload(bench.layout, (indices,))
        clients = [bench.client(number) for number in range(1, 9)]
        taken = [bench.seconds_for_a_client(payload, version, clients) for version in range(2)]
        receive, release = (min(times) for times in zip(*taken, strict=True))
        yield Figure(
            name=f"enclave counts a client of 10^6 blocks, k = 64, {accumulation.name.lower()}, per block",
            value=1e9 * receive / _BLOCKS,
            unit="ns",
            at_most=target,
            note=f"opened, checked, added; a release takes {1e9 * release * len(clients) / _BLOCKS:.0f} ns a block",
        )


def _large_payload() -> Iterator[Figure]:
    """Seal 50 MB of indices that fill their bytes, so that only sealing is measured."""
    segment = IndexSegment(256, _LARGE)
    bench = _Bench(Layout((segment,)), tables=((CodewordTable(_LARGE, np.ones((256, 1), dtype=np.int64)),),))
    payload = Payload(bench.layout, (np.zeros(_LARGE, dtype=segment.ring.word),))
    plain, cipher, warm = bytes(_LARGE), AESGCM(bytes(32)), np.zeros(_LARGE + 16, dtype=np.uint8).data

    def raw_into_new_memory() -> None:
        cipher.encrypt_into(bytes(12), plain, None, np.empty(_LARGE + 16, dtype=np.uint8).data)

    best = best_seconds(
        {
            "raw": raw_into_new_memory,
            "warm": lambda: cipher.encrypt_into(bytes(12), plain, None, warm),
            "client": bench.sealer(payload),
        },
        rounds=8,
    )
    yield Figure(
        name="client seals 50 MB of indices: throughput over raw AES-256-GCM",
        value=best["raw"] / best["client"],
        unit="x",
        at_least=0.7,
        note=f"{_LARGE / best['client'] / 1e9:.1f} GB/s; {best['warm'] / best['client']:.2f} of raw into memory in use",
    )


def _uplink() -> Iterator[Figure]:
    """Count the bytes of two of the paper's models, against the paper's count of only their values."""
    for name, shapes, codewords, block in (
        ("CelebA, 64 x 9", CELEBA, 64, 9),
        ("FEMNIST, 32 x 9", FEMNIST_3_CHANNEL, 32, 9),
    ):
        layout = product_quantization_layout(shapes, codewords, block)
        bench = _Bench(layout, form=ReleaseForm.HISTOGRAM)
        payload = Payload(layout, tuple(np.zeros(segment.length, segment.ring.word) for segment in layout.segments))
        sent, paper = len(bench.sealer(payload)().encode()), float(upload_bytes(layout, Accounting.PAPER))
        yield Figure(
            name=f"bytes of an upload beyond the paper's count, {name}",
            value=sent - paper,
            unit="B",
            at_most=2000,
            note=f"{sent:,} B, {plain_bytes(shapes) / sent:.1f} times less than float32",
        )
