"""Every domain-separation string of the library, in one table.

A label names one use of one primitive. Two uses never share a label, and no label is a prefix of another, so inputs to
a hash, a key derivation, a cipher or a signature never coincide across uses.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from secagg.errors import InvalidParameters, Misuse

_LENGTH_BYTES = 4


class Label(bytes, Enum):
    """One use of one primitive; the value is a prefix of the hashed or derived input."""

    LAYOUT_DIGEST = b"secagg/1/layout"
    PUBLIC_PARAMETERS_DIGEST = b"secagg/1/public-parameters"
    CHANNEL_X25519_KEY = b"secagg/1/channel-x25519-key"
    MASK_X25519_KEY = b"secagg/1/mask-x25519-key"
    CHANNEL_HYBRID_MLKEM_SEED = b"secagg/1/channel-hybrid-mlkem768-seed"
    CHANNEL_HYBRID_X25519_KEY = b"secagg/1/channel-hybrid-x25519-key"
    MASK_HYBRID_MLKEM_SEED = b"secagg/1/mask-hybrid-mlkem768-seed"
    MASK_HYBRID_X25519_KEY = b"secagg/1/mask-hybrid-x25519-key"
    CHANNEL_KEY = b"secagg/1/channel-aead-key"
    PAIRWISE_SEED = b"secagg/1/pairwise-seed"
    EDGE_SEED = b"secagg/1/edge-seed"
    EDGE_SEALING = b"secagg/1/edge-sealing"
    SELF_MASK_KEY = b"secagg/1/self-mask-key"
    PAIRWISE_MASK_KEY = b"secagg/1/pairwise-mask-key"
    AEAD_HEADER = b"secagg/1/aead-header"
    CERTIFICATE = b"secagg/1/certificate"
    STANDING = b"secagg/1/standing"
    KEY_REQUEST = b"secagg/1/key-request"
    KEY_VOUCHED = b"secagg/1/key-vouched"
    AUTHORITY_ROTATION = b"secagg/1/authority-rotation"
    CONFIGURATION = b"secagg/1/configuration"
    SESSION_CONTEXT = b"secagg/1/session-context"
    ROSTER = b"secagg/1/roster-root"
    ROSTER_ENTRY = b"secagg/1/roster-entry"
    CLIENT_LIST = b"secagg/1/client-list"
    CLIENT_SET = b"secagg/1/client-set"
    MERKLE_NODE = b"secagg/1/merkle-node"
    GRAPH_OPENING = b"secagg/1/graph-opening"
    GRAPH_SEED = b"secagg/1/graph-seed"
    SELF_MASK_COMMITMENT = b"secagg/1/commitment-to-self-mask"
    SHARES_SEALING = b"secagg/1/shares-sealing"
    SHARES_ENTRY = b"secagg/1/shares-entry"
    SHARE_DIGEST = b"secagg/1/share-digest"
    SHARES_COMMITMENT = b"secagg/1/commitment-to-shares"
    EDGE_SEED_COMMITMENT = b"secagg/1/commitment-to-edge-seed"
    CHECK_VECTOR = b"secagg/1/check-vector"
    UPLOAD_DIGEST = b"secagg/1/upload-digest"
    SIGNED_ADVERTISEMENT = b"secagg/1/signed-advertisement"
    SIGNED_SHARES = b"secagg/1/signed-shares"
    SIGNED_VIEW = b"secagg/1/signed-view"
    SIGNED_COMPLAINT = b"secagg/1/signed-complaint"
    SIGNED_SURVIVORS = b"secagg/1/signed-survivors"
    SIGNED_UNMASKING = b"secagg/1/signed-unmasking"
    GRAPH_PERMUTATION = b"secagg/1/graph-permutation"
    COMMITTEE = b"secagg/1/committee"
    COUNT_SKETCH_HASHES = b"secagg/1/count-sketch-hashes"
    CODEBOOK_POINTS = b"secagg/1/codebook-points"
    CODEBOOK_SAMPLE = b"secagg/1/codebook-sample"
    CODEBOOK_SEEDING = b"secagg/1/codebook-seeding"
    PRUNING_MASK = b"secagg/1/pruning-mask"
    ROTATION_SIGNS = b"secagg/1/rotation-signs"
    MODEL_ROUNDING = b"secagg/1/model-rounding"
    HELD_MODEL = b"secagg/1/held-model"
    PROBE_SIGNS = b"secagg/1/probe-signs"
    SEALING_X25519_KEY = b"secagg/1/sealing-x25519-key"
    SEALING_HYBRID_MLKEM_SEED = b"secagg/1/sealing-hybrid-mlkem768-seed"
    SEALING_HYBRID_X25519_KEY = b"secagg/1/sealing-hybrid-x25519-key"
    CLIENT_NOISE = b"secagg/1/client-noise"
    ENCLAVE_CONFIGURATION = b"secagg/1/enclave-configuration"
    ENCLAVE_BINDING = b"secagg/1/enclave-binding"
    ENCLAVE_UPLOAD_HEADER = b"secagg/1/enclave-upload-header"
    ENCLAVE_SEALING = b"secagg/1/enclave-sealing"
    ENCLAVE_MASK_KEY = b"secagg/1/enclave-mask-key"
    ENCLAVE_INDICES_KEY = b"secagg/1/enclave-indices-key"
    ENCLAVE_VECTOR_DIGEST = b"secagg/1/enclave-vector-digest"
    ENCLAVE_PROOF = b"secagg/1/enclave-proof"
    ENCLAVE_UPLOAD_LIST = b"secagg/1/enclave-upload-list"
    ENCLAVE_ENDORSEMENT = b"secagg/1/enclave-endorsement"
    ENCLAVE_RECEIPT = b"secagg/1/enclave-receipt"
    SESSION_MODEL = b"secagg/1/session-model"
    SESSION_LAYOUT = b"secagg/1/session-layout"
    SESSION_TERMS = b"secagg/1/session-terms"
    UPLOAD_PIECE = b"secagg/1/upload-piece"
    SPREAD_TAG = b"secagg/1/spread-tag"
    GROUP_SUM = b"secagg/1/group-sum"
    HEDGED_COINS = b"secagg/1/hedged-coins"
    HEDGED_COINS_ROOT = b"secagg/1/hedged-root"
    SPENT_VALUES = b"secagg/1/spent-values"
    ONE_HOT_STATEMENT = b"secagg/1/one-hot-statement"
    ONE_HOT_MASKS = b"secagg/1/one-hot-masks"
    ONE_HOT_POLYNOMIAL = b"secagg/1/one-hot-polynomial"
    ONE_HOT_PART = b"secagg/1/one-hot-part"
    ONE_HOT_JOINT = b"secagg/1/one-hot-joint"
    ONE_HOT_CHALLENGE = b"secagg/1/one-hot-challenge"
    ONE_HOT_ROUND_KEY = b"secagg/1/one-hot-round-key"
    ONE_HOT_QUERY_POINT = b"secagg/1/one-hot-query-point"
    ONE_HOT_UPLOAD = b"secagg/1/one-hot-upload"
    ONE_HOT_COMMITMENT = b"secagg/1/one-hot-commitment"
    INDEXING_CONFIGURATION = b"secagg/1/indexing-configuration"
    INDEXING_OFFER = b"secagg/1/indexing-offer"
    INDEXING_UPLOAD_HEADER = b"secagg/1/indexing-header"
    INDEXING_UPLOAD = b"secagg/1/indexing-upload"
    INDEXING_SIGNED_UPLOAD = b"secagg/1/indexing-signed-upload"
    INDEXING_SEALING = b"secagg/1/indexing-sealing"
    INDEXING_BODY_KEY = b"secagg/1/indexing-body-key"
    INDEXING_RING_MASK = b"secagg/1/indexing-ring-mask"
    INDEXING_SEGMENT = b"secagg/1/indexing-segment"
    INDEXING_ACCEPTED = b"secagg/1/indexing-accepted"
    INDEXING_SIGNED_LIST = b"secagg/1/indexing-signed-list"
    INDEXING_OUTPUT = b"secagg/1/indexing-output"
    INDEXING_FINGERPRINT = b"secagg/1/indexing-fingerprint"
    INDEXING_PAIR_KEY = b"secagg/1/indexing-pair-key"
    INDEXING_OPERATOR = b"secagg/1/indexing-operator"
    INDEXING_NONCE = b"secagg/1/indexing-nonce"
    INDEXING_NOISE = b"secagg/1/indexing-noise"
    SUMMED_LAYOUT = b"secagg/1/summed-layout"
    CODEWORD_TABLES = b"secagg/1/codeword-tables"
    POINT_FUNCTION_NODE_KEY = b"secagg/1/point-function-node-key"
    POINT_FUNCTION_ROOTS = b"secagg/1/point-function-roots"
    POINT_FUNCTION_LANES = b"secagg/1/point-function-lanes"
    POINT_FUNCTION_SEED_DIGEST = b"secagg/1/point-function-seed-digest"
    POINT_FUNCTION_CORRECTION_DIGEST = b"secagg/1/point-function-correction-digest"
    POINT_FUNCTION_SHARE_DIGEST = b"secagg/1/point-function-share-digest"
    POINT_FUNCTION_EXPLICIT_DIGEST = b"secagg/1/point-function-explicit-digest"
    ONE_MESSAGE_SECRET = b"secagg/1/one-message-secret"
    ONE_MESSAGE_NOISE = b"secagg/1/one-message-noise"
    ONE_MESSAGE_CHECK_VECTOR = b"secagg/1/one-message-check-vector"
    ONE_MESSAGE_SHARE = b"secagg/1/one-message-share"
    ONE_MESSAGE_FREE_VALUES = b"secagg/1/one-message-free-values"
    ONE_MESSAGE_CHALLENGE = b"secagg/1/one-message-challenge"
    ONE_MESSAGE_RECORD = b"secagg/1/one-message-record"
    ONE_MESSAGE_HOLDER_KEYS = b"secagg/1/one-message-holder-keys"
    ONE_MESSAGE_EPOCH = b"secagg/1/one-message-epoch"
    ONE_MESSAGE_PUBLIC_SEED = b"secagg/1/one-message-public-seed"
    ONE_MESSAGE_CONFIGURATION = b"secagg/1/one-message-configuration"
    ONE_MESSAGE_TERMS = b"secagg/1/one-message-terms"
    ONE_MESSAGE_VECTOR = b"secagg/1/one-message-vector"
    ONE_MESSAGE_DEALT = b"secagg/1/one-message-dealt"
    ONE_MESSAGE_SEALING = b"secagg/1/one-message-sealing"
    ONE_MESSAGE_LEAF = b"secagg/1/one-message-leaf"
    ONE_MESSAGE_STATEMENT = b"secagg/1/one-message-statement"
    ONE_MESSAGE_SIGNED_UPLOAD = b"secagg/1/one-message-signed-upload"
    ONE_MESSAGE_RECEIPT = b"secagg/1/one-message-receipt"
    ONE_MESSAGE_LIST = b"secagg/1/one-message-list"
    ONE_MESSAGE_OFFER_RECEIPT = b"secagg/1/one-message-offer-receipt"
    ONE_MESSAGE_SIGNED_LIST = b"secagg/1/one-message-signed-list"
    ONE_MESSAGE_ANSWER = b"secagg/1/one-message-answer"
    ONE_MESSAGE_HEDGE = b"secagg/1/one-message-hedge"
    CODED_MASK_CONFIGURATION = b"secagg/1/coded-mask-configuration"
    CODED_MASK_ROSTER = b"secagg/1/coded-mask-roster"
    CODED_MASK_SEALING = b"secagg/1/coded-mask-sealing"
    SUMMED_TENSORS = b"secagg/1/summed-tensors"
    PLATFORM_TERMS = b"secagg/1/platform-terms"
    PLATFORM_EVALUATION = b"secagg/1/platform-evaluation"
    PLATFORM_CLIENT = b"secagg/1/platform-client"
    HTTP_PROOF = b"secagg/1/http-proof"
    HTTP_TERMS = b"secagg/1/http-terms"
    PLATFORM_ANSWER = b"secagg/1/platform-answer"
    STATISTICS = b"secagg/1/statistics"
    STATISTICS_SPENT = b"secagg/1/spent-statistics"


_SHORT: Final = 1 << 11
_LENGTHS: Final = tuple(length.to_bytes(_LENGTH_BYTES, "big") for length in range(_SHORT))


def bind(label: Label, *parts: bytes) -> bytes:
    """Return an injective encoding of the label and the parts.

    Each part is preceded by its length, so the boundaries between parts are part of the string.
    """
    return label + frame(*parts)


def frame(*parts: bytes) -> bytes:
    """Return the parts as ``bind`` appends them to a label; common prefixes or suffixes can be framed once."""
    # Clients frame millions of strings: list[bytes]() and adding a tuple would double the time.
    framed: list[bytes] = []
    for part in parts:
        if type(part) is not bytes:
            raise Misuse(f"a bound part must be bytes; got {type(part).__name__}, whose length may not count bytes")
        length = len(part)
        framed.append(_LENGTHS[length] if length < _SHORT else _long(length))
        framed.append(part)
    return b"".join(framed)


def _long(length: int) -> bytes:
    try:
        return length.to_bytes(_LENGTH_BYTES, "big")
    except OverflowError:
        raise InvalidParameters(f"a bound part has {length} bytes; the limit is 2^32 - 1") from None
