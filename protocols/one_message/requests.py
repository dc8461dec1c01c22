"""Messages between the server and holders about one sum: shares, receipts, one list, its certificate and answers.

The server sends a holder all signed parts of an upload except the vector and the other holders' shares, so that the
holder can verify the signature.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar, Final

from secagg.blame import from_server, said_by, unverified
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.labels import Label, bind
from secagg.declared import CLIENT, Message, choice, fixed, nested, repeated, unsigned, variable
from secagg.errors import UNDECIDED, AuthenticationFailed, MalformedMessage, PeerMisbehaved, Reason, blaming
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Authority, Certificate
from secagg.wire import MessageKind

from .configuration import DIGEST_BYTES, Agreement, HolderSignature, SumTerms
from .messages import (
    IDENTITY_BYTES,
    MAXIMUM_SHARE_BYTES,
    MAXIMUM_VECTOR_BYTES,
    Upload,
    UploadHeader,
    challenge_of,
    piece_digests,
    share_tree,
    upload_digest,
    vector_digest,
)
from .opening import OneMessageCut
from .parameters import MAXIMUM_HOLDERS, pieces_of

MAXIMUM_UPLOADS: Final = 1 << 20
_MAXIMUM_PROOF: Final = 10


class Verdict(IntEnum):
    """A holder's verdict on an upload whose share it received."""

    ACCEPTED = 0
    NOT_AUTHENTIC = 1
    """The signature or the path is wrong; this is the fault of the party that delivered it, not the client's."""
    DOES_NOT_OPEN = 2
    """The client signed the upload, but the share does not open."""
    OFF_POLYNOMIAL = 3
    """The share opens, but is not on the polynomial that the client published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredShare:
    """Part of an upload that one holder receives."""

    header: Annotated[UploadHeader, nested(UploadHeader)]
    vector_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    polynomial: Annotated[bytes, variable(MAXIMUM_SHARE_BYTES)]
    sealed: Annotated[bytes, variable(MAXIMUM_SHARE_BYTES)]
    path: Annotated[tuple[bytes, ...], repeated(fixed(DIGEST_BYTES), _MAXIMUM_PROOF)]
    signature: Annotated[bytes, variable(SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Message):
    """Shares of some clients, for one holder."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_DELIVERY
    t0: Annotated[bytes, fixed(DIGEST_BYTES)]
    shares: Annotated[tuple[DeliveredShare, ...], repeated(nested(DeliveredShare), MAXIMUM_UPLOADS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A holder's verdict on one upload."""

    upload: Annotated[bytes, fixed(DIGEST_BYTES)]
    verdict: Annotated[Verdict, choice(tuple(Verdict))]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferReceipt(Message):
    """A holder's signature on an offer, which proves to clients that it still has the keys of this T0."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_OFFER_RECEIPT
    t0: Annotated[bytes, fixed(DIGEST_BYTES)]
    holder: Annotated[int, unsigned(2)]
    terms: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Digest of the offer's terms."""
    signature: Annotated[bytes, variable(SIGNATURE_BYTES)] = b""

    @property
    def parts(self) -> tuple[bytes, ...]:
        return self.holder.to_bytes(2, "big"), self.terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Message):
    """Verdicts of a holder on the uploads of a delivery, in its order."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_RECEIPT
    t0: Annotated[bytes, fixed(DIGEST_BYTES)]
    holder: Annotated[int, unsigned(2)]
    judged: Annotated[tuple[Judged, ...], repeated(nested(Judged), MAXIMUM_UPLOADS)]
    signature: Annotated[bytes, variable(SIGNATURE_BYTES)] = b""

    @property
    def parts(self) -> tuple[bytes, ...]:
        listed = b"".join(judged.upload + bytes([judged.verdict]) for judged in self.judged)
        return self.holder.to_bytes(2, "big"), listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One client of a sum, and its upload's digest."""

    client: Annotated[ClientId, CLIENT]
    upload: Annotated[bytes, fixed(DIGEST_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadList(Message):
    """The uploads of one sum, by increasing client id."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_LIST
    t0: Annotated[bytes, fixed(DIGEST_BYTES)]
    terms: Annotated[SumTerms, nested(SumTerms)]
    listed: Annotated[tuple[Listed, ...], repeated(nested(Listed), MAXIMUM_UPLOADS)]

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(bind(Label.ONE_MESSAGE_LIST, self.encode())).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSignature(Message):
    """A holder's signature on a list; it signs no other list that contains these uploads."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_LIST_SIGNATURE
    t0: Annotated[bytes, fixed(DIGEST_BYTES)]
    holder: Annotated[int, unsigned(2)]
    upload_list: Annotated[bytes, fixed(DIGEST_BYTES)]
    signature: Annotated[bytes, variable(SIGNATURE_BYTES)] = b""

    @property
    def parts(self) -> tuple[bytes, ...]:
        return self.holder.to_bytes(2, "big"), self.upload_list


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedList(Message):
    """A list that a quorum of holders signed."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_CERTIFIED_LIST
    upload_list: Annotated[bytes, variable(MAXIMUM_VECTOR_BYTES)]
    certificate: Annotated[tuple[HolderSignature, ...], repeated(nested(HolderSignature), MAXIMUM_HOLDERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Message):
    """A holder's shares, summed over a list."""

    kind: ClassVar = MessageKind.ONE_MESSAGE_ANSWER
    t0: Annotated[bytes, fixed(DIGEST_BYTES)]
    holder: Annotated[int, unsigned(2)]
    upload_list: Annotated[bytes, fixed(DIGEST_BYTES)]
    sums: Annotated[bytes, variable(MAXIMUM_SHARE_BYTES)]
    signature: Annotated[bytes, variable(SIGNATURE_BYTES)] = b""

    @property
    def parts(self) -> tuple[bytes, ...]:
        return self.holder.to_bytes(2, "big"), self.upload_list, self.sums


def require_signed(agreement: Agreement, header: UploadHeader, digest: bytes, signature: bytes) -> None:
    """Check that a certified client signed an upload; the error names the client and the network."""
    record, client, identity = agreement.record, header.client, header.identity
    public_key, is_active = identity[:IDENTITY_KEY_BYTES], record.mode is SecurityMode.ACTIVE
    if len(identity) != (IDENTITY_BYTES if is_active else 0):
        raise AuthenticationFailed(culprits=unverified(client))
    if is_active:
        certificate = Certificate(client, public_key, identity[IDENTITY_KEY_BYTES:])
        Authority(record.authority).verify(certificate, culprits=unverified(client))
        agreement.configuration.standing.require_valid(certificate, culprits=unverified(client))
    label, named = Label.ONE_MESSAGE_SIGNED_UPLOAD, unverified(client)
    record.verify(public_key, signature, label, agreement.t0, digest, culprits=named)


def verify_upload(
    agreement: Agreement, terms: SumTerms, sender: ClientId, upload: Upload, *, is_kept: bool = False
) -> tuple[bytes, tuple[DeliveredShare, ...]]:
    """Check an upload, and return its digest and the part that each holder receives.

    Args:
        is_kept: whether its vector was checked before and is stored separately.
    """
    header, parameters = upload.header, agreement.parameters
    if header.client != sender:
        raise PeerMisbehaved(
            f"{sender} sent an upload of {header.client}", reason=Reason.NOT_ELIGIBLE, culprits=UNDECIDED
        )
    if upload.t0 != agreement.t0 or header.terms != terms:
        raise PeerMisbehaved("the upload was made for another sum", reason=Reason.WRONG_SESSION, culprits=UNDECIDED)
    overhead = sealing_sizes(agreement.record.suite)[1]
    present = agreement.epoch.present
    due = tuple(
        parameters.share_bytes(position) + overhead if position in present else 0
        for position in range(agreement.epoch.count)
    )
    cut, whole = OneMessageCut.of(agreement), 0 if is_kept else parameters.upload_bytes
    lengths = (len(upload.pieces), len(upload.vector), len(upload.polynomial), tuple(map(len, upload.sealed)))
    if lengths != (len(cut.lengths), whole, parameters.polynomial_bytes, due):
        raise MalformedMessage("the upload's lengths do not match its parameters", reason=Reason.LAYOUT_MISMATCH)
    tree = share_tree(agreement, upload.sealed)
    hashed = vector_digest(upload.pieces)
    digest = upload_digest(challenge_of(agreement, header, hashed, tree.root), upload.polynomial)
    require_signed(agreement, header, digest, upload.signature)
    if not is_kept:
        if piece_digests(agreement.t0, sender, cut.lengths, upload.vector) != upload.pieces:
            raise AuthenticationFailed(culprits=unverified(sender))
        with blaming(*said_by(sender, agreement.record.mode)):
            for number, piece in enumerate(pieces_of(upload.vector, cut.lengths)):
                cut.check(number, piece)
    return digest, tuple(
        DeliveredShare(
            header=header,
            vector_digest=hashed,
            polynomial=upload.polynomial,
            sealed=sealed,
            path=tuple(tree.prove([position])),
            signature=upload.signature,
        )
        for position, sealed in enumerate(upload.sealed)
    )


def require_certificate(agreement: Agreement, upload_list: bytes, certified: CertifiedList) -> None:
    """Check that a quorum of holders signed a list."""
    agreement.require_quorum(certified.certificate, Label.ONE_MESSAGE_SIGNED_LIST, upload_list, from_server())
