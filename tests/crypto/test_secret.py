"""A secret cannot be printed or copied, is compared in constant time, and is overwritten at the end."""

from __future__ import annotations

import copy
import gc
import hmac
import logging
import operator
import pickle
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, Reason

MARKER = b"NEVER-SHOW-THIS!"
TELLTALES = ("NEVER-SHOW", MARKER.hex(), MARKER.hex().upper(), "78, 69, 86", "\\x4e")
"""The marker as text, in hexadecimal, and as a list of numbers."""


def marked() -> Any:
    return Secret("test_key", MARKER)


def assert_redacted(text: str) -> None:
    assert not [telltale for telltale in TELLTALES if telltale in text]


@dataclass
class Holder:
    """A dataclass that somebody turns into a dictionary."""

    secret: Secret


class RememberingCoins:
    """Coins that keep the buffers they handed out, and may hand out too few bytes."""

    def __init__(self, *, missing: int = 0) -> None:
        self.buffers: list[bytearray] = []
        self._missing = missing

    def draw(self, count: int) -> bytearray:
        """Return bytes that are not zero."""
        self.buffers.append(bytearray(b"\xa5" * (count - self._missing)))
        return self.buffers[-1]


def interpolated(secret: object) -> str:
    return f"{secret}"


RENDERINGS: dict[str, Callable[[Any], str]] = {
    "repr": repr,
    "str": str,
    "ascii": ascii,
    "format": "{}".format,
    "format with r": "{!r}".format,
    "percent s": "%s".__mod__,
    "percent r": "%r".__mod__,
    "f-string": interpolated,
}


@pytest.mark.parametrize("render", RENDERINGS.values(), ids=RENDERINGS.keys())
def test_rendering_shows_kind_and_length_and_no_bytes(render: Callable[[object], str]) -> None:
    assert render(marked()) == "<Secret test_key, 16 bytes>"


def test_rendering_says_when_the_secret_was_wiped() -> None:
    secret = marked()
    secret.wipe()
    assert repr(secret) == "<Secret test_key, 16 bytes, wiped>"


def test_format_specification_does_not_reach_the_bytes() -> None:
    for specification in ("x", "s", "032"):
        with pytest.raises(TypeError) as caught:
            format(marked(), specification)
        assert_redacted(str(caught.value))


def test_containers_and_logs_show_no_bytes(caplog: pytest.LogCaptureFixture) -> None:
    secret = marked()
    assert_redacted(repr([secret, {"key": secret}, (secret,), Holder(secret)]))
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").debug("the key is %s, %r", secret, {"key": secret})
    assert "<Secret test_key, 16 bytes>" in caplog.text
    assert_redacted(caplog.text)


def test_tracebacks_with_local_variables_show_no_bytes() -> None:
    def fail(secret: Secret) -> None:
        view = secret.expose()
        raise RuntimeError(f"could not use {secret} through {view!r}")

    with pytest.raises(RuntimeError) as caught:
        fail(marked())
    rendered = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=True).format())
    assert "secret = <Secret test_key, 16 bytes>" in rendered
    assert_redacted(rendered)


