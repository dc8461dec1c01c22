"""What 32 bytes expand into, a key and an IV: blocks of AES-CTR [SP 800-38A] §6.5, and words of any size."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto.secret import Secret, overwrite, require_secret
from secagg.errors import InvalidParameters

AES_BLOCK_BYTES: Final = 16
STREAM_KEY_BYTES: Final = 32
_AES_KEY_BYTES: Final = 16
_ZEROS: Final = memoryview(bytes(1 << 20))

Bytes = npt.NDArray[np.uint8]


class CounterStream:
    """The blocks, of which any range can be made."""

    def __init__(self, key: Secret) -> None:
        """Take the bytes; both halves are derived together, so guessing for many streams at once gains nothing."""
        require_secret(key)
        if len(key) != STREAM_KEY_BYTES:
            raise InvalidParameters(f"a stream is made from {STREAM_KEY_BYTES} bytes; got {key!r}")
        exposed = key.expose()
        self._origin = int.from_bytes(exposed[_AES_KEY_BYTES:], "big")
        cipher = Cipher(algorithms.AES(exposed[:_AES_KEY_BYTES]), modes.CTR(bytes(AES_BLOCK_BYTES)))
        self._encryptor = cipher.encryptor()

    def fill(self, target: Bytes, first_block: int, size: int) -> None:
        """Write ``size`` bytes, from a block of the stream on, to the beginning of ``target``.

        The backend insists on room for 15 bytes more and does not touch them.
        """
        counter = (self._origin + first_block) % (1 << (8 * AES_BLOCK_BYTES))
        self._encryptor.reset_nonce(counter.to_bytes(AES_BLOCK_BYTES, "big"))
        for start in range(0, size, len(_ZEROS)):
            count = min(len(_ZEROS), size - start)
            self._encryptor.update_into(_ZEROS[:count], target.data[start : start + count + AES_BLOCK_BYTES - 1])


class WordStream:
    """Words of a counter stream, made into one buffer that is used again and overwritten at the end."""

    def __init__(self, word: np.dtype[np.unsignedinteger[Any]], key: Secret) -> None:
        self._buffer = bytearray()
        self._word, self._stream = word, CounterStream(key)

    def __del__(self) -> None:
        overwrite(self._buffer)

    def lanes(self, start: int, count: int, attempt: int = 0) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return words [start, start + count) of an attempt; they hold until the next call."""
        block, skip = divmod(start * self._word.itemsize, AES_BLOCK_BYTES)
        size = skip + count * self._word.itemsize
        if len(self._buffer) < size + AES_BLOCK_BYTES:
            overwrite(self._buffer)
            self._buffer = bytearray(size + AES_BLOCK_BYTES)
        self._stream.fill(np.frombuffer(self._buffer, dtype=np.uint8), (attempt << 64) + block, size)
        return np.frombuffer(self._buffer, dtype=self._word, count=count, offset=skip)
