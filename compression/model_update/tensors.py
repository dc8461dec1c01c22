"""One tensor of a model with its scheme, and what is refused about a tensor, by its name."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.count_sketch import CountSketch
from secagg.compression.dithered_quantization import DitheredQuantization
from secagg.compression.peak import PeakCode
from secagg.compression.product_quantization import ProductQuantization
from secagg.compression.public_stream import PublicStream, require_shape
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import RandomRotation
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.compression.sketch import Sketch
from secagg.contract import LinearDecoder
from secagg.contract.layout import UNVERSIONED
from secagg.errors import CapacityExceeded, ContractViolation, InvalidParameters, Misuse

Tensor = npt.NDArray[Any]
Tensors = Mapping[str, Tensor]
"""Arrays by the names of the model's tensors."""
Shape = tuple[int, ...]
MAXIMUM_NAME_BYTES: Final = (1 << 16) - 1
_NAMES_SHOWN: Final = 4
_PLAIN_ARRAYS: Final = (np.ndarray, np.memmap)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorScheme:
    """One tensor of a model, and the scheme that encodes it.

    A scheme that has a ``length`` takes the tensor as a vector, in row-major order; any other one takes it as it is.
    """

    name: str
    shape: Shape
    scheme: LinearDecoder[Any]

    def __post_init__(self) -> None:
        require_name(self.name)
        with named(self.name):
            require_shape(self.shape)
            if self.scheme.layout.version == UNVERSIONED:
                raise ContractViolation(
                    "its scheme has no version, so a change of its parameters would go unnoticed; give its layout one"
                )

    @property
    def place(self) -> Shape:
        """The shape in which the scheme takes the tensor."""
        return (prod(self.shape),) if hasattr(self.scheme, "length") else self.shape


@contextmanager
def named(name: str) -> Generator[None]:
    """Put a tensor's name before the message of whatever error is raised about it."""
    try:
        yield
    except (CapacityExceeded, ContractViolation, InvalidParameters, Misuse) as error:
        raise type(error)(f"tensor {name!r}: {error}", reason=error.reason) from error


def require_name(name: str) -> None:
    """Refuse what cannot be the name of a tensor."""
    if type(name) is not str:
        raise Misuse(f"a tensor's name is a str; got {name!r}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise InvalidParameters("a tensor's name is text that UTF-8 can hold; rename the tensor") from None
    if not 0 < len(encoded) <= MAXIMUM_NAME_BYTES:
        raise InvalidParameters(f"a tensor's name has 1 to {MAXIMUM_NAME_BYTES} bytes; rename {name[:40]!r}")


def require_names(given: Mapping[Any, Any], due: Sequence[str], what: str) -> None:
    """Refuse what is no mapping, tensors that are missing, and tensors that the model does not have.

    Raises:
        Misuse: any of these; the message lists the names.
    """
    if not _is_mapping(given):
        raise Misuse(f"{what} is a mapping from the names of tensors to arrays; got {type(given).__name__}")
    missing, unknown = [name for name in due if name not in given], [name for name in given if name not in due]
    if missing:
        raise Misuse(f"{what} lacks {listed(missing)}; give every tensor of the model, zeros where nothing changed")
    if unknown:
        raise Misuse(f"{what} has {listed(unknown)}, which the model has not; leave out what is not aggregated")


def plain_tensor(value: Tensor | np.generic, shape: Shape) -> Tensor:
    """Return an array of the shape that is due; a numpy scalar is what arithmetic makes of arrays without dimensions.

    Raises:
        Misuse: it is another type, such as an array that hides some of its values, or another shape.
    """
    tensor = np.asarray(value) if isinstance(value, np.generic) else value
    if type(tensor) not in _PLAIN_ARRAYS:
        raise Misuse(f"a tensor is a plain numpy array; got {type(tensor).__name__}; convert it")
    if tensor.shape != shape:
        raise Misuse(f"an array of shape {shape} is due; got {tensor.shape}; reshape it, or make a plan for this model")
    return tensor


def require_fit(scheme: LinearDecoder[Any], due: PublicStream) -> None:
    """Refuse a scheme that was made for another shape, tensor or epoch, and so for what lies inside it.

    Schemes that are not of this library are asked for their ``length`` alone.
    """
    match scheme:
        case RandomPruning() | RandomRotation():
            stream = scheme.stream
            if (stream.tensor_name, stream.shape) != (due.tensor_name, due.shape):
                raise InvalidParameters(
                    f"its stream is for {stream.tensor_name!r} in shape {stream.shape}; make one for "
                    f"{due.tensor_name!r} in shape {due.shape}"
                )
            if stream.round_number != due.round_number:
                raise InvalidParameters(
                    f"its mask or signs are those of epoch {stream.round_number} and the update is of epoch "
                    f"{due.round_number}; refresh them"
                )
            inner = (scheme.kept if isinstance(scheme, RandomPruning) else scheme.padded,)
            require_fit(scheme.inner, _inside(due, inner))
        case CountSketch():
            _require_shape((scheme.length,), due)
            require_fit(scheme.inner, _inside(due, (scheme.cells,)))
        case ScalarQuantization() | DitheredQuantization() | ProductQuantization():
            _require_shape(scheme.shape, due)
        case PeakCode() | Sketch():
            _require_shape((scheme.length,), due)
            if (stream := scheme.rotation.stream).round_number != due.round_number:
                raise InvalidParameters(
                    f"its rotation is that of epoch {stream.round_number} and the update is of epoch "
                    f"{due.round_number}; refresh it"
                )
        case _:
            _require_shape((getattr(scheme, "length", prod(due.shape)),), _inside(due, (prod(due.shape),)))


def _inside(due: PublicStream, shape: Shape) -> PublicStream:
    return PublicStream(seed=due.seed, round_number=due.round_number, tensor_name=due.tensor_name, shape=shape)


def _require_shape(shape: Shape, due: PublicStream) -> None:
    if shape != due.shape:
        raise InvalidParameters(f"its scheme is made for shape {shape} and is due for {due.shape}; make it for that")


def listed(names: Sequence[Any]) -> str:
    """Return the first few names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)
