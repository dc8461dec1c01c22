"""Floors that a client checks before it seals anything, whatever an enclave and its host are configured for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from secagg.contract.codewords import Tables, tables_digest
from secagg.contract.layout import Layout
from secagg.errors import InvalidParameters, Reason
from secagg.parameters import LEAST_COHORT, Suite, require_integer, require_members
from secagg.session.certificates import IDENTITY_KEY_BYTES

from .trusted.configuration import Accumulation, EnclaveConfiguration, ReleaseForm

if TYPE_CHECKING:
    from .session import PrivacyFloor

MAXIMUM_LIFETIME_SECONDS: Final = 24 * 3600
"""Evidence of most kinds has no time in it; keys that live for a day at most are fresh enough without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveFloors:
    """Floors of a client.

    Without them a client would follow the server to a cohort of one, to an authority that the server controls, or to
    codewords that spell out the histogram in their sum.
    """

    suites: frozenset[Suite]
    minimum_cohort: int
    maximum_length: int
    authority: bytes | None
    """Authority that certifies clients; None without one that the host does not control, which needs ``privacy``."""
    histograms_accepted: bool = False
    direct_accepted: bool = False
    """Whether indices may be counted in a form whose memory accesses tell them in part."""
    maximum_codeword_bits: int = 25
    """A wide entry can carry more than a value."""
    maximum_released_bits: int = 64
    minimum_root_mean_square: int = 1
    """In steps, of a ring segment's bound: with noise a client scales its values down to it, and a small one leaves
    nothing but zeros.
    """
    minimum_codeword_bound: int = 0
    """In the steps of the tables; 0 accepts none. Clients over the bound count as the least codewords, so one that only
    one client keeps would give the host that client's update.
    """
    sealed_vectors_accepted: bool = True
    """Whether the program may see this client's values, which it adds itself where it bounds everybody's norm."""
    max_norms: tuple[int, ...] | None = None
    """The bounds of this client's task in steps, where something else tells it of them; a server that changes bounds
    from sum to sum bisects norms.
    """
    privacy: PrivacyFloor | None = None

    @classmethod
    def usual(cls, clients: int, authority: bytes) -> EnclaveFloors:
        """Return floors for an application that knows how many clients it has: half of them, and no noise asked for."""
        return cls(
            suites=frozenset(Suite),
            minimum_cohort=max(LEAST_COHORT, clients // 2),
            maximum_length=1 << 28,
            authority=authority,
        )

    def __post_init__(self) -> None:
        require_members("suites", self.suites, Suite)
        require_integer("minimum_cohort", self.minimum_cohort, LEAST_COHORT, (1 << 32) - 1)
        require_integer("maximum_length", self.maximum_length, 1, 1 << 48)
        require_integer("maximum_codeword_bits", self.maximum_codeword_bits, 2, 64)
        require_integer("maximum_released_bits", self.maximum_released_bits, 1, 64)
        require_integer("minimum_codeword_bound", self.minimum_codeword_bound, 0, (1 << 40) - 1)
        require_integer("minimum_root_mean_square", self.minimum_root_mean_square, 1, (1 << 40) - 1)
        if self.authority is not None and (len(self.authority) != IDENTITY_KEY_BYTES or not any(self.authority)):
            raise InvalidParameters(f"an authority is a public key of {IDENTITY_KEY_BYTES} bytes, not all of them zero")
        if self.authority is None and self.privacy is None:
            raise InvalidParameters(
                "without an authority a host can invent every other client, and only noise protects this one; name an "
                "authority, or ask for privacy"
            )

    def admit(
        self,
        configuration: EnclaveConfiguration,
        *,
        layout: Layout,
        tables: Tables,
        maximum_seals: int | None,
        now: datetime,
    ) -> None:
        """Refuse a configuration that is weaker than these floors, or made for another codec than the client's.

        Args:
            layout: of the client's own codec, as are the tables.
            maximum_seals: the client's own limit on uploads for the task.
        Raises:
            InvalidParameters: with reason ``below_floor``, naming the weak value.
        """
        for is_weak, sentence in self._weaknesses(configuration, layout, tables, maximum_seals, now):
            if is_weak:
                raise InvalidParameters(
                    f"this enclave is refused: {sentence}; change its configuration or this client's floors",
                    reason=Reason.BELOW_FLOOR,
                )

    def _weaknesses(
        self,
        configuration: EnclaveConfiguration,
        layout: Layout,
        tables: Tables,
        maximum_seals: int | None,
        now: datetime,
    ) -> Iterator[tuple[bool, str]]:
        """Go through the rules, the slow ones last."""
        entries = [table for run in configuration.tables for table in run]
        yield configuration.suite not in self.suites, f"suite {configuration.suite} is not accepted"
        least = configuration.minimum_cohort
        yield least < self.minimum_cohort, f"a cohort of {least} is below {self.minimum_cohort}"
        is_other = self.authority is not None and configuration.authority != self.authority
        yield is_other, "clients are certified by another authority than this client's"
        yield configuration.layout != layout, "its layout or codebooks, or floors on rows, are not those of this client"
        length = sum(segment.length for segment in configuration.layout.segments)
        yield length > self.maximum_length, f"its vectors are longer than {self.maximum_length}"
        if configuration.index_segments:
            is_histogram = configuration.form is ReleaseForm.HISTOGRAM and not self.histograms_accepted
            yield is_histogram, "it releases histograms, which tell more than a decoded sum"
            is_direct = configuration.accumulation is Accumulation.DIRECT and not self.direct_accepted
            yield is_direct, "it counts in direct form, whose memory accesses tell indices in part"
        is_other = bool(entries) and tables_digest(configuration.tables) != tables_digest(tables)
        yield is_other, "its codebooks are not those that this client encodes with"
        widest = max((table.largest.bit_length() + 1 for table in entries), default=0)
        yield (
            widest > self.maximum_codeword_bits,
            f"an entry of a codebook has more than {self.maximum_codeword_bits} bits",
        )
        widest = max(segment.ring.modulus_bits for segment in configuration.released.segments)
        yield (
            widest > self.maximum_released_bits,
            f"a released element has more than {self.maximum_released_bits} bits",
        )
        is_tight = 0 < configuration.codeword_bound < (self.minimum_codeword_bound or 1 << 40)
        yield is_tight, f"choices over a norm of {configuration.codeword_bound} count as the least codewords"
        is_seen = bool(configuration.max_norms) and not self.sealed_vectors_accepted
        is_other = self.max_norms not in {None, configuration.max_norms}
        yield is_other, "its max_norms are not those of this client's task"
        yield is_seen, "its program sees every client's values, to bound their norm (max_norms)"
        norms = configuration.max_norms or (configuration.noise.l2_bounds if configuration.noise is not None else ())
        least = self.minimum_root_mean_square**2
        bounds = zip(configuration.ring_segments, norms, strict=bool(norms))
        is_small = any(bound > 0 and bound * bound < least * segment.length for segment, bound in bounds)
        yield is_small, f"an L2 bound leaves values less than {self.minimum_root_mean_square} steps on average"
        yield configuration.expiry > now.timestamp() + MAXIMUM_LIFETIME_SECONDS, "its keys live longer than a day"
        if self.privacy is not None:
            yield configuration.noise is None, "it adds no noise"
            is_spent = not self.privacy.holds(configuration, maximum_seals)
            yield is_spent, f"its noise does not keep epsilon to {self.privacy.epsilon}"
