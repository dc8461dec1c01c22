"""Epoch record, which the authority signs once for many sums, and the configuration of one sum.

A server that chose the committee could pick colluding holders, or list one of them twice. So the authority signs the
whole ordered list, and a holder's point follows from its position. Each holder then adds a sealing key and 32 fresh
bytes. The epoch's public polynomials are expanded from all of these bytes, so the server cannot choose them.

The digest of both (T0) is bound to everything. Clients and holders compute it from what they have checked, so a party
that received another epoch or configuration cannot use the others' messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from secagg.blame import said_by, unverified
from secagg.contract.layout import Layout
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import ClassicSealingKey, sealing_key
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import draw_exactly
from secagg.declared import MESSAGE_FORM, Message, choice, encoded, fixed, nested, repeated, unsigned, variable
from secagg.errors import UNDECIDED, InvalidParameters, MalformedMessage, PeerMisbehaved, Reason, blaming
from secagg.identifiers import AttemptContext, HolderId, Party
from secagg.parameters import SecurityMode, Suite
from secagg.session.certificates import (
    IDENTITY_KEY_BYTES,
    NO_STANDING,
    SIGNATURE_BYTES,
    SigningKey,
    Standing,
    verify_signature,
)
from secagg.wire import FORMS, MessageKind

from .parameters import MAXIMUM_HOLDERS, Committee, Parameters

if TYPE_CHECKING:
    from secagg.crypto.hybrid_key_agreement import HybridPublicKey
    from secagg.privacy.client_noise import ClientNoise, NoiseSettings
    from secagg.session.client_policy import ClientPolicy, Compared


DIGEST_BYTES: Final = 32
NONCE_BYTES: Final = 32
NO_KEY: Final = bytes(IDENTITY_KEY_BYTES)
"""Placeholder key of the authority and of identities in ``semi_honest`` mode, which has no signatures."""
ENFORCED: Final = frozenset(
    (
        *("suites", "modes", "authority", "maximum_key_lifetime", "minimum_holders", "assumed_corrupted_holders"),
        *("assumed_corrupted", "minimum_cohort", "minimum_modulus_bits", "maximum_length", "maximum_population"),
        *("minimum_security_bits", "minimum_form", "maximum_standing_age"),
    )
)
"""Names of the policy's limits that this protocol enforces; the last one not in ``compared``, and only at clients."""
BY_HOLDERS: Final = ENFORCED - {"maximum_standing_age"}
_MAXIMUM_KEY_BYTES: Final = 1 << 11


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderIdentity:
    """Identity of the holder at one position."""

    number: Annotated[int, unsigned(8)]
    public_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord(Message):
    """Epoch as the authority signs it: the holders in order, and how many of them each step needs."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_RECORD
    number: Annotated[int, unsigned(8)]
    """Increases: a client refuses an epoch older than the newest that it has seen."""
    mode: Annotated[SecurityMode, choice(tuple(SecurityMode))]
    suite: Annotated[Suite, choice(tuple(Suite))]
    corrupted: Annotated[int, unsigned(2)]
    threshold: Annotated[int, unsigned(2)]
    packing: Annotated[int, unsigned(2)]
    quorum: Annotated[int, unsigned(2)]
    expiry: Annotated[int, unsigned(8)]
    """Seconds since 1970."""
    authority: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    holders: Annotated[tuple[HolderIdentity, ...], repeated(nested(HolderIdentity), MAXIMUM_HOLDERS)]
    signature: Annotated[bytes, variable(SIGNATURE_BYTES)] = b""

    def __post_init__(self) -> None:
        count, is_active = len(self.holders), self.mode is SecurityMode.ACTIVE
        keys = {holder.public_key for holder in self.holders}
        for is_wrong, sentence in (
            (count > MAXIMUM_HOLDERS, f"{count} holders exceed the limit of {MAXIMUM_HOLDERS}; list fewer"),
            (len({holder.number for holder in self.holders}) != count, "a holder is listed twice; list each once"),
            (is_active and len(keys) != count, "two holders have the same key; list each key once"),
            (is_active and NO_KEY in keys | {self.authority}, "active mode needs keys of authority and all holders"),
            (not is_active and {self.authority} | keys != {NO_KEY}, "semi_honest mode uses no keys; leave them zero"),
        ):
            if is_wrong:
                raise InvalidParameters(f"the epoch is refused: {sentence}")
        self.committee.require()

    @property
    def committee(self) -> Committee:
        return Committee(len(self.holders), self.corrupted, self.threshold, self.packing, self.quorum)

    @property
    def statement(self) -> bytes:
        return replace(self, signature=b"").encode()

    @property
    def context(self) -> AttemptContext:
        """Digest that holders' keys are bound to."""
        return AttemptContext(hashlib.sha256(bind(Label.ONE_MESSAGE_RECORD, self.statement)).digest())

    def position_of(self, public_key: bytes) -> int | None:
        return next((at for at, holder in enumerate(self.holders) if holder.public_key == public_key), None)

    def signed(self, authority: SigningKey) -> EpochRecord:
        """Return the record with the authority's signature.

        Security: an authority signs one record per number, and lists holders of different operators: ``corrupted``
            bounds how many of them collude.
        """
        return replace(self, signature=authority.sign(Label.ONE_MESSAGE_RECORD, self.statement))

    def sign(self, key: SigningKey | None, label: Label, *parts: bytes) -> bytes:
        """Sign as an identity of this epoch; return empty bytes in ``semi_honest`` mode, which has no identities."""
        if self.mode is SecurityMode.SEMI_HONEST:
            return b""
        if key is None:
            raise InvalidParameters("active mode needs a signing key")
        return key.sign(label, *parts)

    def verify(
        self, public_key: bytes, signature: bytes, label: Label, *parts: bytes, culprits: Iterable[Party] = UNDECIDED
    ) -> None:
        """Verify a signature that ``sign`` made.

        Raises:
            AuthenticationFailed: it is not a signature of this key on these parts.
            MalformedMessage: a signature in ``semi_honest`` mode.
        """
        if self.mode is SecurityMode.ACTIVE:
            verify_signature(public_key, signature, label, *parts, culprits=culprits)
        elif signature:
            raise MalformedMessage(
                "semi_honest mode has no signatures", reason=Reason.TRAILING_BYTES, culprits=culprits
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderKeys(Message):
    """Keys and nonce that a holder publishes for an epoch; its identity signs them."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_HOLDER_KEYS
    record: Annotated[bytes, fixed(DIGEST_BYTES)]
    position: Annotated[int, unsigned(2)]
    sealing_key: Annotated[bytes, variable(_MAXIMUM_KEY_BYTES)]
    nonce: Annotated[bytes, fixed(NONCE_BYTES)]
    """The holder's contribution to the seed of the public polynomials."""
    until: Annotated[int, unsigned(8)]
    """Seconds since 1970 at which the holder wipes the keys and everything sealed to them."""
    signature: Annotated[bytes, variable(SIGNATURE_BYTES)] = b""

    @property
    def parts(self) -> tuple[bytes, ...]:
        position, until = self.position.to_bytes(2, "big"), self.until.to_bytes(8, "big")
        return self.record, position, self.sealing_key, self.nonce, until


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderSignature:
    """Signature of one holder of a quorum."""

    holder: Annotated[int, unsigned(2)]
    signature: Annotated[bytes, variable(SIGNATURE_BYTES)]


def draw_nonce(coins: Coins) -> bytes:
    """Draw a public nonce."""
    return bytes(draw_exactly(NONCE_BYTES, coins))


@dataclass(frozen=True, slots=True)
class VerifiedEpoch:
    """A record with its authority's signature, and its holders' published keys; see ``verify_epoch``."""

    record: EpochRecord
    keys: tuple[HolderKeys | None, ...]
    """By position; None for an absent holder, which published none."""
    sealing_keys: tuple[ClassicSealingKey | HybridPublicKey | None, ...] = field(repr=False)
    digest: bytes
    seed: bytes
    """Seed of the public polynomials."""

    @property
    def count(self) -> int:
        return len(self.keys)

    @property
    def present(self) -> frozenset[int]:
        """Positions of the holders that published keys."""
        return frozenset(position for position, keys in enumerate(self.keys) if keys is not None)


def verify_epoch(record: bytes, keys: Sequence[bytes]) -> VerifiedEpoch:
    """Verify an epoch, and cache it, because clients receive the same epoch in every sum.

    Args:
        keys: by position; empty for an absent holder.
    Raises:
        MalformedMessage, AuthenticationFailed, PeerMisbehaved: the holder's keys are wrong; the error names it.
    """
    return _verified_epoch(record, tuple(keys))


@lru_cache(maxsize=16)
def _verified_epoch(encoded: bytes, announced: tuple[bytes, ...]) -> VerifiedEpoch:
    record = EpochRecord.decode(encoded)
    record.verify(record.authority, record.signature, Label.ONE_MESSAGE_RECORD, record.statement)
    keys = tuple(HolderKeys.decode(message) if message else None for message in announced)
    if len(keys) != len(record.holders) or any(key and key.position != at for at, key in enumerate(keys)):
        raise PeerMisbehaved(
            "pass the holders' keys in the epoch's order, with an empty entry for each absent holder",
            reason=Reason.ROSTER_INVALID,
            culprits=UNDECIDED,
        )
    sealing_keys: list[ClassicSealingKey | HybridPublicKey | None] = []
    for key, holder in zip(keys, record.holders, strict=True):
        if key is None:
            sealing_keys.append(None)
            continue
        sender = HolderId(key.position)
        with blaming(*unverified(sender)):
            if key.record != record.context.digest:
                raise PeerMisbehaved(
                    f"the keys of {sender} are for another epoch", reason=Reason.WRONG_SESSION, culprits=UNDECIDED
                )
            record.verify(holder.public_key, key.signature, Label.ONE_MESSAGE_HOLDER_KEYS, *key.parts)
        with blaming(*said_by(sender, record.mode)):
            sealing_keys.append(sealing_key(record.suite, key.sealing_key))
    published = [key.sealing_key for key in keys if key is not None]
    if len(set(published)) != len(published):
        raise PeerMisbehaved("two holders published the same key", reason=Reason.PUBLIC_KEY_REUSED, culprits=UNDECIDED)
    digest = hashlib.sha256(bind(Label.ONE_MESSAGE_EPOCH, *announced)).digest()
    seed = hashlib.sha256(bind(Label.ONE_MESSAGE_PUBLIC_SEED, digest)).digest()
    return VerifiedEpoch(record, keys, tuple(sealing_keys), digest, seed)


# --- The configuration ------------------------------------------------------------------------------------------------

_MAXIMUM_TASK_BYTES: Final = 256
_MAXIMUM_BYTES: Final = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTerms:
    """Terms that are the same for all clients of a sum."""

    round_number: Annotated[int, unsigned(8)]
    model_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    application_digest: Annotated[bytes, fixed(DIGEST_BYTES)]

    @property
    def digest(self) -> bytes:
        number = self.round_number.to_bytes(8, "big")
        return hashlib.sha256(
            bind(Label.ONE_MESSAGE_TERMS, number, self.model_digest, self.application_digest)
        ).digest()


def noise_of(configuration: Configuration, noise: NoiseSettings | None) -> ClientNoise | None:
    """Return the noise of a sum's clients, if any, for the configuration's number of corrupted clients.

    Raises:
        InvalidParameters, CapacityExceeded: the numbers are inconsistent.
    """
    if noise is None:
        return None
    if noise.noise_multiplier is not None and any(
        values.bounds is not None for values in configuration.parameters.segments
    ):
        raise InvalidParameters("values with noise cannot have bounds; set bounds = none")
    return noise.noise_for(
        configuration.layout,
        minimum_cohort=configuration.minimum_cohort,
        capacity=configuration.parameters.capacity,
        corrupted=configuration.corrupted_clients,
    )


@dataclass(frozen=True, kw_only=True)
class Configuration(Message):
    """Layout, masks and counting rules of a sum; with the epoch, everything that the parties agree on."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_CONFIGURATION
    message_form: Annotated[int, MESSAGE_FORM] = FORMS[0]
    task: Annotated[bytes, variable(_MAXIMUM_TASK_BYTES)]
    layout: Annotated[Layout, encoded(Layout, _MAXIMUM_BYTES)]
    parameters: Annotated[Parameters, nested(Parameters)]
    """Parameters of the layout's segments, the segment of zeros, and the check words of fine bits."""
    minimum_cohort: Annotated[int, unsigned(4)]
    corrupted_clients: Annotated[int, unsigned(4)]
    """Assumed number of corrupted clients (absolute)."""
    standing: Annotated[Standing, nested(Standing)] = NO_STANDING
    """The authority's revocations, and when; holders judge certificates at that time."""

    def __post_init__(self) -> None:
        parameters = self.parameters
        segments = tuple((one.length, one.ring_bits, one.fine_bits) for one in parameters.segments[: parameters.inputs])
        due = tuple((one.length, one.ring.modulus_bits, one.fine_bits) for one in self.layout.require_rings())
        for is_wrong, sentence in (
            (not self.task, "the task name is empty"),
            (
                segments != (*due, (parameters.witnesses, 1, 0)),
                "the parameters are not those of this layout and its zeros",
            ),
            (parameters.segments[len(due)].bounds is not None, "the segment of zeros must have no bounds"),
            (
                self.minimum_cohort < self.corrupted_clients + 2,
                f"{self.minimum_cohort} clients with {self.corrupted_clients} corrupted have fewer than 2 honest ones",
            ),
            (self.minimum_cohort > parameters.capacity, f"capacity {parameters.capacity} is below the minimum cohort"),
        ):
            if is_wrong:
                raise InvalidParameters(f"the configuration is refused: {sentence}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Message):
    """The server's offer to clients and holders; a client reads no other message."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_OFFER
    record: Annotated[bytes, variable(_MAXIMUM_BYTES)]
    keys: Annotated[tuple[bytes, ...], repeated(variable(_MAXIMUM_BYTES), MAXIMUM_HOLDERS)]
    configuration: Annotated[Configuration, nested(Configuration)]
    terms: Annotated[SumTerms, nested(SumTerms)]
    receipts: Annotated[tuple[HolderSignature, ...], repeated(nested(HolderSignature), MAXIMUM_HOLDERS)] = ()
    """Signatures of the holders that received this offer; empty in the offer to holders."""

    def agree(self) -> Agreement:
        """Verify the epoch, and return the agreement to which everything else is bound."""
        return Agreement(verify_epoch(self.record, self.keys), self.configuration)


@dataclass(frozen=True)
class Agreement:
    """A verified epoch and a configuration that fits it."""

    epoch: VerifiedEpoch
    configuration: Configuration

    def __post_init__(self) -> None:
        if self.parameters.committee != self.record.committee:
            raise InvalidParameters("the thresholds differ from those that the authority signed for the epoch")

    @property
    def record(self) -> EpochRecord:
        return self.epoch.record

    @property
    def parameters(self) -> Parameters:
        return self.configuration.parameters

    @cached_property
    def t0(self) -> bytes:
        """Digest of everything that the parties agree on."""
        encoded = self.configuration.encode()
        return hashlib.sha256(bind(Label.ONE_MESSAGE_CONFIGURATION, self.epoch.digest, encoded)).digest()

    def compared(self, now: datetime) -> Iterator[Compared]:
        """Yield the values that a client's policy limits."""
        record, configuration = self.record, self.configuration
        yield "minimum_form", configuration.message_form, "form {offered} of its messages is below {own}"
        yield "suites", record.suite, "suite {offered} is not accepted"
        yield "modes", record.mode, "mode {offered} is not accepted"
        if record.mode is SecurityMode.ACTIVE:
            yield "authority", record.authority, "another authority certifies its holders and clients"
        left = max((keys.until - now.timestamp() for keys in self.epoch.keys if keys is not None), default=0)
        yield "maximum_key_lifetime", left, "the keys of a holder last {offered:.0f} s, more than {own}"
        yield "minimum_holders", len(record.holders), "{offered} holders are fewer than {own}"
        yield "assumed_corrupted_holders", record.corrupted, "it tolerates only {offered} corrupted holders"
        # A configuration has two more clients in its cohort, so that no sum is a single honest input.
        yield "assumed_corrupted", configuration.corrupted_clients, "it tolerates only {offered} corrupted clients"
        yield "minimum_cohort", configuration.minimum_cohort, "a cohort of {offered} is below {own}"
        width = min(segment.modulus_bits for segment in configuration.layout.require_rings())
        yield "minimum_modulus_bits", width, "a ring of {offered} bits is below {own}"
        length = sum(segment.length for segment in configuration.layout.segments)
        yield "maximum_length", length, "a vector of {offered} is longer than {own}"
        yield "maximum_population", self.parameters.capacity, "a list of {offered} is longer than {own}"
        security = self.parameters.security_bits
        yield "minimum_security_bits", security, "its masks have {offered} bits of security by our count, below {own}"

    def require_accepted(self, policy: ClientPolicy, now: datetime, keeps: frozenset[str] = ENFORCED) -> None:
        """Refuse an offer that has expired or is weaker than a client's policy, as ``ClientPolicy.admit`` does."""
        policy.admit("the offered sum", keeps, self.compared(now))
        ends = {keys.position: keys.until for keys in self.epoch.keys if keys is not None}
        over = [HolderId(position) for position, until in ends.items() if until <= now.timestamp()]
        for is_wrong, sentence in (
            (now.timestamp() >= self.record.expiry, "its epoch has expired"),
            (bool(over), f"the keys of {', '.join(map(str, over))} have expired; ask for new ones"),
        ):
            if is_wrong:
                raise InvalidParameters(f"the offered sum is refused: {sentence}", reason=Reason.BELOW_FLOOR)

    def require_quorum(
        self, signed: Sequence[HolderSignature], label: Label, digest: bytes, culprits: Iterable[Party] = UNDECIDED
    ) -> None:
        """Check that a quorum of the holders signed a digest.

        Claim OM-8: any two quorums share an honest holder.

        Raises:
            PeerMisbehaved: too few signatures, or not by increasing positions.
            AuthenticationFailed: a signature is wrong.
        """
        holders, quorum = [one.holder for one in signed], self.record.quorum
        if holders != sorted(set(holders)) or len(holders) < quorum or not self.epoch.present.issuperset(holders):
            raise PeerMisbehaved(
                f"it needs signatures of {quorum} holders that published keys, sorted by position",
                reason=Reason.QUORUM_NOT_MET,
                culprits=culprits,
            )
        for one in signed:
            position = one.holder.to_bytes(2, "big")
            self.verify(one.holder, one.signature, label, position, digest, culprits=culprits)

    def holder(self, position: int) -> bytes:
        """Return a holder's position and number, encoded for hashing."""
        return position.to_bytes(2, "big") + self.record.holders[position].number.to_bytes(8, "big")

    def sign(self, key: SigningKey | None, label: Label, *parts: bytes) -> bytes:
        """Sign, bound to this agreement."""
        return self.record.sign(key, label, self.t0, *parts)

    def verify(
        self, position: int, signature: bytes, label: Label, *parts: bytes, culprits: Iterable[Party] = UNDECIDED
    ) -> None:
        """Verify the signature of the holder at a position; errors name that holder unless others are given."""
        key = self.record.holders[position].public_key
        self.record.verify(key, signature, label, self.t0, *parts, culprits=culprits or unverified(HolderId(position)))
