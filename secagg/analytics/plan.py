"""Plan of a declaration: rings for its sums, noise for its epsilon, and results from a sum.

The plan follows only from the declaration, so server and sites compute the same plan and a site trusts no other party.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from textwrap import shorten
from typing import Any, Final

import numpy as np

from secagg.compression.fixed_point import Identity
from secagg.compression.model_update import ModelUpdate
from secagg.compression.model_update.arrays import model_digest
from secagg.compression.model_update.codec import TensorScheme
from secagg.contract import Aggregate, Layout, RingSegment
from secagg.crypto.entropy import Coins, SystemCoins
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS, Ring
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.privacy.accounting import Adjacency
from secagg.privacy.client_noise import LEAST_SHARE, ClientNoise, NoiseSettings
from secagg.privacy.kinds import NoiseKind
from secagg.privacy.noise_table import add_noise_into
from secagg.privacy.rounding import WORST_DEVIATIONS
from secagg.quick.in_process import Summary, by_name, leaving, simulated
from secagg.quick.model_session import planned
from secagg.session.registry import ChosenProtocol, find, given_in
from secagg.session.roles import LazyUpdate, Subject, Update

from .data import Site, Values
from .declaration import Declaration
from .kinds import KINDS, Group, Integers, Kind

_DECIMALS: Final = 1000
_LINE: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Results(Summary):
    """Statistics of all sites of a sum."""

    name: str
    sites: int
    """Number of sites in the sum."""
    least_count: int
    """Counts below it are None, which means "fewer than" that."""
    epsilon: float | None
    statistics: Mapping[str, dict[str, Any]]

    @property
    def record(self) -> dict[str, Any]:
        """The results, for JSON."""
        return {
            "name": self.name,
            "sites": self.sites,
            "hidden": f"null means fewer than {self.least_count}, or a count that would reveal such a count",
            "epsilon": self.epsilon,
            "statistics": dict(self.statistics),
        }

    def summary(self) -> dict[str, object]:
        """Return what a terminal and a notebook show, each statistic shortened."""
        return {
            "statistics of": f"{self.name}, {self.sites} sites",
            "hidden": f"None means fewer than {self.least_count}, or a count that would reveal such a count",
            **{name: shorten(str(each), _LINE) for name, each in self.statistics.items()},
        }


@dataclass(frozen=True, slots=True)
class _CellNoise(ClientNoise):
    """Noise of cells, scaled to the replacement of one person: in a table or histogram two cells change by one each."""

    squared: tuple[int, ...]

    def _squared_for(self, adjacency: Adjacency) -> list[int]:
        del adjacency
        return list(self.squared)


class Plan:
    """A declaration as a secure sum. Refused if no ring can hold the sums, or no noise is large enough."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.kinds: dict[str, Kind] = {
            name: KINDS[statistic.kind](statistic, declaration) for name, statistic in declaration.statistics.items()
        }
        self._groups: dict[str, Group] = {
            f"{name}/{number}": group for name, kind in self.kinds.items() for number, group in enumerate(kind.groups)
        }
        self.asked = {"statistics": np.frombuffer(declaration.digest, dtype=np.uint8)}
        """The declaration's digest in place of a model's."""
        self.model_digest = model_digest(self.asked)
        tails = {name: WORST_DEVIATIONS * math.sqrt(share) for name, share in self._shares.items()}
        bounds = {
            name: group.largest * declaration.most_people + math.ceil(tails.get(name, 0.0))
            for name, group in self._groups.items()
        }
        widest = max(bounds, key=bounds.__getitem__)
        bits = (declaration.most_clients * bounds[widest]).bit_length() + 1
        if bits > MAXIMUM_MODULUS_BITS:
            raise InvalidParameters(
                f"sums of {widest.rpartition('/')[0]!r} need {bits} bits; the limit is {MAXIMUM_MODULUS_BITS}: "
                "use a coarser step, or lower most_people or most_clients"
            )
        self.bits = bits
        self.update = ModelUpdate(
            tensors=tuple(
                TensorScheme(
                    name=name,
                    shape=(group.length,),
                    scheme=Identity(length=group.length, bound=bounds[name], modulus_bits=bits),
                )
                for name, group in self._groups.items()
            )
        )
        self.noise = self._noise()
        """Noise of a sum for the ledger; a neighbour replaces one person by another."""

    @property
    def multiplier(self) -> Fraction | None:
        """Noise over the sensitivity to one person, for the declared epsilon; None for no noise.

        Gaussian noise of z has a loss of rho = 1 / (2 z^2), and epsilon is at most rho + 2 sqrt(rho ln(1 / delta)).
        """
        declared = self.declaration
        if declared.epsilon is None:
            return None
        log = math.log(1 / declared.delta)
        root = math.sqrt(log + declared.epsilon) - math.sqrt(log)
        # A site's share of the noise has a minimum variance.
        smallest = min(group.squared for group in self._groups.values())
        least = math.sqrt(LEAST_SHARE * self._honest / len(self._groups) / smallest)
        return Fraction(math.ceil(_DECIMALS * max(least, 1 / (math.sqrt(2) * root))), _DECIMALS)

    @property
    def _honest(self) -> int:
        return self.declaration.least_clients - self.declaration.corrupted

    @property
    def _shares(self) -> dict[str, Fraction]:
        """Variance of one site's noise on each group of cells; empty without noise."""
        if (multiplier := self.multiplier) is None:
            return {}
        scale = multiplier**2 * len(self._groups) / self._honest
        return {name: scale * group.squared for name, group in self._groups.items()}

    def _noise(self) -> ClientNoise | None:
        if (multiplier := self.multiplier) is None:
            return None
        groups = self._groups.values()
        squared = tuple(group.squared for group in groups)
        settings = NoiseSettings(
            noise_multiplier=multiplier, l2_bounds=tuple(math.isqrt(each - 1) + 1 for each in squared)
        )
        layout = Layout(tuple(RingSegment(self.bits, group.length) for group in groups))
        declared = self.declaration
        try:
            return _CellNoise(settings, layout, self._honest, declared.most_clients, squared)
        except (CapacityExceeded, InvalidParameters) as error:
            raise InvalidParameters(
                f"sites cannot draw the noise for epsilon {declared.epsilon:g} ({error}); use coarser steps, fewer "
                "statistics or a larger epsilon"
            ) from None

    def subject(self, *, task: bytes, round_number: int, model: object = ()) -> Subject:
        """Return the subject of a session, the same on both sides; the declaration replaces the model."""
        del model
        return Subject(
            task=task,
            round_number=round_number,
            layout=self.update.layout,
            capacity=self.update.capacity,
            terms=self.declaration.digest,
            model_digest=self.model_digest,
        )

    def late(self, site: Site, coins: Coins, charge: Callable[[], None] = lambda: None) -> LazyUpdate:
        """Return a site's lazy update; its data are read when the session takes it, after ``charge``."""
        return LazyUpdate(lambda: self._made(site, coins), self.model_digest, charge=charge)

    def results(self, aggregate: Aggregate) -> Results:
        sums: Mapping[str, Any] = self.update.decode(aggregate)
        return Results(
            name=self.declaration.name,
            sites=aggregate.contributors,
            least_count=self.declaration.least_count,
            epsilon=self.declaration.epsilon,
            statistics={
                name: {"kind": kind.statistic.kind}
                | kind.result([sums[f"{name}/{number}"] for number in range(len(kind.groups))])
                for name, kind in self.kinds.items()
            },
        )

    def _made(self, site: Site, coins: Coins) -> Update:
        columns, people = site.columns()
        cells: dict[str, Integers] = {
            f"{name}/{number}": each
            for name, kind in self.kinds.items()
            for number, each in enumerate(kind.measure(columns, people))
        }
        for name, share in self._shares.items():
            ring = Ring(self.bits)
            vector = ring.from_integers(cells[name])
            add_noise_into(vector, ring, NoiseKind.DISCRETE_GAUSSIAN, share, coins)
            cells[name] = ring.lift(vector).astype(np.int64)
        return Update(self.update.encode(cells, coins), self.model_digest)


