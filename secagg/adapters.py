"""Plan of LoRA fine-tuning: which tensors of a PEFT adapter each round sums, and the matching settings.

    plan = AdapterPlan.of(model, "ffa")  # a model of PEFT
    SecAggMod(adapter=plan.fingerprint)  # a client
    SecAggSettings(**plan.settings([1e-4] * 50, clients=8))  # the server

The server sends the whole adapter, and every client loads it (``load``), so untrained tensors are equal everywhere.
Clients compare fingerprints before they train, because adapters with different ranks or scales cannot be summed. This
module supports only methods whose server needs just the sum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters, Reason
from secagg.platforms import LOG

METHODS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "fedit": (("lora_A", "lora_B"),),
    "ffa": (("lora_B",),),
    "alternate": (("lora_B",), ("lora_A",)),
    "sb": (("lora_R",),),
}
"""For each method, the parts that successive rounds train; B first: B starts at zero, so A has no gradient."""
NO_SUMS: Final[Mapping[str, str]] = {
    "flora": "stacks the A and B of every client at the server",
    "flora-na": "looks for an A and B that fit the products of single clients",
    "fedex": "computes a residual from the A and B of every client",
    "hetlora": "prunes and pads adapters of different ranks; give all clients one rank",
    "flexlora": "decomposes a sum of full products, which is as long as the model",
}
CLIENT_BITS: Final = 8
_LEAST_BITS: Final = 4
_CLIP_STEPS: Final = 18
"""Log2 of the number of steps in a clip, where the model's own type can hold a sum of them."""
_LEAST_CLIP_STEPS: Final = 10
_MOST_BITS: Final = 40
_NEITHER: Final = ("lora_magnitude_vector", "lora_embedding_")
_NARROW: Final = ("bfloat16", "float16")
_WIDTHS: Final = {**dict.fromkeys(_NARROW, 16), "float64": 64}
_ADAPTER: Final = "lora_"
Arrays = dict[str, npt.NDArray[Any]]


def require_method(method: str) -> None:
    """Refuse an unknown method, and one whose server needs individual updates."""
    known = ", ".join(METHODS)
    if reason := NO_SUMS.get(method.lower()):
        raise InvalidParameters(f"{method} {reason}, but here a server sees only sums; use one of {known}")
    if method not in METHODS:
        raise InvalidParameters(f"unknown method {method!r}; use one of {known}")


def name_of(parameter: str, adapter: str = "default") -> str:
    """Return a parameter's name as in ``peft.get_peft_model_state_dict``."""
    return parameter.replace(f".modules_to_save.{adapter}.", ".").replace(f".{adapter}.", ".")


def clip_of(rates: Iterable[float], betas: tuple[float, float] = (0.9, 0.999)) -> float:
    """Return the most that Adam can move a value in steps with these learning rates, for any data.

    By Cauchy and Schwarz the first moment is at most (1 - beta1) / sqrt((1 - beta2) (1 - beta1^2 / beta2)) times the
    root of the second, 7.3 times with the usual betas. Weight decay is not in the bound, and SGD has none.
    """
    first, second = betas
    if not 0 <= first * first < second < 1:
        raise InvalidParameters(f"betas must have beta1^2 < beta2 < 1, or a step has no bound; got {betas}")
    total = math.fsum(rates) * max(1.0, (1 - first) / math.sqrt((1 - second) * (1 - first * first / second)))
    if not 0 < total < math.inf:
        raise InvalidParameters(f"rates, one for each step of a round, must add up to a positive number; got {total}")
    return total


