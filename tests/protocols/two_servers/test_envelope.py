"""Two servers' envelopes: under which keys, and that nothing of one that is refused is left.

What does not open is in ``tests/adversaries/test_two_servers_uploads.py``.
"""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import UNDECIDED, AuthenticationFailed
from secagg.identifiers import ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers import opened_upload
from secagg.protocols.two_servers.opened_upload import open_body
from secagg.protocols.two_servers.upload import UPLOAD_SEED_BYTES, ring_mask_key, seal_body, sealing_info
from tests.harness.indexing_rounds import framed

ZERO, ONE = ServerId(0), ServerId(1)
HEADER, OTHER_HEADER = b"h" * 32, b"i" * 32
BODY = b"what server 1 is sent of an update"


def seed(byte: int = 7) -> Secret:
    return Secret("upload seed", bytes([byte] * UPLOAD_SEED_BYTES))


def sealed() -> bytes:
    return bytes(seal_body(seed(), ONE, HEADER, BODY))


def test_sealing_is_the_documented_one() -> None:
    with expand("body_key", 32, seed(), Label.INDEXING_BODY_KEY, b"\1", HEADER) as key:
        expected = AESGCM(bytes(key.expose())).encrypt(bytes(12), BODY, HEADER)
    assert sealed() == expected
    assert Label.INDEXING_BODY_KEY.value == b"secagg/1/indexing-body-key"
    assert Label.INDEXING_RING_MASK.value == b"secagg/1/indexing-ring-mask"


def test_a_seed_is_sealed_for_one_server_and_header() -> None:
    assert sealing_info(ONE, HEADER) == framed(b"secagg/1/indexing-sealing", b"\1", HEADER)
    assert len({sealing_info(server, header) for server in (ZERO, ONE) for header in (HEADER, OTHER_HEADER)}) == 4


def test_what_did_not_authenticate_is_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = list[bytearray]()

    def recorded(buffer: bytearray) -> None:
        buffers.append(buffer)
        buffer[:] = bytes(len(buffer))

    monkeypatch.setattr(opened_upload, "overwrite", recorded)
    with pytest.raises(AuthenticationFailed) as caught:
        open_body(seed(), ONE, HEADER, sealed()[:-1] + b"\0")
    assert caught.value.culprits is UNDECIDED
    assert [bytes(buffer) for buffer in buffers] == [bytes(len(BODY))]


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
