"""Every kind of scheme in an enclave: the result equals that of payloads in the clear, bit for bit.

The grid is scheme x release form x accumulation, with updates of two ages in one buffer and a client that
never uploads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from secagg.choices import Accumulation, ReleaseForm
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import (
    Calibration,
    CalibrationSource,
    Codebooks,
    Plain,
    Pruned,
    Quantized,
    Recipe,
    UpdatePlan,
)
from secagg.compression.product_quantization import ProductQuantization, calibrate
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.contract import Aggregate, IndexSegment, ideal_aggregate
from secagg.contract.codewords import Tables
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, model_digest

SHAPE = (8, 18)
SHAPES = {"conv.weight": (8, 4, 3, 3), "conv.bias": (8,), "embedding.weight": (16, 12), "fc.weight": (10, 24)}
SEED = bytes(range(32))
NUMBERS = (1, 2, 3, 5, 6)
"""Client 4 drops out."""
AGES = (0, 1, 0, 0, 1)

Update = Any
PLAIN = Plain(clip=8.0, fraction_bits=16)


def matrix(number: int) -> Update:
    return np.random.default_rng(number).standard_normal(SHAPE).astype(np.float32)


def vector(number: int) -> Update:
    return matrix(number).reshape(-1)


def tensors(number: int) -> Update:
    generator = np.random.default_rng(number)
    return {name: generator.standard_normal(shape) for name, shape in SHAPES.items()}


def model(compressed: Recipe, **chosen: Recipe) -> Any:
    renamed = {name.replace("_", "."): recipe for name, recipe in chosen.items()}
    plan = UpdatePlan(shapes=SHAPES, plain=PLAIN, compressed=compressed, chosen=renamed, seed=SEED)
    return plan.parameters(calibration=Calibration(CalibrationSource.PUBLIC_BATCH, tensors(99)))


def codebook(codewords: int, stages: int = 1) -> ProductQuantization:
    return calibrate(matrix(99), block_size=3, codewords=codewords, seed=SEED, stages=stages)


@dataclass(frozen=True)
class Case:
    """A scheme, and its clients' updates."""

    decoder: Any
    update_of: Callable[[int], Update] = matrix

    @property
    def tables(self) -> Tables:
        """The codebooks as integers, if any."""
        has_indices = any(isinstance(segment, IndexSegment) for segment in self.decoder.layout.segments)
        tables: Tables = self.decoder.tables if has_indices else ()
        return tables


CASES = {
    "fixed point": Case(FixedPoint(length=144, clip=8.0, fraction_bits=16, modulus_bits=32), vector),
    "8 bits in 16": Case(ScalarQuantization(shape=SHAPE, bits=8, modulus_bits=16, scales=(0.03,))),
    "codewords": Case(codebook(8)),
    "codewords in three stages": Case(codebook(4, stages=3)),
    "a model in codewords": Case(model(Codebooks(block_size=4, codewords=8)), tensors),
    "a model of everything": Case(
        model(
            Codebooks(block_size=4, codewords=4, stages=2),
            conv_weight=Pruned(sparsity="0.5", inner=PLAIN),
            fc_weight=Quantized(bits=6, modulus_bits=13),
        ),
        tensors,
    ),
}


def released_sum(case: Case, form: ReleaseForm, accumulation: Accumulation) -> tuple[Aggregate, Aggregate]:
    """Fill a buffer; return the released sum, and the sum in the clear."""
    setup = EnclaveSetup(
        layout=case.decoder.layout,
        codebooks=case.tables,
        capacity=case.decoder.capacity,
        form=form,
        accumulation=accumulation,
        minimum_cohort=2,
        oldest=1,
    )
    session = InsecureEnclaveSession(setup)
    payloads = [case.decoder.encode(case.update_of(number), InsecureSeededCoins(bytes([number]))) for number in NUMBERS]
    session.host.open_buffer(1, model_digest(1))
    for number, payload, age in zip(NUMBERS, payloads, AGES, strict=True):
        session.host.announce_model(1 - age, model_digest(1 - age))
        upload = session.seal(number, payload=payload, version=1 - age)
        session.host.receive(upload.encode())
    aggregate, _ = session.host.release()
    return aggregate, ideal_aggregate(case.decoder.layout, payloads)


def same_trees(one: Any, other: Any) -> bool:
    if hasattr(one, "keys"):
        return one.keys() == other.keys() and all(same_trees(one[name], other[name]) for name in one)
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@pytest.mark.parametrize("accumulation", Accumulation)
@pytest.mark.parametrize("form", ReleaseForm)
@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_server_decodes_what_it_would_decode_from_payloads_in_the_clear(
    case: Case, form: ReleaseForm, accumulation: Accumulation
) -> None:
    released, ideal = released_sum(case, form, accumulation)
    is_summed = bool(case.tables) and form is ReleaseForm.DECODED_SUM
    decoded = case.decoder.decode_summed(released) if is_summed else case.decoder.decode(released)
    assert released.contributors == ideal.contributors
    assert same_trees(decoded, case.decoder.decode(ideal))
