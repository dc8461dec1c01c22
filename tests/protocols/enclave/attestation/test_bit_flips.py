"""Every byte of evidence matters: with one bit of it changed it is refused, and nothing but a refusal comes out.

The bit of each byte is chosen by its position, so that a failure is found again. Inside certificates, which are signed
as a whole and whose every byte has a test of its own, every ninth byte is taken. ``make test`` takes every third of all
these, and so every field of three bytes; ``make test-long`` takes all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any

import pytest

from secagg.errors import PeerError
from secagg.protocols.enclave.attestation import Claims, EvidenceFormat, IntelCollateral, SnpCollateral

NITRO, SNP, TDX, SGX = EvidenceFormat.NITRO, EvidenceFormat.SNP, EvidenceFormat.TDX, EvidenceFormat.SGX
CERTIFICATE_STRIDE = 9
STRIDES = pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.long)])


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1 << (position * 5 + position // 8) % 8
    return bytes(changed)


def positions(data: bytes, coarse: list[range], stride: int) -> Iterator[int]:
    """Yield every position, and of the coarse ranges every ninth; or with a stride some of them."""
    skipped = {position for area in coarse for position in area if position % CERTIFICATE_STRIDE}
    return islice((position for position in range(len(data)) if position not in skipped), 0, None, stride)


def area_of(data: bytes, part: bytes) -> range:
    start = data.index(part)
    return range(start, start + len(part))


def require_refusal(accept: Callable[[], Claims], what: str) -> None:
    with pytest.raises(PeerError):
        pytest.fail(f"{what} was ignored: {accept()}")


@STRIDES
def test_every_byte_of_a_nitro_document_matters(
    verify: Callable[..., Claims], self_made: ModuleType, stride: int
) -> None:
    document = self_made.nitro.NitroDocument().encode()
    coarse = [area_of(document, issued.der) for issued in self_made.nitro.chain()]
    verify(NITRO, document)
    for position in positions(document, coarse, stride):
        require_refusal(partial(verify, NITRO, flipped(document, position)), f"byte {position}")


@STRIDES
def test_every_byte_of_an_snp_report_matters(
    verify: Callable[..., Claims], self_made: ModuleType, snp_collateral: Callable[..., SnpCollateral], stride: int
) -> None:
    report, collateral = self_made.snp.SnpReport().encode(), snp_collateral(revocation_list=None)
    verify(SNP, report, collateral)
    for position in range(0, len(report), stride):
        require_refusal(partial(verify, SNP, flipped(report, position), collateral), f"byte {position}")


@STRIDES
@pytest.mark.parametrize(("kind", "version"), [(SGX, 3), (TDX, 4), (TDX, 5)])
def test_every_byte_of_a_quote_matters(
    verify: Callable[..., Claims], self_made: ModuleType, kind: EvidenceFormat, version: int, stride: int
) -> None:
    made = self_made.intel
    quote = (made.Quote() if version == 3 else made.tdx_quote(version, kind=version - 2)).encode()
    coarse = [area_of(quote, self_made.authority.pem(*made.quote_chain()))]
    verify(kind, quote)
    for position in positions(quote, coarse, stride):
        require_refusal(partial(verify, kind, flipped(quote, position)), f"byte {position}")


def test_every_kind_of_byte_of_amds_collateral_matters(
    verify: Callable[..., Claims], self_made: ModuleType, snp_collateral: Callable[..., SnpCollateral]
) -> None:
    require_every_field_to_matter(verify, SNP, self_made.snp.SnpReport().encode(), snp_collateral())


@pytest.mark.parametrize("kind", [SGX, TDX])
def test_every_kind_of_byte_of_intels_collateral_matters(
    verify: Callable[..., Claims],
    self_made: ModuleType,
    intel_collateral: Callable[..., IntelCollateral],
    kind: EvidenceFormat,
) -> None:
    quote = (self_made.intel.Quote() if kind is SGX else self_made.intel.tdx_quote()).encode()
    require_every_field_to_matter(verify, kind, quote, intel_collateral("SGX" if kind is SGX else "TDX"))


def require_every_field_to_matter(
    verify: Callable[..., Claims], kind: EvidenceFormat, document: bytes, collateral: Any
) -> None:
    verify(kind, document, collateral)
    for field in fields(collateral):
        data = getattr(collateral, field.name)
        for position in [*range(0, len(data), 23), len(data) - 1]:
            changed = replace(collateral, **{field.name: flipped(data, position)})
            require_refusal(partial(verify, kind, document, changed), f"byte {position} of {field.name}")
        for length in [*range(0, len(data), 131), len(data) - 2]:
            changed = replace(collateral, **{field.name: data[:length]})
            require_refusal(partial(verify, kind, document, changed), f"the end of {field.name}")
