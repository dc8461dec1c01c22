"""Enclaves, hosts and clients in memory, for tests and attacks.

``InsecureEnclaveSession`` makes an authority, certified clients with repeatable coins, inputs from a seed, a simulated
enclave and its host. A test gets the uploads and may submit any bytes, in any order, to any epoch.

All cryptography is the library's, and nothing here protects data. HPKE draws its own coins, so two sessions of one
setup differ in their sealed messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from secagg.choices import Accumulation, ReleaseForm
from secagg.contract import Aggregate, Layout, Payload, ideal_aggregate
from secagg.contract.codewords import CodewordTable, Tables
from secagg.contract.layout import IndexSegment, RingSegment
from secagg.crypto.ring import RingVector, low_bits
from secagg.crypto.secret import Secret
from secagg.errors import Misuse
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.enclave.client import Client, Upload, seal_indices, vector_digest
from secagg.protocols.enclave.release_privacy import PrivacyLimit
from secagg.protocols.enclave.remote_enclave import SimulatedEnclave, SimulatedJudge
from secagg.protocols.enclave.seal_ledger import SealLedger
from secagg.protocols.enclave.server import EnclaveConnection, Server
from secagg.protocols.enclave.session import EnclaveMember, EnclaveOptions
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration, Start
from secagg.protocols.enclave.trusted.messages import (
    AttestedOffer,
    EnclaveOffer,
    ModelStamp,
    Receipt,
    SealedUpload,
    Seed,
    UploadHeader,
    has_one_seal,
    proof_of,
    sealing_info,
)
from secagg.protocols.enclave.verified_enclave import VerifiedEnclave
from secagg.session.certificates import NO_STANDING, Authority, Certificate, SigningKey, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import Spent, SpentUpdates
from secagg.session.roles import LazyUpdate, Subject
from secagg.session.signing_keys import issue_certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins

NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""Default time of all events."""
MADE: Final = int(NOW.timestamp())
"""When the authority signed its roster."""
MIXED_LAYOUT: Final = Layout((RingSegment(20, 6), IndexSegment(8, 5), RingSegment(7, 3)))
"""Rings on both sides of the indices of five blocks."""
RING_LAYOUT: Final = Layout((RingSegment(20, 6), RingSegment(7, 3)))


