"""Self-test of an enclave's service: it runs an epoch of every kind before it listens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Final

import numpy as np

from secagg.choices import Accumulation, ReleaseForm
from secagg.contract.codewords import CodewordTable
from secagg.contract.layout import IndexSegment, Layout, RingSegment, RowSegment
from secagg.crypto.entropy import Coins
from secagg.errors import InternalError, ThresholdNotMet
from secagg.parameters import Suite
from secagg.privacy.kinds import NoiseKind
from secagg.privacy.noise import sample
from secagg.protocols.enclave.trusted.configuration import NO_AUTHORITY, EnclaveConfiguration, Noise
from secagg.protocols.enclave.trusted.enclave import Enclave
from secagg.protocols.enclave.trusted.service import SIMULATED, EnclaveService
from secagg.wire import MessageKind, message_kind

RESERVED_REPORT: Final = bytes(64)
"""Placeholder for the evidence of a self-test, which asks no source."""


def configurations() -> Iterator[EnclaveConfiguration]:
    """Yield a small configuration for each suite, release form, accumulation, noise and bound."""
    ring, indices = RingSegment(16, 4), IndexSegment(4, 3)
    table = CodewordTable(3, np.arange(8, dtype=np.int64).reshape(4, 2))
    for suite in Suite:
        plain = EnclaveConfiguration(
            task=b"self-test",
            suite=suite,
            authority=b"\1" * 32,
            layout=Layout((ring,)),
            minimum_cohort=2,
            maximum_cohort=3,
            expiry=1,
        )
        yield plain
        yield replace(plain, max_norms=(5,))
        yield replace(plain, layout=Layout((ring, RowSegment(2, least=2))))
        for way in Accumulation:
            counted = replace(plain, layout=Layout((indices,)), form=ReleaseForm.HISTOGRAM, accumulation=way)
            yield counted
            yield replace(counted, form=ReleaseForm.DECODED_SUM, tables=((table,),), codeword_bound=40)
        for kind in NoiseKind:
            noise = Noise(kind=kind, variances=(Fraction(9),), l2_bounds=(5,), releases_per_client=1)
            yield replace(plain, authority=NO_AUTHORITY, noise=noise)


def test_itself(coins: Coins) -> None:
    """Start and end an epoch of every kind, without a host or hardware.

    Raises:
        InternalError: a check failed; the service must not start.
    """
    for configuration in configurations():
        enclave = Enclave(configuration, coins=coins, quote=lambda _: (SIMULATED, RESERVED_REPORT))
        enclave.open_buffer(1, bytes(32))
        try:
            enclave.release()
        except ThresholdNotMet:
            enclave.destroy()
        else:
            raise InternalError("the self-test failed: a buffer without uploads was released")
    for kind, variance in product(NoiseKind, (Fraction(1, 3), Fraction(10**6))):
        if not sample(kind, variance, 64, coins).any():
            raise InternalError(f"the self-test failed: {kind.name} noise of variance {variance} is zero")
    service = EnclaveService(coins=coins, quote=lambda _: (SIMULATED, RESERVED_REPORT))
    if message_kind(service.answer(b"")) is not MessageKind.REFUSAL:
        raise InternalError("the self-test failed: a request of no bytes was not refused")
