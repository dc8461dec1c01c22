"""HKDF-SHA256 against the RFC's vectors and against an implementation that shares no code with the library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.key_derivation import derive, expand
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, Reason
from tests.harness.plain_hkdf import framed, hkdf_expand, hkdf_extract, shown

ROOT = bytes(range(32))
SALT = b"\x5a" * 32
LIMIT = 255 * 32

# [RFC 5869] A.1 to A.3: input keying material, salt, info, length, pseudo-random key, output keying material.
RFC_CASES = [
    (
        "0b" * 22,
        "000102030405060708090a0b0c",
        "f0f1f2f3f4f5f6f7f8f9",
        42,
        "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5",
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        bytes(range(0x50)).hex(),
        bytes(range(0x60, 0xB0)).hex(),
        bytes(range(0xB0, 0x100)).hex(),
        82,
        "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244",
        (
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
            "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"
        ),
    ),
    (
        "0b" * 22,
        "",
        "",
        42,
        "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04",
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
]


def root() -> Secret:
    return Secret("root", ROOT)


def derive_here(source: Secret, length: int, label: Label, *parts: bytes) -> Secret:
    return derive("derived", length, source, SALT, label, *parts)


def expand_here(source: Secret, length: int, label: Label, *parts: bytes) -> Secret:
    return expand("derived", length, source, label, *parts)


BOTH = pytest.mark.parametrize("function", [derive_here, expand_here], ids=["derive", "expand"])


@pytest.mark.parametrize("case", RFC_CASES, ids=["A.1", "A.2", "A.3"])
def test_the_vectors_of_the_rfc_hold(
    case: tuple[str, str, str, int, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    material, salt, info, length, key, output = case
    assert hkdf_extract(bytes.fromhex(salt), bytes.fromhex(material)).hex() == key
    assert hkdf_expand(bytes.fromhex(key), bytes.fromhex(info), length).hex() == output

    # The library always binds a label; only these vectors use the RFC's info.
    def info_of_the_rfc(*_: object) -> bytes:
        return bytes.fromhex(info)

    monkeypatch.setattr("secagg.crypto.key_derivation.bind", info_of_the_rfc)
    extracted = derive("okm", length, Secret("ikm", bytes.fromhex(material)), bytes.fromhex(salt), Label.EDGE_SEED)
    assert shown(extracted).hex() == output
    assert shown(expand("okm", length, Secret("prk", bytes.fromhex(key)), Label.EDGE_SEED)).hex() == output


@given(
    material=st.binary(min_size=1, max_size=70),
    salt=st.binary(max_size=70),
    label=st.sampled_from(Label),
    parts=st.lists(st.binary(max_size=20), max_size=4),
    length=st.integers(1, 200),
)
def test_derive_is_extract_and_expand_with_the_bound_label(
    material: bytes, salt: bytes, label: Label, parts: list[bytes], length: int
) -> None:
    derived = derive("kind", length, Secret("material", material), salt, label, *parts)
    assert shown(derived) == hkdf_expand(hkdf_extract(salt, material), framed(label.value, *parts), length)
    assert derived.kind == "kind"


@given(
    source=st.binary(min_size=32, max_size=70),
    label=st.sampled_from(Label),
    parts=st.lists(st.binary(max_size=20), max_size=4),
    length=st.integers(1, 200),
)
def test_expand_is_expand_alone_with_the_bound_label(
    source: bytes, label: Label, parts: list[bytes], length: int
) -> None:
    derived = expand("kind", length, Secret("source", source), label, *parts)
    assert shown(derived) == hkdf_expand(source, framed(label.value, *parts), length)
    assert derived.kind == "kind"


@BOTH
def test_the_source_is_left_as_it_was(function: Callable[..., Secret]) -> None:
    source = root()
    function(source, 32, Label.EDGE_SEED)
    assert shown(source) == ROOT


@BOTH
@pytest.mark.parametrize("length", [0, -1, LIMIT + 1])
def test_a_length_that_hkdf_cannot_give_is_refused(function: Callable[..., Secret], length: int) -> None:
    with pytest.raises(InvalidParameters, match=f"got {length}") as caught:
        function(root(), length, Label.EDGE_SEED)
    assert caught.value.reason is Reason.PARAMETER_OUT_OF_RANGE


@BOTH
@pytest.mark.parametrize("length", [1, LIMIT])
def test_the_least_and_the_greatest_length_are_given(function: Callable[..., Secret], length: int) -> None:
    assert len(function(root(), length, Label.EDGE_SEED)) == length


@pytest.mark.parametrize("length", [0, 16, 31])
def test_a_source_too_short_to_be_uniform_is_not_expanded(length: int) -> None:
    with pytest.raises(InvalidParameters, match=f"short_seed, {length} bytes"):
        expand("kind", 32, Secret("short_seed", b"\xee" * length), Label.EDGE_SEED)


@BOTH
def test_a_wiped_source_is_refused(function: Callable[..., Secret]) -> None:
    source = root()
    source.wipe()
    with pytest.raises(Misuse) as caught:
        function(source, 32, Label.EDGE_SEED)
    assert caught.value.reason is Reason.ALREADY_SPENT


@BOTH
def test_the_buffer_that_was_derived_into_is_overwritten(
    function: Callable[..., Secret], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[bytearray] = []

    class WatchedSecret(Secret):
        """A secret that remembers the buffer it was copied from."""

        __slots__ = ()

        def __init__(self, kind: str, data: bytearray) -> None:
            super().__init__(kind, data)
            copied.append(data)

    monkeypatch.setattr("secagg.crypto.key_derivation.Secret", WatchedSecret)
    derived = function(root(), 32, Label.EDGE_SEED)
    assert any(derived.expose())
    assert copied == [bytearray(32)]


def test_nothing_is_derived_from_plain_bytes() -> None:
    plain: Any = bytes(32)
    with pytest.raises(Misuse, match="Secret"):
        derive("key", 32, plain, bytes(32), Label.CHANNEL_KEY)
    with pytest.raises(Misuse, match="Secret"):
        expand("key", 32, plain, Label.CHANNEL_KEY)
