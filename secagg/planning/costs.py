"""Costs of every combination of a scheme and a protocol, from layouts and from the protocols' own formulas.

Bytes are those of one client. Down counts the messages of the protocol, and the scales and codebooks of the scheme; the
model itself comes to every client in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from secagg.contract import IndexSegment, Layout
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.session.costs import Costs
from secagg.session.registry import ProtocolEntry, find, names

from .planned_update import INDEXED, Learned, PlanRequest, Scheme


class Status(StrEnum):
    """Whether a combination can be used."""

    AVAILABLE = "available"
    PROTOCOL_ONLY = "protocol only"
    """No scheme of the library encodes so; a platform that brings one can use the protocol."""


SCHEMES_TO_BRING: Final = frozenset({Scheme.DECODED_CODEWORDS, Scheme.ONE_HOT})
"""Schemes that nothing in ``secagg.compression`` encodes; where indices can be sent, nobody needs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One combination, and what it costs."""

    scheme: Scheme
    entry: ProtocolEntry
    described: str
    """The scheme with its parameters."""
    layout: Layout
    learned: Learned
    weights: int
    public_bytes: int
    """Bytes of the scheme's public parameters."""
    costs: Costs

    @property
    def protocol(self) -> str:
        return self.entry.name

    @property
    def name(self) -> str:
        return f"{self.protocol}, {self.costs.variant}" if self.costs.variant else self.protocol

    @property
    def down_bytes(self) -> int:
        return self.costs.down_bytes + self.public_bytes

    @property
    def bits_per_weight(self) -> float:
        """The upload, divided among all values of the model."""
        return 8 * self.costs.up_bytes / self.weights

    @property
    def status(self) -> Status:
        return Status.PROTOCOL_ONLY if self.scheme in SCHEMES_TO_BRING else Status.AVAILABLE


@dataclass(frozen=True, slots=True)
class Comparison:
    """All combinations, the shortest upload first, and why some that one could look for are not there."""

    options: tuple[Option, ...]
    left_out: tuple[str, ...]

    @property
    def protocols(self) -> tuple[str, ...]:
        """Whatever has an option, as the registry orders it."""
        return tuple(name for name in names() if self.shortest(name) is not None)

    def shortest(self, protocol: str, *schemes: Scheme) -> Option | None:
        """Return the first option of a protocol, of some schemes or of all of them."""
        found = (option for option in self.options if option.protocol == protocol)
        return next((option for option in found if not schemes or option.scheme in schemes), None)

    def giving(self, learned: Learned) -> list[Option]:
        """Return the options from which this can be computed: a histogram gives the sum as well."""
        return [option for option in self.options if learned in (option.learned, Learned.SUM)]


def compare(request: PlanRequest) -> Comparison:
    """Cost every combination; what cannot be done is left out, with what the library says of it."""
    options, left_out = list[Option](), dict[tuple[str, str], list[Scheme]]()
    for entry in map(find, names()):
        for scheme in Scheme:
            try:
                options.extend(_options(request, entry, scheme))
            except (InvalidParameters, CapacityExceeded) as error:
                left_out.setdefault((entry.name, str(error)), []).append(scheme)
    options.sort(key=lambda option: (option.costs.up_bytes, option.down_bytes, option.described, option.name))
    sentences = [f"{name}, {', '.join(schemes)}: {error}" for (name, error), schemes in left_out.items()]
    return Comparison(tuple(options), tuple(sentences))


def _options(request: PlanRequest, entry: ProtocolEntry, scheme: Scheme) -> Iterator[Option]:
    """Yield the forms of a protocol for a scheme; none where that goes without saying."""
    takes_indices = IndexSegment in entry.segments
    if entry.costs is None or scheme in (SCHEMES_TO_BRING if takes_indices else INDEXED):
        return
    layout = request.layout(scheme)
    for costs in entry.costs(layout, request.clients, request.suite):
        counts = costs.reveals_counts or scheme is Scheme.ONE_HOT
        asked = request.learn is Learned.HISTOGRAM and scheme in INDEXED
        yield Option(
            scheme=scheme,
            entry=entry,
            described=request.describe(scheme),
            layout=layout,
            learned=Learned.HISTOGRAM if counts or asked else Learned.SUM,
            weights=request.weights,
            public_bytes=request.public_bytes(scheme),
            costs=costs,
        )
