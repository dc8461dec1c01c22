"""What a client advertises: two public keys, a commitment, and in active mode who it is and that it says so.

[BIK+17] Fig. 4, Round 0. The server checks every advertisement that it gets; every client checks those of its
neighbours again, because the server could have written them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from secagg.blame import said_by, unverified
from secagg.crypto.labels import Label
from secagg.errors import InternalError, InvalidParameters, PeerMisbehaved, Reason
from secagg.fields import CLIENT, Placed, fixed, nested, optional, sized
from secagg.identifiers import CONTEXT_TAG_BYTES, AttemptContext, ClientId
from secagg.parameters import SecurityMode
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Authority, Certificate, VerifiedIdentity
from secagg.wire import MessageKind

from .configuration import SessionConfiguration
from .member import Member
from .suites import COMMITMENT_BYTES, PublishedKeys, key_suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What makes an advertisement a certified client's own: its identity key, the authority's word, its signature."""

    identity_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    certificate: Annotated[bytes, fixed(SIGNATURE_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)]

    def encode(self) -> bytes:
        """Return the three, one after another."""
        return self.identity_key + self.certificate + self.signature


_KEY = sized(lambda at: key_suite(at.place.suite).public_key_bytes, "32 classic, 1216 hybrid")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyAdvertisement(Placed):
    """A client's public keys for one attempt, and a commitment to its self-mask seed."""

    kind: ClassVar = MessageKind.KEY_ADVERTISEMENT
    attempt: Annotated[bytes, fixed(CONTEXT_TAG_BYTES)]
    client: Annotated[ClientId, CLIENT]
    channel_key: Annotated[bytes, _KEY]
    mask_key: Annotated[bytes, _KEY]
    self_mask_commitment: Annotated[bytes, fixed(COMMITMENT_BYTES)]
    credential: Annotated[
        Credential | None, optional(nested(Credential), lambda at: at.place.is_active, "160 in active mode")
    ]

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        """Every key that it names; each is one client's alone."""
        keys = self.channel_key, self.mask_key
        return keys if self.credential is None else (*keys, self.credential.identity_key)

    @property
    def entry(self) -> bytes:
        """What the roster holds of it; the commitment serves the server alone unless it is signed."""
        keys = self.channel_key + self.mask_key
        return keys if self.credential is None else keys + self.self_mask_commitment + self.credential.encode()

    @classmethod
    def decode(cls, message: bytes, configuration: SessionConfiguration) -> KeyAdvertisement:
        """Read the canonical encoding back."""
        return cls.read_in(configuration, message)


@dataclass(frozen=True, slots=True)
class VerifiedAdvertiser:
    """A client whose advertisement was checked; only ``verify_keys`` makes one."""

    keys: PublishedKeys
    identity: VerifiedIdentity | None
    self_mask_commitment: bytes = field(repr=False)

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        """Every key that it named; each is one client's alone."""
        keys = self.keys.channel.encoded, self.keys.mask.encoded
        return keys if self.identity is None else (*keys, self.identity.public_key)


def sign_advertisement(unsigned: KeyAdvertisement, member: Member, attempt: AttemptContext) -> KeyAdvertisement:
    """Sign an advertisement with the member's identity key, and put the certificate beside it."""
    if member.certificate is None:
        raise InvalidParameters("active mode needs a certificate")
    credential = Credential(
        identity_key=member.certificate.public_key,
        certificate=member.certificate.signature,
        signature=member.sign(Label.SIGNED_ADVERTISEMENT, *_signed_parts(unsigned, attempt)),
    )
    return replace(unsigned, credential=credential)


def authenticate(
    advertisement: KeyAdvertisement, configuration: SessionConfiguration, authority: Authority | None
) -> VerifiedIdentity | None:
    """Check the certificate and the signature of an advertisement; in semi_honest mode there are none.

    Raises:
        AuthenticationFailed: one of the two does not verify, which may be the way's doing.
    """
    if configuration.mode is not SecurityMode.ACTIVE:
        return None
    client, credential = advertisement.client, advertisement.credential
    if authority is None or credential is None:
        raise InternalError("an active session's advertisement is verified without an authority or a credential")
    certificate = Certificate(client, credential.identity_key, credential.certificate)
    identity = authority.verify(certificate, culprits=unverified(client))
    parts = _signed_parts(advertisement, configuration.context)
    identity.verify(credential.signature, Label.SIGNED_ADVERTISEMENT, *parts, culprits=unverified(client))
    return identity


def verify_keys(
    advertisement: KeyAdvertisement, configuration: SessionConfiguration, identity: VerifiedIdentity | None
) -> VerifiedAdvertiser:
    """Check the keys of an advertisement, for which its sender answers alone if it signed them."""
    client, suite = advertisement.client, key_suite(configuration.suite)
    culprits = said_by(client, configuration.mode)
    keys = PublishedKeys(
        client,
        suite.public_key(advertisement.channel_key, culprits),
        suite.public_key(advertisement.mask_key, culprits),
    )
    if keys.channel == keys.mask:
        raise PeerMisbehaved(
            f"{client} advertises one key for two roles", reason=Reason.PUBLIC_KEY_REUSED, culprits=culprits
        )
    return VerifiedAdvertiser(keys, identity, advertisement.self_mask_commitment)


def verify_advertisement(
    advertisement: KeyAdvertisement, configuration: SessionConfiguration, authority: Authority | None
) -> VerifiedAdvertiser:
    """Check certificate, signature and keys of an advertisement."""
    return verify_keys(advertisement, configuration, authenticate(advertisement, configuration, authority))


def verify_entry(
    entry: bytes, client: ClientId, configuration: SessionConfiguration, authority: Authority | None
) -> VerifiedAdvertiser:
    """Read what the roster holds of a client, and check it as if it had come from there."""
    key_bytes = key_suite(configuration.suite).public_key_bytes
    channel_key, mask_key, rest = entry[:key_bytes], entry[key_bytes : 2 * key_bytes], entry[2 * key_bytes :]
    commitment, credential = b"", None
    if configuration.mode is SecurityMode.ACTIVE:
        commitment, rest = rest[:COMMITMENT_BYTES], rest[COMMITMENT_BYTES:]
        credential = Credential(
            identity_key=rest[:IDENTITY_KEY_BYTES],
            certificate=rest[IDENTITY_KEY_BYTES:-SIGNATURE_BYTES],
            signature=rest[-SIGNATURE_BYTES:],
        )
    advertisement = KeyAdvertisement(
        attempt=configuration.context.tag,
        client=client,
        channel_key=channel_key,
        mask_key=mask_key,
        self_mask_commitment=commitment,
        credential=credential,
    )
    return verify_advertisement(advertisement, configuration, authority)


def entry_bytes(configuration: SessionConfiguration) -> int:
    """Return the length of what the roster holds of one client."""
    keys = 2 * key_suite(configuration.suite).public_key_bytes
    if configuration.mode is SecurityMode.ACTIVE:
        return keys + COMMITMENT_BYTES + IDENTITY_KEY_BYTES + 2 * SIGNATURE_BYTES
    return keys


def _signed_parts(advertisement: KeyAdvertisement, attempt: AttemptContext) -> tuple[bytes, ...]:
    return (
        attempt.digest,
        advertisement.client.encode(),
        advertisement.channel_key,
        advertisement.mask_key,
        advertisement.self_mask_commitment,
    )
