"""Agreement of a sum's parties: the epoch and the configuration, whose digest (T0) is bound to everything.

Clients and holders compute T0 from what they have checked, so a party that was told something else cannot use what the
others say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from secagg.contract.layout import Layout
from secagg.crypto.labels import Label, bind
from secagg.errors import UNDECIDED, InvalidParameters
from secagg.fields import Message, encoded, fixed, nested, repeated, unsigned, variable, write_fields
from secagg.identifiers import HolderId, Party
from secagg.session.certificates import SigningKey
from secagg.wire import MessageKind, Writer

from .epoch import DIGEST_BYTES, EpochRecord, VerifiedEpoch, verify_epoch
from .parameters import MAXIMUM_HOLDERS, Parameters, ThresholdRule

if TYPE_CHECKING:
    from secagg.privacy.client_noise import ClientNoise, NoiseSettings

SUM_ID_BYTES: Final = 16
NO_SUM: Final = bytes(SUM_ID_BYTES)
"""The sum that an upload names under the certified rule: any one."""
_MAXIMUM_TASK_BYTES: Final = 256
_MAXIMUM_BYTES: Final = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class SumTerms:
    """Which sum an upload is for, and what all its clients were told alike."""

    sum_id: Annotated[bytes, fixed(SUM_ID_BYTES)]
    round_number: Annotated[int, unsigned(8)]
    model_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    application_digest: Annotated[bytes, fixed(DIGEST_BYTES)]

    @property
    def digest(self) -> bytes:
        number = self.round_number.to_bytes(8, "big")
        return hashlib.sha256(
            bind(Label.ONE_MESSAGE_TERMS, self.sum_id, number, self.model_digest, self.application_digest)
        ).digest()


def noise_of(configuration: Configuration, noise: NoiseSettings | None) -> ClientNoise | None:
    """Return the noise of a sum's clients, if it has any, with as many corrupted ones as the configuration counts.

    Raises:
        InvalidParameters, CapacityExceeded: the numbers do not go together.
    """
    if noise is None:
        return None
    if noise.noise_multiplier is not None and any(
        values.bounds is not None for values in configuration.parameters.segments
    ):
        raise InvalidParameters("values with noise have no bounds: take bounds = none")
    return noise.noise_for(
        configuration.layout,
        minimum_cohort=configuration.minimum_cohort,
        capacity=configuration.parameters.capacity,
        corrupted=configuration.corrupted_clients,
        maximum_weight=configuration.maximum_weight,
    )


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Layout, masks and counting rules of a sum; with the epoch it is everything that parties agree on."""

    task: Annotated[bytes, variable(_MAXIMUM_TASK_BYTES)]
    layout: Annotated[Layout, encoded(Layout, _MAXIMUM_BYTES)]
    parameters: Annotated[Parameters, nested(Parameters)]
    """Parameters of the layout's segments, of one more, the weight and zeros, and of the check words of fine bits."""
    minimum_cohort: Annotated[int, unsigned(4)]
    corrupted_clients: Annotated[int, unsigned(4)]
    """Number of clients assumed to be corrupted, counted absolutely."""
    maximum_weight: Annotated[int, unsigned(4)]

    def __post_init__(self) -> None:
        parameters, most = self.parameters, self.parameters.capacity * self.maximum_weight
        segments = tuple((one.length, one.ring_bits, one.fine_bits) for one in parameters.segments[: parameters.inputs])
        due = tuple((one.length, one.ring.modulus_bits, one.fine_bits) for one in self.layout.require_rings())
        for is_wrong, sentence in (
            (not self.task, "a task has a name"),
            (
                segments != (*due, (1 + parameters.witnesses, weight_bits(parameters.capacity_weight), 0)),
                "the parameters are made for another layout, its weight and the zeros behind that",
            ),
            (parameters.segments[len(due)].bounds is not None, "the weight has a coefficient of its own"),
            (self.maximum_weight < 1, "a weight is at least 1"),
            (parameters.capacity_weight < most, f"the weights of {parameters.capacity} clients reach {most}"),
            (
                self.minimum_cohort < self.corrupted_clients + 2,
                f"with {self.corrupted_clients} corrupted clients {self.minimum_cohort} hold fewer than 2 honest ones",
            ),
            (self.minimum_cohort > parameters.capacity, f"no list of {parameters.capacity} reaches the cohort"),
        ):
            if is_wrong:
                raise InvalidParameters(f"the configuration is refused: {sentence}")


def weight_bits(capacity_weight: int) -> int:
    """Return the bits of a ring that holds any sum of weights."""
    return capacity_weight.bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer(Message):
    """The server's offer to clients and holders alike, and the only message that a client reads."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_OFFER
    record: Annotated[bytes, variable(_MAXIMUM_BYTES)]
    keys: Annotated[tuple[bytes, ...], repeated(variable(_MAXIMUM_BYTES), MAXIMUM_HOLDERS)]
    configuration: Annotated[Configuration, nested(Configuration)]
    terms: Annotated[SumTerms, nested(SumTerms)]

    def agree(self) -> Agreement:
        """Check the epoch, and return what everything else is bound to."""
        return Agreement(verify_epoch(self.record, self.keys), self.configuration)


@dataclass(frozen=True)
class Agreement:
    """A verified epoch and a configuration that fits it."""

    epoch: VerifiedEpoch
    configuration: Configuration

    def __post_init__(self) -> None:
        if self.parameters.committee != self.record.committee:
            raise InvalidParameters("the configuration has other thresholds than the authority signed for the epoch")

    @property
    def record(self) -> EpochRecord:
        return self.epoch.record

    @property
    def parameters(self) -> Parameters:
        return self.configuration.parameters

    @cached_property
    def t0(self) -> bytes:
        """Digest of everything that the parties agree on."""
        writer = Writer(MessageKind.ONE_MESSAGE_CONFIGURATION)
        write_fields(writer, self.configuration)
        return hashlib.sha256(bind(Label.ONE_MESSAGE_CONFIGURATION, self.epoch.digest, writer.finish())).digest()

    def holder(self, position: int) -> bytes:
        """Return a holder's position and number, as they are hashed."""
        return position.to_bytes(2, "big") + self.record.holders[position].number.to_bytes(8, "big")

    def sign(self, key: SigningKey | None, label: Label, *parts: bytes) -> bytes:
        """Sign for this agreement alone."""
        return self.record.sign(key, label, self.t0, *parts)

    def require_terms(self, terms: SumTerms) -> None:
        """Refuse terms that do not name their one sum under ``one_answer``, or name one under ``certified``.

        Under ``one_answer`` nothing but this name keeps answers of two sums from sharing an unknown.
        """
        if (terms.sum_id == NO_SUM) is not (self.record.rule is ThresholdRule.CERTIFIED):
            raise InvalidParameters(
                "an upload names its one sum under the rule one_answer, and none under the rule certified"
            )

    def verify(
        self, position: int, signature: bytes, label: Label, *parts: bytes, culprits: Iterable[Party] = UNDECIDED
    ) -> None:
        """Check what the holder at a position signed; it is to blame unless others are named."""
        key = self.record.holders[position].public_key
        self.record.verify(key, signature, label, self.t0, *parts, culprits=culprits or {HolderId(position)})
