"""Two servers' envelopes: each opened by one key, in one place, for one header, and readable in no other way."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import UNDECIDED, AuthenticationFailed, Misuse
from secagg.identifiers import ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers import upload as upload_module
from secagg.protocols.two_servers.upload import UPLOAD_SEED_BYTES, open_body, ring_mask_key, seal_body, sealing_info

ZERO, ONE = ServerId(0), ServerId(1)
HEADER, OTHER_HEADER = b"h" * 32, b"i" * 32
BODY = b"what server 1 is sent of an update"


def seed(byte: int = 7) -> Secret:
    return Secret("upload seed", bytes([byte] * UPLOAD_SEED_BYTES))


def framed(label: bytes, *parts: bytes) -> bytes:
    return label + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def sealed() -> bytes:
    return bytes(seal_body(seed(), ONE, HEADER, BODY))


@pytest.mark.parametrize("body", [b"", b"x", BODY, bytearray(BODY) * 999])
@pytest.mark.parametrize("server", [ZERO, ONE])
def test_what_was_sealed_is_opened(body: bytes | bytearray, server: ServerId) -> None:
    message = seal_body(seed(), server, HEADER, body)
    assert len(message) == len(body) + TAG_BYTES
    opened = open_body(seed(), server, HEADER, message)
    assert type(opened) is bytearray, "which its caller can overwrite"
    assert opened == body


def test_sealing_is_the_documented_one() -> None:
    with expand("body_key", 32, seed(), Label.INDEXING_BODY_KEY, b"\1", HEADER) as key:
        expected = AESGCM(bytes(key.expose())).encrypt(bytes(12), BODY, HEADER)
    assert sealed() == expected
    assert Label.INDEXING_BODY_KEY.value == b"secagg/1/indexing-body-key"
    assert Label.INDEXING_RING_MASK.value == b"secagg/1/indexing-ring-mask"


def test_a_seed_is_sealed_for_one_server_and_header() -> None:
    assert sealing_info(ONE, HEADER) == framed(b"secagg/1/indexing-sealing", b"\1", HEADER)
    assert len({sealing_info(server, header) for server in (ZERO, ONE) for header in (HEADER, OTHER_HEADER)}) == 4


def is_refused(message: bytes, *, secret: Secret, server: ServerId = ONE, header: bytes = HEADER) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        open_body(secret, server, header, message)
    assert caught.value.culprits is UNDECIDED


def test_every_bit_is_authenticated() -> None:
    message = sealed()
    for position in range(8 * len(message)):
        altered = bytearray(message)
        altered[position // 8] ^= 1 << position % 8
        is_refused(bytes(altered), secret=seed())


def test_a_body_is_opened_with_its_own_seed_server_and_header() -> None:
    is_refused(sealed(), secret=seed(8))
    is_refused(sealed(), secret=seed(), server=ZERO)
    is_refused(sealed(), secret=seed(), header=OTHER_HEADER)


def test_what_did_not_authenticate_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = list[bytearray]()

    def recorded(buffer: bytearray) -> None:
        buffers.append(buffer)
        buffer[:] = bytes(len(buffer))

    monkeypatch.setattr(upload_module, "overwrite", recorded)
    is_refused(sealed()[:-1] + b"\0", secret=seed())
    assert [bytes(buffer) for buffer in buffers] == [bytes(len(BODY))]


def test_a_wiped_seed_opens_nothing() -> None:
    own = seed()
    own.wipe()
    for call in (lambda: seal_body(own, ONE, HEADER, BODY), lambda: ring_mask_key(own, Suite.CLASSIC, HEADER)):
        with pytest.raises(Misuse):
            call()


@pytest.mark.parametrize("suite", Suite)
def test_the_key_of_the_masks_is_that_of_one_seed_and_header(suite: Suite) -> None:
    with (
        ring_mask_key(seed(), suite, HEADER) as key,
        expand("ring_mask_key", suite.mask_key_bytes, seed(), Label.INDEXING_RING_MASK, HEADER) as expected,
        expand("body_key", suite.mask_key_bytes, seed(), Label.INDEXING_BODY_KEY, b"\0", HEADER) as body_key,
        ring_mask_key(seed(8), suite, HEADER) as other_seed,
        ring_mask_key(seed(), suite, OTHER_HEADER) as other_header,
    ):
        assert len(key) == suite.mask_key_bytes
        assert key == expected
        for other in (body_key, other_seed, other_header):
            assert key != other


def test_no_two_keys_of_one_seed_are_the_same() -> None:
    bodies = {
        bytes(seal_body(seed(), server, header, bytes(32)))[:32]
        for server in (ZERO, ONE)
        for header in (HEADER, OTHER_HEADER)
    }
    assert len(bodies) == 4
