"""Identifiers and contexts: ranges, encoding, order and text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import CLIENT_ID_BYTES, CONTEXT_BYTES, AttemptContext, ClientId, ServerId, SessionContext

client_numbers = st.integers(0, 2**64 - 1)


@given(value=client_numbers)
@example(value=0)
@example(value=2**64 - 1)
def test_a_client_id_is_encoded_in_eight_big_endian_bytes(value: int) -> None:
    encoded = ClientId(value).encode()
    assert len(encoded) == CLIENT_ID_BYTES == 8
    assert int.from_bytes(encoded, "big") == value


@pytest.mark.parametrize("value", [-1, 2**64, 2**200])
def test_a_client_id_outside_the_range_is_refused(value: int) -> None:
    with pytest.raises(InvalidParameters, match=str(value)) as caught:
        ClientId(value)
    assert caught.value.reason is Reason.PARAMETER_OUT_OF_RANGE


@pytest.mark.parametrize("value", [3.0, "3", b"3", None, float("nan"), True, np.int64(3), np.uint64(3)])
def test_a_client_id_that_cannot_be_encoded_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParameters):
        ClientId(value)


@given(left=client_numbers, right=client_numbers)
def test_client_ids_and_their_encodings_have_the_order_of_their_numbers(left: int, right: int) -> None:
    assert (ClientId(left) < ClientId(right)) == (left < right)
    assert (ClientId(left).encode() < ClientId(right).encode()) == (left < right)
    assert (ClientId(left) == ClientId(right)) == (left == right)


@pytest.mark.parametrize("index", [-1, 2, True, 1.0, "1", None])
def test_a_third_server_is_refused(index: Any) -> None:
    with pytest.raises(InvalidParameters, match=str(index)):
        ServerId(index)


def test_a_client_is_never_a_server() -> None:
    assert len({ClientId(0), ServerId(0), ClientId(1), ServerId(1)}) == 4


@pytest.mark.parametrize("context", [AttemptContext, SessionContext])
@pytest.mark.parametrize("length", [0, CONTEXT_BYTES - 1, CONTEXT_BYTES + 1])
def test_a_context_of_another_length_is_refused(context: Callable[[bytes], object], length: int) -> None:
    with pytest.raises(InvalidParameters, match=rf"got .*\b{length}\b"):
        context(bytes(length))


@pytest.mark.parametrize("context", [AttemptContext, SessionContext])
@pytest.mark.parametrize("digest", [bytearray(32), memoryview(bytes(32)), "0" * 32, [0] * 32])
def test_a_context_that_is_mutable_or_not_bytes_is_refused(context: Callable[[Any], object], digest: Any) -> None:
    with pytest.raises(InvalidParameters, match=type(digest).__name__):
        context(digest)
