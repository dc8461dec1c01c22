"""Custom schemes from other packages, found by name and constructed anew for every round.

A factory is any class or function that takes ``values`` (their number in an update), ``cohort`` (maximum uploads in a
sum), ``seed`` (32 public bytes) and ``epoch`` (the number of the round), and returns a linear decoder. Only the name
and these four are sent; each side constructs the scheme from a factory that it chose itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import numpy.typing as npt

from secagg.contract import Aggregate, IndexedDecoder, Layout, LinearDecoder, Payload
from secagg.contract.codewords import Tables
from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters

from .common import finite, require_seed

Factory = Callable[..., LinearDecoder[Any]]
MAXIMUM_NAME_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CustomScheme:
    """A factory's scheme and the arguments used to create it."""

    name: str
    """``module:Name`` or ``path/to/file.py:Name``."""
    values: int
    cohort: int
    seed: bytes
    epoch: int
    factory: Factory = field(repr=False)
    scheme: LinearDecoder[Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < len(self.name.encode()) <= MAXIMUM_NAME_BYTES:
            raise InvalidParameters(f"a scheme's name must be 1 to {MAXIMUM_NAME_BYTES} bytes; got {self.name!r}")
        require_seed(self.seed)
        made = self.factory(values=self.values, cohort=self.cohort, seed=self.seed, epoch=self.epoch)
        if made.capacity < self.cohort:
            raise InvalidParameters(
                f"{self.name} has a capacity of {made.capacity}, but a sum of this run may hold {self.cohort} "
                "uploads; widen its ring to hold ``cohort``"
            )
        object.__setattr__(self, "scheme", made)

    @property
    def length(self) -> int:
        return self.values

    @property
    def layout(self) -> Layout:
        return self.scheme.layout

    @property
    def capacity(self) -> int:
        return self.scheme.capacity

    @property
    def tables(self) -> Tables:
        return self._indexed.tables

    def encode(self, update: npt.NDArray[Any], coins: Coins) -> Payload:
        return self.scheme.encode(finite(update), coins)

    def decode(self, aggregate: Aggregate) -> npt.NDArray[Any]:
        decoded: npt.NDArray[Any] = self.scheme.decode(aggregate)
        return decoded

    def decode_summed(self, aggregate: Aggregate) -> npt.NDArray[Any]:
        decoded: npt.NDArray[Any] = self._indexed.decode_summed(aggregate)
        return decoded

    @property
    def _indexed(self) -> IndexedDecoder[Any]:
        if not hasattr(self.scheme, "decode_summed"):
            raise InvalidParameters(
                f"{self.name} sends indices but only decodes histograms; give it `tables` and `decode_summed`"
            )
        return cast("IndexedDecoder[Any]", self.scheme)


def custom_factory(named: str) -> Factory:
    """Import and return ``module:Name`` or ``path/to/file.py:Name``; importing runs it, so name only code you trust."""
    place, _, name = named.rpartition(":")
    try:
        module = _module_in(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        factory: Any = getattr(module, name)
    except (ImportError, OSError, AttributeError, ValueError) as error:
        raise InvalidParameters(
            f"the scheme {named!r} cannot be imported ({error}); name a module on the path, or a file, as module:Name "
            "or path/to/file.py:Name"
        ) from None
    if not callable(factory):
        raise InvalidParameters(f"the scheme {named!r} does not name a class or function that creates one")
    return cast("Factory", factory)


def _module_in(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"secagg_scheme_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError(str(file))
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
