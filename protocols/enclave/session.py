"""Options of an epoch, and sessions of the host and the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import ROUND_DOWN
from fractions import Fraction
from typing import Annotated, ClassVar, Final

from secagg.choices import Accumulation, ReleaseForm
from secagg.contract.codewords import Tables
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.ring import require_capacity
from secagg.crypto.secret import Secret
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.identifiers import CLIENT_ID_BYTES, ClientId
from secagg.options import option
from secagg.parameters import LEAST_COHORT, Suite
from secagg.privacy.accounting import Adjacency, of_vector
from secagg.privacy.kinds import NoiseKind
from secagg.privacy.rounding import room_for_noise, rounded_root
from secagg.protocols.enclave.release_privacy import squared_sensitivities
from secagg.session.certificates import IDENTITY_KEY_BYTES, NO_STANDING, Authority, Certificate, Standing
from secagg.session.client_policy import require_policy
from secagg.session.registry import ProtocolOptions
from secagg.session.roles import LazyUpdate, Subject
from secagg.session.run import AES_BLOCK_BYTES, Costs, Work, mask_cipher_calls, ring_length
from secagg.wire import HEADER_BYTES

from .attestation import Collateral, Evidence
from .client import VECTOR_NONCE_BYTES, Client, Invitation, stamp_of
from .collateral import encode_collateral
from .member import MemberParts
from .remote_enclave import SimulatedEvidence, read_attested
from .server import EnclaveConnection, Server
from .trusted.configuration import NO_AUTHORITY, EnclaveConfiguration, Noise
from .trusted.messages import (
    DIGEST_BYTES,
    EPOCH_BYTES,
    AttestedOffer,
    EnclaveOffer,
    sealed_indices_bytes,
    sealed_secret_bytes,
    sealed_upload_bytes,
)
from .trusted.service import SIMULATED
from .verified_enclave import VerifiedEnclave

DEFAULT_LIFETIME: Final = timedelta(hours=12)
_MOST_UPLOADS: Final = 1 << 20
_PASSES: Final = 8
"""Passes over a masked vector, not counting its mask: packed, hashed by both sides, sent, read and added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveOptions(ProtocolOptions):
    """Options of an epoch; ``EnclaveConfiguration`` documents most of the values."""

    protocol: ClassVar = "enclave"
    suite: Annotated[Suite, option("key agreement and ciphers")] = Suite.HYBRID
    maximum_cohort: Annotated[int | None, option("clients of one release")] = None
    """Default: the codec's capacity, at most 2^20."""
    oldest: Annotated[int, option("age of the oldest model of an upload, in versions")] = 0
    form: Annotated[ReleaseForm, option("what is released of index segments")] = ReleaseForm.DECODED_SUM
    accumulation: Annotated[Accumulation, option("how indices are counted")] = Accumulation.OBLIVIOUS
    noise_multiplier: Annotated[Fraction | None, option("standard deviation of the noise over the sensitivity")] = None
    """The release is as private as one Gaussian with this multiplier. Privacy losses of n segments add up, so each gets
    n times the variance.
    """
    noise_kind: Annotated[NoiseKind, option("distribution of the noise")] = NoiseKind.DISCRETE_GAUSSIAN
    l2_bounds: Annotated[tuple[int, ...], option("norms of one client's values, in steps, by segment")] = ()
    """Required with noise."""
    releases_per_client: Annotated[int, option("releases of an epoch with noise that one client may be in")] = 1
    adjacency: Annotated[Adjacency, option("neighbouring cohorts")] = Adjacency.REPLACE
    codeword_bound: Annotated[int, option("norm of the codewords that one client chooses; 0: any")] = 0
    """Choices with a larger norm count as the smallest codewords."""
    max_norms: Annotated[tuple[int, ...], option("norms about zero points, in steps, by segment; 0: any")] = ()
    """Measured about the subject's zero points. The enclave sees the values and scales longer ones down. With noise,
    these must equal ``l2_bounds``.
    """
    lifetime: Annotated[timedelta, option("lifetime of an epoch")] = DEFAULT_LIFETIME

    def plan(
        self, subject: Subject, authority: Authority | None, now: datetime, standing: Standing = NO_STANDING
    ) -> EnclaveConfiguration:
        """Return the configuration of an epoch for a subject's task, layout and tables.

        Args:
            authority: certifies clients and must not be the host; None is allowed only with noise.
            standing: the authority's standing, which says which certificates it revoked.
        Raises:
            CapacityExceeded: maximum_cohort is above the capacity, or the rings are too narrow for the noise.
        """
        self._require_held(subject)
        return self.configured(subject, authority, now, standing)

    def configured(
        self, subject: Subject, authority: Authority | None, now: datetime, standing: Standing = NO_STANDING
    ) -> EnclaveConfiguration:
        """Return the configuration without checking that the rings can hold the noise."""
        has_indices = any(isinstance(segment, IndexSegment) for segment in subject.layout.segments)
        tables = subject.tables if has_indices else ()
        configuration = EnclaveConfiguration(
            message_form=self.message_form,
            task=subject.task,
            suite=self.suite,
            authority=NO_AUTHORITY if authority is None else authority.public_key,
            standing=standing,
            layout=subject.layout,
            form=self.form,
            tables=tables if self.form is ReleaseForm.DECODED_SUM else (),
            accumulation=self.accumulation,
            minimum_cohort=self.least_cohort,
            maximum_cohort=self._most(subject),
            oldest=self.oldest,
            noise=self._noise(subject.layout, tables),
            codeword_bound=self.codeword_bound,
            max_norms=self.max_norms,
            zero_points=subject.zero_points if self.max_norms else (),
            expiry=int((now + self.lifetime).timestamp()),
        )
        require_capacity(configuration.maximum_cohort, subject.capacity)
        return configuration

    def _most(self, subject: Subject) -> int:
        return self.maximum_cohort or min(subject.capacity, _MOST_UPLOADS)

    def _noise(self, layout: Layout, tables: Tables) -> Noise | None:
        if self.noise_multiplier is None:
            return None
        what = (layout, self.form, tables, self.l2_bounds, self.adjacency)
        sensitivities = list(squared_sensitivities(*what))
        if self.noise_multiplier <= 0:
            raise InvalidParameters(f"noise_multiplier must be positive; got {self.noise_multiplier}")
        return Noise(
            kind=self.noise_kind,
            variances=tuple(self.noise_multiplier**2 * len(sensitivities) * squared for squared in sensitivities),
            l2_bounds=self.l2_bounds,
            releases_per_client=self.releases_per_client,
        )

    def _require_held(self, subject: Subject) -> None:
        """Refuse noise that the rings cannot hold in addition to the largest sum, and suggest a smaller multiplier.

        The rings for codewords are sized for their noise and are not checked.
        """
        if self.noise_multiplier is None:
            return
        rings = [segment for segment in subject.layout.segments if isinstance(segment, RingSegment)]
        counted = sum(map(len, subject.tables)) if self.form is ReleaseForm.DECODED_SUM else 0
        segments, most_uploads = len(rings) + counted, self._most(subject)
        held = (
            room_for_noise(
                segment, min(bound, segment.ring.greatest // subject.capacity), most_uploads, is_rotated=False
            )
            / max(1, segments * of_vector(bound, self.adjacency))
            for segment, bound in zip(rings, self.l2_bounds, strict=False)
        )
        most = min(held, default=self.noise_multiplier**2)
        if self.noise_multiplier**2 > most:
            taken = rounded_root(most, ROUND_DOWN)
            raise CapacityExceeded(
                f"the rings are too narrow for sums of {most_uploads} uploads with this noise: "
                + (
                    f"set noise_multiplier = {taken:f} or less, or use wider rings"
                    if taken
                    else "use wider rings, or no noise"
                )
            )


# --- Costs ------------------------------------------------------------------------------------------------------------


def costs(layout: Layout, clients: int, suite: Suite) -> Iterator[Costs]:
    """Yield the costs of a session in the default oblivious form, which touches every counter for each upload."""
    configuration = EnclaveConfiguration(
        task=b"a plan",
        suite=suite,
        authority=b"\x01" * IDENTITY_KEY_BYTES,
        layout=layout,
        form=ReleaseForm.HISTOGRAM,
        minimum_cohort=LEAST_COHORT,
        maximum_cohort=clients,
        expiry=1,
    )
    length, indices = ring_length(layout.segments), configuration.index_segments
    index_bytes = sum(segment.payload_bytes for segment in indices)
    # The host has the roster, so uploads are short.
    short = HEADER_BYTES + CLIENT_ID_BYTES + (VECTOR_NONCE_BYTES if length else 0)
    short += sealed_secret_bytes(configuration) + sealed_indices_bytes(configuration)
    calls = mask_cipher_calls(layout.segments) + -(-index_bytes // AES_BLOCK_BYTES)
    blocks = sum(segment.blocks for segment in indices)
    counters = sum(segment.blocks * segment.codewords for segment in indices)
    yield Costs(
        plan="'between' counts the bytes sent to the enclave, without its evidence (a few kilobytes)",
        payload_bytes=layout.payload_bytes,
        up_bytes=short + layout.payload_bytes - index_bytes,
        down_bytes=len(_invitation(configuration)),
        between_bytes=sealed_upload_bytes(configuration),
        client=Work(cipher_calls=calls, word_operations=_PASSES * length + blocks),
        server=Work(cipher_calls=clients * calls, word_operations=clients * (length + counters), steps=clients),
    )


def _invitation(configuration: EnclaveConfiguration) -> bytes:
    """Return an invitation without evidence, only to count its bytes; clients already have the tables."""
    offer = EnclaveOffer(
        context=configuration.context,
        epoch=bytes(EPOCH_BYTES),
        sealing_key=bytes(sealing_sizes(configuration.suite)[0]),
        receipt_key=bytes(IDENTITY_KEY_BYTES),
    )
    attested = AttestedOffer(offer, SIMULATED.encode(), b"").encode()
    return Invitation(configuration.encode(), attested, b"", 0, bytes(DIGEST_BYTES), True).encode()  # noqa: FBT003 -- is_short


# --- The host ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveHelpers:
    """An enclave with a running epoch; each session uses one of its buffers."""

    configuration: EnclaveConfiguration
    """From ``EnclaveOptions.plan``."""
    connection: EnclaveConnection
    offer: EnclaveOffer
    evidence: Evidence | SimulatedEvidence
    collateral: Collateral = None
    """Collateral for clients that have none of their own."""
    endorsement: bytes = b""
    """Endorsement for clients that pin an endorser."""
    certificates: Mapping[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate])
    """Certificates of all clients, if the host has them; uploads are then short."""


def open_session(
    subject: Subject, settings: EnclaveOptions, invited: frozenset[ClientId] | None, helpers: EnclaveHelpers
) -> Server:
    """Open a buffer of the running epoch, which must match the subject and the settings."""
    configuration = helpers.configuration
    for name, planned, wanted in (
        ("task", configuration.task, subject.task),
        ("layout", configuration.layout, subject.layout),
        ("minimum_cohort", configuration.minimum_cohort, settings.least_cohort),
    ):
        if planned != wanted:
            raise InvalidParameters(f"the running epoch has a different {name}; start another for these settings")
    if invited is not None and len(invited) < configuration.minimum_cohort:
        raise InvalidParameters(
            f"{len(invited)} clients are invited, below the minimum cohort of {configuration.minimum_cohort}"
        )
    has_all = invited is None or invited <= helpers.certificates.keys()
    certificates = helpers.certificates if has_all else dict[ClientId, Certificate]()
    if isinstance(evidence := helpers.evidence, SimulatedEvidence):
        form, document = SIMULATED, evidence.binding
    else:
        form, document = evidence.format.value, evidence.document
    session = Server(
        configuration,
        helpers.connection,
        stamp_of(subject, subject.model_digest),
        attested=AttestedOffer(helpers.offer, form.encode(), document).encode(),
        collateral=encode_collateral(helpers.collateral, helpers.endorsement),
        invited=invited,
        epoch=helpers.offer.epoch,
        certificates=certificates,
    )
    session.is_simulated = isinstance(evidence, SimulatedEvidence)
    return session


# --- The client -------------------------------------------------------------------------------------------------------


class EnclaveMember(MemberParts):
    """A client that uploads to attested enclaves."""

    __slots__ = ()

    def join(self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None) -> Client:
        """Begin a session; it cannot be resumed."""
        require_policy(self.policy)
        return Client(self, subject, update, suspended)

    def verified(self, attested: bytes, collateral: bytes, configuration: EnclaveConfiguration) -> VerifiedEnclave:
        offer, evidence = read_attested(attested)
        if isinstance(evidence, Evidence):
            evidence = replace(evidence, relayed=collateral)
        return VerifiedEnclave(offer, evidence, configuration=configuration, judge=self.judge, now=self.clock())