# --- A sum in one process: for tests, notebooks and trials ------------------------------------------------------------

_TASK: Final = b"statistics in one process"


def summed(
    declaration: Declaration,
    sites: Mapping[Any, Mapping[str, Values]] | Collection[Mapping[str, Values]],
    *,
    drop: int | Collection[Hashable] = 0,
    protocol: ChosenProtocol = "pairwise",
    corrupted: int | None = None,
) -> Results:
    """Return the statistics of all sites.

    Args:
        sites: for each site, the functions that return its people's values, by variable name.
        drop: number of sites that drop out before the upload, or which ones.
        protocol: name of a protocol, or the entry of a custom one.
        corrupted: number of sites that may collude with the server (default: one in ten).
    Raises:
        InvalidParameters: too few sites or too many, or one lacks a function.
        SecAggError: nothing is released; the message says why.
    """
    plan, entry = Plan(declaration), find(protocol)
    named = {name: Site(declaration=declaration, functions=one) for name, one in by_name(sites).items()}
    gone, least = leaving(drop, named), declaration.least_clients
    if not least <= len(named) - gone or len(named) > declaration.most_clients:
        raise InvalidParameters(
            f"{declaration.name!r} needs {least} to {declaration.most_clients} sites, but {len(named) - gone} "
            "take part; change least_clients, most_clients or the sites"
        )
    chosen: dict[str, Any] = {"minimum_cohort": max(least, len(named) - gone), **given_in(protocol)}
    made = planned(entry, len(named), dropped=gone, settings=chosen, corrupted=corrupted)
    entry.require_segments(plan.update.layout)
    coins = SystemCoins()
    making = {name: partial(plan.late, site, coins) for name, site in named.items()}
    released, _ = simulated(entry, made, plan.subject(task=_TASK, round_number=1), making, drop)
    return plan.results(released.aggregate)