@dataclass(frozen=True, kw_only=True)
class AdapterPlan:
    """Plan of an adapter; equal models give equal plans."""

    method: str
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of the adapter's tensors, by their names in PEFT's state dict."""
    rank: int
    alpha: float
    targets: tuple[str, ...]
    is_scaled_by_root: bool = False
    """Whether the scale is alpha / sqrt(rank), as with ``use_rslora``."""
    patterns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """PEFT's ``rank_pattern`` and ``alpha_pattern``."""
    dtype: str = "float32"
    """Type of the adapter's tensors; an upload's length is compared with theirs."""
    adapter: str = "default"

    def __post_init__(self) -> None:
        require_method(self.method)
        if strange := [name for name in self.shapes if any(part in name for part in _NEITHER)]:
            raise InvalidParameters(
                f"{strange[0]} is neither A nor B: remove use_dora, and embeddings from target_modules"
            )
        for parts in METHODS[self.method]:
            if idle := [part for part in parts if not any(part in name for name in self.shapes)]:
                advice = "; make it with secagg.adapters.with_middle" if self.method == "sb" else ""
                raise InvalidParameters(f"the model has no {idle[0]}, which {self.method} trains{advice}")
        if saved := self.saved:
            share = sum(math.prod(self.shapes[name]) for name in saved) / self.values
            LOG.warning(
                "%s are trained and sent whole in every round, %.0f %% of all values, since modules_to_save of the "
                "LoraConfig names them; leave it out if that is not wanted",
                *(", ".join(saved[:4]), 100 * share),
            )

    @classmethod
    def of(cls, model: Any, method: str = "ffa", *, adapter: str = "default") -> AdapterPlan:  # noqa: ANN401 -- of PEFT
        """Return the plan of a model from ``peft.get_peft_model``."""
        config = getattr(model, "peft_config", {}).get(adapter)
        if config is None:
            raise InvalidParameters(f"the model has no adapter {adapter!r}; make it with peft.get_peft_model")
        tensors = _tensors(model, adapter)
        return cls.of_state(tensors, config.to_dict(), method, adapter=adapter)

    @classmethod
    def of_state(
        cls, state: Mapping[str, Any], config: Mapping[str, Any], method: str = "ffa", *, adapter: str = "default"
    ) -> AdapterPlan:
        """Return the plan of a PEFT state dict and its configuration (``adapter_config.json``)."""
        kind = str(getattr(config.get("peft_type"), "value", config.get("peft_type")))
        if kind != "LORA":
            raise InvalidParameters(f"the adapter is of the type {kind}; only LORA has a plan")
        if config.get("use_dora"):
            raise InvalidParameters("use_dora adds magnitudes, which have no exact sum; set it to False")
        if config.get("bias", "none") != "none":
            raise InvalidParameters(f"bias = {config['bias']!r} trains biases of the model; set it to 'none'")
        named = config.get("target_modules") or ()
        return cls(
            method=method,
            shapes={name: tuple(tensor.shape) for name, tensor in state.items()},
            rank=config["r"],
            alpha=float(config["lora_alpha"]),
            targets=(named,) if isinstance(named, str) else tuple(sorted(named)),
            is_scaled_by_root=bool(config.get("use_rslora")),
            patterns={name: config[name] for name in ("rank_pattern", "alpha_pattern") if config.get(name)},
            dtype=min((_dtype(tensor) for tensor in state.values()), key=lambda one: _WIDTHS.get(one, 32)),
            adapter=adapter,
        )

    @property
    def saved(self) -> tuple[str, ...]:
        """Names of tensors that are trained in full, in addition to A and B; their sum is exact."""
        return tuple(name for name in self.shapes if _ADAPTER not in name)

    @property
    def values(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    @property
    def fingerprint(self) -> str:
        """Public text that must be equal for all clients of a sum."""
        shapes = json.dumps([[name, *self.shapes[name]] for name in sorted(self.shapes)])
        found = {
            "method": self.method,
            "rank": self.rank,
            "alpha": self.alpha,
            "scale": "alpha/sqrt(rank)" if self.is_scaled_by_root else "alpha/rank",
            "targets": list(self.targets),
            "patterns": dict(self.patterns),
            "values": self.values,
            "shapes": sha256(shapes.encode()).hexdigest()[:32],
        }
        return json.dumps(found, sort_keys=True)

    def names(self, turn: int) -> list[str]:
        """Return the names of the tensors that a round trains and sums; the first one has turn 0."""
        parts = METHODS[self.method]
        return [name for name in self.shapes if any(part in name for part in parts[turn % len(parts)])] + [*self.saved]

    @property
    def tensors(self) -> str:
        """The patterns of names for ``secagg-tensors``."""
        parts = (";".join(f"*{part}*" for part in turns) for turns in zip(*METHODS[self.method], strict=True))
        return ",".join([*parts, *(f"*{name}" for name in self.saved)])

    def settings(
        self,
        rates: Iterable[float],
        *,
        clients: int,
        bits: int | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        **others: Any,  # noqa: ANN401 -- of the settings' own types
    ) -> dict[str, Any]:
        """Return settings of a run, as keyword arguments of ``SecAggSettings``.

        Args:
            rates: learning rates of all steps that a client takes in one round, in the schedule's largest round.
            clients: maximum number of clients in a round.
            bits: bits of a value's code; by default 8, and fewer where a sum would be longer than the model's own type.
            betas: of Adam.
            others: settings that override these.
        """
        width, growth = _WIDTHS.get(self.dtype, 32), (clients - 1).bit_length()
        # A power of two at or above the bound.
        power = math.ceil(math.log2(clip_of(rates, betas)))
        fine = min(_CLIP_STEPS, max(_LEAST_CLIP_STEPS, width - 2 - growth))
        found: dict[str, Any] = {
            "adapter": self.fingerprint,
            "tensors": self.tensors,
            "clip": math.ldexp(1.0, power),
            "fraction_bits": max(1, min(_MOST_BITS, fine - power)),
            "weighting": "uniform",
            "compression": f"scalar-{bits or max(_LEAST_BITS, min(CLIENT_BITS, width - growth))}",
        }
        return found | others

    # --- A model's tensors --------------------------------------------------------------------------------------------

    def arrays(self, model: Any) -> Arrays:  # noqa: ANN401 -- of PEFT
        """Return the adapter as NumPy arrays; 16-bit floats become float32, since NumPy has no bfloat16."""
        return {name: _read(tensor).copy() for name, tensor in _tensors(model, self.adapter).items()}

    def load(self, model: Any, tensors: Mapping[str, Any]) -> None:  # noqa: ANN401 -- of PEFT
        """Copy a server's tensors into a model, which keeps its types.

        Raises:
            InvalidParameters: a tensor is missing, or has another shape; the model stays as it was.
        """
        own = _tensors(model, self.adapter)
        for name, tensor in own.items():
            given = tuple(tensors[name].shape) if name in tensors else None
            if given != tuple(tensor.shape):
                held = "lacks it" if given is None else f"has the shape {given}"
                raise InvalidParameters(
                    f"this model's {name} has the shape {tuple(tensor.shape)}, and the server's {held}: give all "
                    "clients and the server one LoraConfig",
                    reason=Reason.LAYOUT_MISMATCH,
                )
        for name, tensor in own.items():
            # Two casts if 32 bits become 16; none if the types are equal.
            tensor.data.copy_(tensor.new_tensor(np.asarray(tensors[name])))

    def train_only(self, model: Any, turn: int) -> list[Any]:  # noqa: ANN401 -- of PEFT
        """Make only a round's tensors trainable; return them for the optimizer."""
        names, own = {*self.names(turn)}, _tensors(model, self.adapter)
        for name, tensor in own.items():
            tensor.requires_grad_(name in names)
        return [tensor for name, tensor in own.items() if name in names]


def _tensors(model: Any, adapter: str) -> dict[str, Any]:  # noqa: ANN401 -- of PEFT
    """Return an adapter's tensors from PEFT's state dict, by name."""
    saved = f".modules_to_save.{adapter}."
    return {
        name_of(name, adapter): parameter
        for name, parameter in model.named_parameters()
        if saved in name or (_ADAPTER in name and f".{adapter}" in name)
    }


def _read(tensor: Any) -> npt.NDArray[Any]:  # noqa: ANN401 -- of PyTorch
    wide = tensor.detach().cpu()
    return np.asarray((wide.float() if _dtype(tensor) in _NARROW else wide).numpy())


def _dtype(tensor: Any) -> str:  # noqa: ANN401 -- of NumPy or PyTorch
    return str(tensor.dtype).removeprefix("torch.")


def with_middle(model: Any, changes: Mapping[str, Any] | None = None, *, adapter: str = "default") -> Any:  # noqa: ANN401 -- of PEFT
    """Insert a rank x rank matrix R between fixed B and A, for the method ``sb``; return the model.

    A and B become singular vectors, of the sum of the clients' first gradients where that is given (by the names of the
    layers), and otherwise of the weights. Every client makes the same ones, or loads the server's.
    """
    for name, layer in list(model.named_modules()):
        if adapter not in getattr(layer, "lora_A", {}):
            continue
        first, last = layer.lora_A[adapter], layer.lora_B[adapter]
        source = _read(layer.get_base_layer().weight if changes is None else changes[name])
        left, _, right = np.linalg.svd(source, full_matrices=False)
        if (rank := first.out_features) > len(right):
            raise InvalidParameters(f"rank {rank} is more than the {len(right)} that {name} has; lower r")
        first.weight.data.copy_(first.weight.new_tensor(right[:rank]))
        last.weight.data.copy_(last.weight.new_tensor(left[:, :rank]))
        first.lora_R = type(first.weight)(first.weight.new_zeros(rank, rank))
        first.__class__ = _with_product(first.__class__)
    return model


def _with_product(linear: type[Any]) -> type[Any]:
    """Return a layer class that multiplies a linear layer's output by R; this module does not import PyTorch."""

    def forward(self: Any, features: Any) -> Any:  # noqa: ANN401 -- of PyTorch
        return linear.forward(self, features) @ self.lora_R.T

    return type("Between", (linear,), {"forward": forward})
