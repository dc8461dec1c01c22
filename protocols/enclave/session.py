"""Plan of an epoch, and its sessions at a host and at a client."""

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
"""Passes over a masked vector besides its mask: packed, hashed by both sides, sent, read and added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveOptions(ProtocolOptions):
    """Plan of an epoch; ``EnclaveConfiguration`` explains most values."""

    protocol: ClassVar = "enclave"
    suite: Annotated[Suite, option("key agreement and ciphers")] = Suite.HYBRID
    maximum_cohort: Annotated[int | None, option("clients of one release")] = None
    """By default as many as the codec's capacity allows."""
    oldest: Annotated[int, option("age of the oldest model of an upload, in versions")] = 0
    form: Annotated[ReleaseForm, option("what is released of index segments")] = ReleaseForm.DECODED_SUM
    accumulation: Annotated[Accumulation, option("how indices are counted")] = Accumulation.OBLIVIOUS
    noise_multiplier: Annotated[Fraction | None, option("deviation of the noise over what one client can change")] = (
        None
    )
    """Of the one Gaussian that a release is as private as. The losses of segments add up, so each has as many times the
    variance as there are segments.
    """
    noise_kind: Annotated[NoiseKind, option("distribution of the noise")] = NoiseKind.DISCRETE_GAUSSIAN
    l2_bounds: Annotated[tuple[int, ...], option("norms of one client's values, in steps, by segment")] = ()
    """Needed with noise."""
    releases_per_client: Annotated[int, option("releases of an epoch with noise that one client may be in")] = 1
    adjacency: Annotated[Adjacency, option("neighbouring cohorts")] = Adjacency.REPLACE
    codeword_bound: Annotated[int, option("norm of the codewords that one client chooses; 0: any")] = 0
    """Longer ones count as the least."""
    max_norms: Annotated[tuple[int, ...], option("norms about zero points, in steps, by segment; 0: any")] = ()
    """About the subject's zero points; longer values are scaled down by the enclave, which then sees them. With noise
    these are its ``l2_bounds``.
    """
    lifetime: Annotated[timedelta, option("lifetime of an epoch")] = DEFAULT_LIFETIME

    def plan(
        self, subject: Subject, authority: Authority | None, now: datetime, standing: Standing = NO_STANDING
    ) -> EnclaveConfiguration:
        """Return the configuration of an epoch whose buffers are about a subject's task, layout and tables.

        Args:
            authority: certifies clients, and is not the host; None needs noise.
            standing: what it had revoked at the head of its roster.
        Raises:
            CapacityExceeded: a buffer could hold more uploads than the capacity, or rings do not hold the noise.
        """
        self._require_held(subject)
        return self.configured(subject, authority, now, standing)

    def configured(
        self, subject: Subject, authority: Authority | None, now: datetime, standing: Standing = NO_STANDING
    ) -> EnclaveConfiguration:
        """Return the same, whether or not rings hold the noise."""
        has_indices = any(isinstance(segment, IndexSegment) for segment in subject.layout.segments)
        tables = subject.tables if has_indices else ()
        configuration = EnclaveConfiguration(
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
            raise InvalidParameters(f"noise_multiplier is positive; got {self.noise_multiplier}")
        return Noise(
            kind=self.noise_kind,
            variances=tuple(self.noise_multiplier**2 * len(sensitivities) * squared for squared in sensitivities),
            l2_bounds=self.l2_bounds,
            releases_per_client=self.releases_per_client,
        )

    def _require_held(self, subject: Subject) -> None:
        """Refuse noise that rings cannot hold with the largest sum, and name the multiplier that they do hold.

        Rings of codewords are made for their noise.
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
                f"rings do not hold sums of {most_uploads} uploads with this noise: "
                + (
                    f"take noise_multiplier = {taken:f} at most, or wider rings"
                    if taken
                    else "take wider rings, or none"
                )
            )


# --- Costs ------------------------------------------------------------------------------------------------------------


def costs(layout: Layout, clients: int, suite: Suite) -> Iterator[Costs]:
    """Count; in its default form the enclave touches every counter, so that no address depends on an index."""
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
    # The host has the roster, and puts back what it knows.
    short = HEADER_BYTES + CLIENT_ID_BYTES + (VECTOR_NONCE_BYTES if length else 0)
    short += sealed_secret_bytes(configuration) + sealed_indices_bytes(configuration)
    calls = mask_cipher_calls(layout.segments) + -(-index_bytes // AES_BLOCK_BYTES)
    blocks = sum(segment.blocks for segment in indices)
    counters = sum(segment.blocks * segment.codewords for segment in indices)
    yield Costs(
        plan="between counts bytes that enter the enclave, without its evidence: some kilobytes, by vendor",
        payload_bytes=layout.payload_bytes,
        up_bytes=short + layout.payload_bytes - index_bytes,
        down_bytes=len(_invitation(configuration)),
        between_bytes=sealed_upload_bytes(configuration),
        client=Work(cipher_calls=calls, word_operations=_PASSES * length + blocks),
        server=Work(cipher_calls=clients * calls, word_operations=clients * (length + counters), steps=clients),
    )


def _invitation(configuration: EnclaveConfiguration) -> bytes:
    """Return what a client is sent, without evidence; tables it has itself."""
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
    """What clients verify the evidence with, if they have none of their own."""
    endorsement: bytes = b""
    """For clients that pin who endorses measurements."""
    certificates: Mapping[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate])
    """Certificates of all that may take part, where the host has them; uploads then leave out what it knows."""


def open_session(
    subject: Subject, settings: EnclaveOptions, invited: frozenset[ClientId] | None, helpers: EnclaveHelpers
) -> Server:
    """Open a buffer of an epoch that runs, if it is for this subject and these settings."""
    configuration = helpers.configuration
    for name, planned, wanted in (
        ("task", configuration.task, subject.task),
        ("layout", configuration.layout, subject.layout),
        ("minimum_cohort", configuration.minimum_cohort, settings.least_cohort),
    ):
        if planned != wanted:
            raise InvalidParameters(f"the epoch that runs has another {name}; start one for this subject and settings")
    if invited is not None and len(invited) < configuration.minimum_cohort:
        raise InvalidParameters(
            f"{len(invited)} clients are invited, and nothing is released of fewer than {configuration.minimum_cohort}"
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
    """A client of enclaves."""

    __slots__ = ()

    def join(self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None) -> Client:
        """Begin; a session cannot be resumed."""
        require_policy(self.policy)
        return Client(self, subject, update, suspended)

    def verified(self, attested: bytes, collateral: bytes, configuration: EnclaveConfiguration) -> VerifiedEnclave:
        offer, evidence = read_attested(attested)
        if isinstance(evidence, Evidence):
            evidence = replace(evidence, relayed=collateral)
        return VerifiedEnclave(offer, evidence, configuration=configuration, judge=self.judge, now=self.clock())