def model_digest(version: int) -> bytes:
    """Return the digest that represents a model's number; zeros for the first."""
    return version.to_bytes(32, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveSetup:
    """Setup of an epoch and its clients."""

    population: int = 6
    minimum_cohort: int = 3
    maximum_cohort: int = 6
    suite: Suite = Suite.CLASSIC
    layout: Layout = MIXED_LAYOUT
    codebooks: Tables | None = None
    """Tables of a codec; without a codec small ones are made up."""
    capacity: int = low_bits(20)
    form: ReleaseForm = ReleaseForm.DECODED_SUM
    accumulation: Accumulation = Accumulation.DIRECT
    oldest: int = 0
    max_norms: tuple[int, ...] = ()
    zero_points: tuple[int, ...] = ()
    noise_multiplier: Fraction | None = None
    noise_kind: NoiseKind = NoiseKind.DISCRETE_GAUSSIAN
    l2_bounds: tuple[int, ...] = ()
    releases_per_client: int = 1
    privacy: PrivacyLimit | None = None
    has_authority: bool = True
    maximum_seals: int | None = None
    """Limit of each client's ledger; with privacy, by default what an epoch allows."""
    repeats_allowed: bool = False
    task: bytes = b"a task"
    lifetime: timedelta = timedelta(hours=12)
    seed: bytes = b"an epoch"
    """Determines all coins, inputs and identity keys."""

    @property
    def tables(self) -> Tables:
        """Small codebooks of small integers for every index segment, or the given ones."""
        if self.codebooks is not None:
            return self.codebooks
        generator = np.random.default_rng(list(self.seed))

        def table(blocks: int, codewords: int) -> CodewordTable:
            return CodewordTable(blocks, generator.integers(-50, 50, (codewords, 3)))

        return tuple(
            (table(1, segment.codewords), table(segment.blocks - 1, segment.codewords))
            if segment.blocks > 1
            else (table(1, segment.codewords),)
            for segment in self.layout.segments
            if isinstance(segment, IndexSegment)
        )

    @property
    def ledger_limit(self) -> int | None:
        return self.maximum_seals or (None if self.privacy is None else self.releases_per_client)

    def coins_of(self, party: str) -> InsecureSeededCoins:
        return InsecureSeededCoins(hashlib.sha256(self.seed + b"/" + party.encode()).digest())

    def signing_key_of(self, party: str) -> SigningKey:
        with Secret.random("signing key", 32, self.coins_of(f"identity of {party}")) as seed:
            return SigningKey(seed)

    def payload_of(self, number: int) -> Payload:
        generator = np.random.default_rng([number, *self.seed])
        values = list[RingVector]()
        for segment in self.layout.segments:
            if isinstance(segment, IndexSegment):
                drawn = generator.integers(0, segment.codewords, segment.blocks)
                values.append(drawn.astype(segment.ring.word))
            else:
                values.append(segment.ring.from_integers(generator.integers(-2, 3, segment.length)))
        return Payload(self.layout, tuple(values))


def sealed_by(  # noqa: PLR0913 -- all but two by name
    client: Client,
    payload: Payload,
    *,
    enclave: VerifiedEnclave,
    model: ModelStamp,
    now: datetime,
    trained_from: bytes = b"",
) -> Upload:
    """Let a client charge a model and seal an update, below the session layer."""
    client.admit(enclave, now)
    client.charge(Spent(enclave.configuration.task, model.version, trained_from or model.digest), enclave.configuration)
    return client.sealed(payload, enclave=enclave, model=model)


def masked_of(upload: Upload, layout: Layout) -> list[RingVector]:
    rings = [segment for segment in layout.segments if isinstance(segment, RingSegment)]
    return [segment.unpack_sent(packed) for segment, packed in zip(rings, upload.packed, strict=True)]


class Host:
    """One server after another in front of one enclave, below the session layer: it accepts any upload."""

    def __init__(
        self,
        configuration: EnclaveConfiguration,
        enclave: EnclaveConnection,
        *,
        epoch: bytes = b"",
        certificates: Mapping[ClientId, Certificate] = MappingProxyType({}),
    ) -> None:
        self.configuration, self._enclave = configuration, enclave
        self._epoch, self._certificates = epoch, certificates
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        if self._server is None:
            raise Misuse("no buffer is open")
        return self._server

    def open_buffer(self, version: int, digest: bytes) -> None:
        model = ModelStamp(version=version, digest=digest)
        self._server = Server(
            self.configuration, self._enclave, model, epoch=self._epoch, certificates=self._certificates
        )

    def announce_model(self, version: int, digest: bytes) -> None:
        self._enclave.announce_model(version, digest)

    def receive(self, message: bytes, sender: ClientId | None = None) -> bytes:
        read = self.server.read(message, sender)
        self.server.add(read)
        return read.digest

    def release(self) -> tuple[Aggregate, Receipt]:
        return self.server.unmasked()

    def give_up_buffer(self) -> None:
        self.server.abort()
        self._server = None


@dataclass(slots=True)
class InsecureEnclaveSession:
    """An authority, clients, an enclave and its host; the caller is the network."""

    setup: EnclaveSetup
    authority: SigningKey = field(init=False)
    configuration: EnclaveConfiguration = field(init=False)
    enclave: SimulatedEnclave = field(init=False)
    host: Host = field(init=False)
    clients: list[Client] = field(init=False)
    epochs: int = field(init=False, default=0)
    now: datetime = NOW

    def __post_init__(self) -> None:
        setup = self.setup
        self.authority = setup.signing_key_of("authority")
        settings = EnclaveOptions(
            minimum_cohort=setup.minimum_cohort,
            maximum_cohort=setup.maximum_cohort,
            lifetime=setup.lifetime,
            suite=setup.suite,
            form=setup.form,
            accumulation=setup.accumulation,
            oldest=setup.oldest,
            max_norms=setup.max_norms,
            noise_multiplier=setup.noise_multiplier,
            noise_kind=setup.noise_kind,
            l2_bounds=setup.l2_bounds,
            releases_per_client=setup.releases_per_client,
        )
        authority = Authority(self.authority.public_key) if setup.has_authority else None
        standing = Standing(number=MADE, revoked=(5,)).signed(self.authority) if authority else NO_STANDING
        self.configuration = settings.configured(self.subject, authority, self.now, standing)
        self.clients = [self.new_client(number) for number in range(1, setup.population + 1)]
        self.restart()

    def restart(self) -> None:
        self.epochs += 1
        coins = self.setup.coins_of(f"enclave, epoch {self.epochs}")
        self.enclave = SimulatedEnclave(self.configuration, coins=coins)
        self.host = Host(self.configuration, self.enclave)

    def certificate_of(self, number: int, signing_key: SigningKey) -> Certificate:
        """Return the authority's certificate for a key, or without an authority a self-signed one."""
        issuer = self.authority if self.setup.has_authority else signing_key
        return issue_certificate(issuer, ClientId(number), signing_key.public_key)

    def new_client(
        self,
        number: int,
        kept: SealLedger | None = None,
        update: LazyUpdate | None = None,
        about: Subject | None = None,
        **own: Any,
    ) -> Client:
        """Make a client with this number, its ledger and its other state."""
        setup = self.setup
        signing_key = setup.signing_key_of(f"client {number}")
        ledger = kept or SealLedger(
            setup.task,
            maximum_seals=setup.ledger_limit,
            repeats_allowed=setup.repeats_allowed,
            spent=SpentUpdates(attempts=None),
        )
        member = EnclaveMember(
            certificate=self.certificate_of(number, signing_key),
            signing_key=signing_key,
            policy=self.policy,
            privacy=setup.privacy,
            judge=SimulatedJudge(),
            ledger=lambda _: ledger,
            clock=lambda: self.now,
            coins=setup.coins_of(f"client {number}"),
        )
        return replace(member, **own).join(about or self.subject, update)

    @property
    def subject(self) -> Subject:
        setup = self.setup
        return Subject(
            task=setup.task,
            round_number=0,
            layout=setup.layout,
            capacity=setup.capacity,
            tables=setup.tables,
            zero_points=setup.zero_points,
            model_digest=bytes(32),
        )

    @property
    def policy(self) -> ClientPolicy:
        return ClientPolicy(
            suites=frozenset({self.setup.suite}),
            forms=frozenset({ReleaseForm.DECODED_SUM, self.setup.form}),
            accumulations=frozenset({Accumulation.OBLIVIOUS, self.setup.accumulation}),
            authority=self.authority.public_key if self.setup.has_authority else None,
            minimum_cohort=self.setup.minimum_cohort,
            maximum_length=sum(segment.length for segment in self.setup.layout.segments),
        )

    def verified(self, enclave: SimulatedEnclave | None = None) -> VerifiedEnclave:
        enclave = enclave or self.enclave
        return VerifiedEnclave(
            enclave.offer, enclave.evidence, configuration=self.configuration, judge=SimulatedJudge(), now=self.now
        )

    def seal(
        self,
        number: int,
        *,
        version: int = 0,
        digest: bytes | None = None,
        payload: Payload | None = None,
        enclave: SimulatedEnclave | None = None,
    ) -> Upload:
        """Let a client seal its input to the current epoch, or to another enclave."""
        return sealed_by(
            self.clients[number - 1],
            payload or self.setup.payload_of(number),
            enclave=self.verified(enclave),
            model=ModelStamp(version=version, digest=model_digest(version) if digest is None else digest),
            now=self.now,
        )

    def upload(self, *numbers: int, version: int = 0) -> None:
        """Let clients seal their inputs, and the host, which has announced the model, accept them."""
        self.host.announce_model(version, model_digest(version))
        for number in numbers:
            self.host.receive(self.seal(number, version=version).encode())

    def ideal(self, numbers: Iterable[int]) -> Aggregate:
        return ideal_aggregate(self.setup.layout, [self.setup.payload_of(number) for number in numbers])


def crafted(
    session: InsecureEnclaveSession,
    number: int = 1,
    *,
    packed: bytes | None = None,
    certificate: Certificate | None = None,
    signing_key: SigningKey | None = None,
) -> bytes:
    """Make an upload with every part chosen by a corrupt client, correctly sealed."""
    configuration, key = session.configuration, session.setup.signing_key_of(f"client {number}")
    own, key = certificate or session.certificate_of(number, signing_key or key), signing_key or key
    if packed is None:
        (indices,) = configuration.index_segments
        packed = indices.ring.pack(session.setup.payload_of(number).values[1])
    header = UploadHeader(
        epoch=session.enclave.offer.epoch,
        certificate=own,
        model=ModelStamp(version=0, digest=bytes(32)),
        vector_digest=vector_digest(bytes(32), []),
    )
    digest, drawn = header.digest(configuration.context), hashlib.sha256(b"%d" % number).digest()
    inside = packed if has_one_seal(configuration) else drawn
    with (
        Seed("upload_seed", drawn) as seed,
        proof_of(key, session.enclave.offer.receipt_key, digest) as proof,
        Secret("upload_secret", bytes(proof.expose()) + inside) as both,
    ):
        return SealedUpload(
            header=header,
            sealed_seed=session.verified().seal(both, sealing_info(digest)),
            sealed_indices=b"" if has_one_seal(configuration) else bytes(seal_indices(seed, digest, packed)),
        ).encode()


def start_of(configuration: EnclaveConfiguration) -> bytes:
    """Return the request that starts an epoch."""
    return Start(configuration.encode(), configuration.tables).encode()


def started_by(request: bytes) -> EnclaveConfiguration:
    """Return the configuration that a request starts."""
    return Start.decode(request).configuration()


def attested_of(offer: EnclaveOffer, form: str, document: bytes) -> bytes:
    """Return an offer with its evidence, as one message."""
    return AttestedOffer(offer, form.encode(), document).encode()