REFUSED: dict[str, Callable[[Any], object]] = {
    **{
        f"pickle, protocol {protocol}": partial(pickle.dumps, protocol=protocol)
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy within a container": lambda secret: copy.deepcopy({"key": [secret]}),
    "dataclasses.asdict": lambda secret: asdict(Holder(secret)),
    "iteration": iter,
    "list": list,
    "unpacking": lambda secret: [*secret],
    "membership": lambda secret: 78 in secret,
    "index": lambda secret: secret[0],
    "slice": lambda secret: secret[:4],
    "bytes": bytes,
    "bytearray": bytearray,
    "int.from_bytes": int.from_bytes,
    "its state": lambda secret: secret.__getstate__(),
}


@pytest.mark.parametrize("attempt", REFUSED.values(), ids=REFUSED.keys())
def test_copying_the_bytes_out_is_refused(attempt: Callable[[Any], object]) -> None:
    secret = marked()
    with pytest.raises(Misuse) as caught:
        attempt(secret)
    assert caught.value.reason is Reason.SECRET_EXPOSURE
    assert "test_key" in str(caught.value)
    assert_redacted(str(caught.value))
    assert bytes(secret.expose()) == MARKER, "a refusal changes nothing"


OTHER_PROTOCOLS: dict[str, Callable[[Any], object]] = {
    "buffer": memoryview,
    "hash": hash,
    "set": lambda secret: {secret},
    "join": b"".join,
    "concatenation": lambda secret: secret + b"x",
    "bytes formatting": lambda secret: b"%b" % secret,
    "dictionary": vars,
}


@pytest.mark.parametrize("attempt", OTHER_PROTOCOLS.values(), ids=OTHER_PROTOCOLS.keys())
def test_no_other_protocol_reaches_the_bytes(attempt: Callable[[Any], object]) -> None:
    with pytest.raises((TypeError, Misuse)) as caught:
        attempt(marked())
    assert_redacted(str(caught.value))


def test_equality_goes_through_compare_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    genuine = hmac.compare_digest

    def spy(left: memoryview, right: memoryview) -> bool:
        compared.append((bytes(left), bytes(right)))
        return genuine(left, right)

    monkeypatch.setattr("hmac.compare_digest", spy)
    assert Secret("a", b"same") == Secret("b", b"same")
    assert Secret("a", b"same") != Secret("a", b"sama")
    assert compared == [(b"same", b"same"), (b"same", b"sama")]


@given(left=st.binary(max_size=40), right=st.binary(max_size=40))
def test_secrets_are_equal_exactly_when_their_bytes_are(left: bytes, right: bytes) -> None:
    assert (Secret("left", left) == Secret("right", right)) == (left == right)
    assert Secret("left", left) == Secret("right", left)


def test_a_secret_equals_nothing_of_another_type() -> None:
    assert marked() != MARKER
    assert marked() != bytearray(MARKER)
    assert marked() != None  # noqa: E711 -- the operator is what is tested


def test_a_wiped_secret_is_not_compared() -> None:
    wiped, other = marked(), Secret("zeros", bytes(len(MARKER)))
    wiped.wipe()
    for left, right in ((wiped, other), (other, wiped)):
        with pytest.raises(Misuse) as caught:
            operator.eq(left, right)
        assert caught.value.reason is Reason.ALREADY_SPENT


def test_wipe_overwrites_the_buffer_that_views_share() -> None:
    secret = marked()
    view = secret.expose()
    assert bytes(view) == MARKER
    assert not secret.is_wiped
    for _ in range(2):
        secret.wipe()
        assert bytes(view) == bytes(len(MARKER))
        assert secret.is_wiped
        assert len(secret) == len(MARKER)


def test_expose_after_wipe_is_refused() -> None:
    secret = marked()
    secret.wipe()
    with pytest.raises(Misuse, match="test_key") as caught:
        secret.expose()
    assert caught.value.reason is Reason.ALREADY_SPENT


def test_the_exposed_view_is_read_only() -> None:
    secret = marked()
    view: Any = secret.expose()
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 0


def test_the_context_manager_wipes_on_an_exception_and_lets_it_pass() -> None:
    secret = marked()
    view = secret.expose()
    with pytest.raises(ZeroDivisionError), secret:
        raise ZeroDivisionError
    assert secret.is_wiped
    assert not any(view)


def test_a_forgotten_secret_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    overwritten: list[bytes] = []

    def remember(buffer: bytearray) -> None:
        overwritten.append(bytes(buffer))

    secret = Secret("test_key", b"forgotten by this test alone")
    monkeypatch.setattr("secagg.crypto.secret.overwrite", remember)
    del secret
    gc.collect()
    assert b"forgotten by this test alone" in overwritten


def test_a_view_of_a_forgotten_secret_is_not_a_key_of_zeros() -> None:
    view = marked().expose()
    gc.collect()
    assert bytes(view) == MARKER


@pytest.mark.parametrize("hostile", ["text has no bytes until it is encoded", 32])
def test_a_secret_that_was_never_made_is_forgotten_quietly(hostile: Any) -> None:
    with pytest.raises(Misuse, match=type(hostile).__name__):
        Secret("test_key", hostile)  # bytearray(32) would be a key of zeros.
    gc.collect()  # An error in the finaliser would fail this test as an unraisable exception.


def mutable_view(data: bytes) -> memoryview:
    return memoryview(bytearray(data))


@pytest.mark.parametrize("kind_of_buffer", [bytearray, mutable_view])
def test_the_source_buffer_is_copied_and_not_shared(kind_of_buffer: Callable[[bytes], Any]) -> None:
    source = kind_of_buffer(MARKER)
    secret = Secret("test_key", source)
    source[0] = 0
    assert bytes(secret.expose()) == MARKER
    secret.wipe()
    assert bytes(source[1:]) == MARKER[1:]


def test_random_draws_the_coins_and_overwrites_their_buffer() -> None:
    coins = RememberingCoins()
    secret = Secret.random("seed", 32, coins)
    assert bytes(secret.expose()) == b"\xa5" * 32
    assert coins.buffers == [bytearray(32)]
    assert secret.kind == "seed"


@pytest.mark.parametrize("count", [0, -1])
def test_a_random_secret_of_no_bytes_is_refused_before_coins_are_drawn(count: int) -> None:
    coins = RememberingCoins()
    with pytest.raises(InvalidParameters):
        Secret.random("seed", count, coins)
    assert not coins.buffers


@pytest.mark.parametrize("missing", [1, 32, -1])
def test_coins_of_the_wrong_length_are_refused_and_overwritten(missing: int) -> None:
    coins = RememberingCoins(missing=missing)
    with pytest.raises(Misuse):
        Secret.random("seed", 32, coins)
    assert not any(coins.buffers[0])


def test_the_buffer_of_a_secret_shows_no_bytes() -> None:
    buffer = object.__getattribute__(marked(), "_buffer")
    assert repr(buffer) == str(buffer) == f"<{len(MARKER)} bytes>"


def test_coins_that_cannot_be_overwritten_are_refused() -> None:
    class Frozen:
        """Coins that are returned as bytes, which stay in memory."""

        def draw(self, count: int) -> Any:
            return bytes(count)

    with pytest.raises(Misuse, match="bytearray"):
        Secret.random("seed", 32, Frozen())
