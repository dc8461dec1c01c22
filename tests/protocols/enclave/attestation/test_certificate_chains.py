"""Chains and revocation lists: one thing wrong at a time, and the refusal that names it."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from ipaddress import IPv4Network
from types import ModuleType
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from secagg.errors import MalformedMessage, PeerError, PeerMisbehaved, Reason
from secagg.protocols.enclave.attestation.certificates import (
    ECDSA_P256,
    ECDSA_P384,
    MAXIMUM_ELEMENTS,
    RSA_PSS,
    SEQUENCE,
    Chain,
    check_not_revoked,
    elements,
    only,
    read_pem_chain,
    read_signed,
    small_integer,
    verify_chain,
)
from secagg.protocols.enclave.attestation.claims import PINNED_ROOTS

Refusal = Callable[..., Reason]


class Forge:
    """A root, an authority and a leaf, each of which can be issued otherwise."""

    def __init__(self, made: ModuleType) -> None:
        self.made = made.authority
        self.mutations = made.mutations
        self.root = self.made.issue("root", self.made.p256(20), ca=True)

    def chain(self, *, authority: dict[str, Any] | None = None, leaf: dict[str, Any] | None = None) -> list[Any]:
        middle = self.made.issue("authority", self.made.p256(21), self.root, **({"ca": True} | (authority or {})))
        return [self.made.issue("leaf", self.made.p256(22), middle, **(leaf or {})), middle, self.root]

    def verify(self, chain: list[Any], **changes: Any) -> Chain:
        roots = frozenset({hashlib.sha256(self.root.der).digest()})
        arguments: dict[str, Any] = {"roots": roots, "scheme": ECDSA_P256, "now": self.made.NOW}
        arguments |= changes
        return verify_chain([issued.der for issued in chain], **arguments)

    def verified(self) -> Chain:
        return self.verify(self.chain())


@pytest.fixture(scope="module")
def forge(self_made: ModuleType) -> Forge:
    return Forge(self_made)


def test_a_chain_to_a_pinned_root_holds_until_its_first_certificate_expires(forge: Forge) -> None:
    end = forge.made.NOW + timedelta(days=1)
    chain = forge.verify(forge.chain(authority={"end": end}))
    assert chain.not_after == end
    assert [certificate.name for certificate in chain.certificates] == ["leaf", "authority", "root"]
    assert chain.root_fingerprint == hashlib.sha256(forge.root.der).digest()


def test_a_root_that_is_not_pinned_is_refused_whatever_its_name(forge: Forge, refusal: Refusal) -> None:
    chain = forge.chain()
    impostor = forge.made.issue("root", forge.made.p256(20), ca=True, serial=7)
    assert refusal(lambda: forge.verify([*chain[:2], impostor]), "not a pinned root") is Reason.ATTESTATION_INVALID
    assert refusal(lambda: forge.verify(chain, roots=PINNED_ROOTS.intel)) is Reason.ATTESTATION_INVALID
    assert refusal(lambda: forge.verify([forge.root]), "2 to 6 certificates") is Reason.ATTESTATION_INVALID


def test_a_chain_has_a_greatest_length(forge: Forge, refusal: Refusal) -> None:
    chain = [forge.root]
    for number in range(4):
        chain.insert(0, forge.made.issue(f"authority {number}", forge.made.p256(80 + number), chain[0], ca=True))
    longest = [forge.made.issue("leaf", forge.made.p256(90), chain[0]), *chain]
    assert len(forge.verify(longest).certificates) == 6
    chain.insert(0, forge.made.issue("one more", forge.made.p256(91), chain[0], ca=True))
    longer = [forge.made.issue("leaf", forge.made.p256(90), chain[0]), *chain]
    assert refusal(lambda: forge.verify(longer), "2 to 6 certificates") is Reason.ATTESTATION_INVALID


@pytest.mark.parametrize("which", ["leaf", "authority"])
def test_a_certificate_is_refused_before_and_after_its_time(forge: Forge, refusal: Refusal, which: str) -> None:
    now = forge.made.NOW
    second, skew = timedelta(seconds=1), timedelta(minutes=5)
    for times in ({"start": now + skew + second}, {"end": now - second}):
        chain = forge.chain(**{which: times})
        assert refusal(partial(forge.verify, chain), "is valid from") is Reason.ATTESTATION_INVALID
    for times in ({"start": now}, {"end": now}, {"start": now + second}, {"start": now + skew}):
        forge.verify(forge.chain(**{which: times}))


def test_a_link_that_names_another_issuer_is_refused(forge: Forge, refusal: Refusal) -> None:
    chain = forge.chain(leaf={"issuer_name": "somebody"})
    assert refusal(lambda: forge.verify(chain), "did not sign it") is Reason.ATTESTATION_INVALID


@pytest.mark.parametrize(
    ("changes", "saying"),
    [
        ({"authority": {"ca": False}}, "not an authority's"),
        ({"authority": {"constraints": False}}, "not an authority's"),
        ({"leaf": {"ca": True}}, "is an authority's"),
        ({"authority": {"extensions": [(x509.OCSPNoCheck(), True)]}}, "critical extension 1.3.6.1.5.5.7.48.1.5"),
        ({"leaf": {"extensions": [(x509.OCSPNoCheck(), True)]}}, "critical extension 1.3.6.1.5.5.7.48.1.5"),
    ],
    ids=["authority without the right", "authority without constraints", "leaf with the right", "critical", "leaf"],
)
def test_an_extension_that_denies_the_use_is_refused(
    forge: Forge, refusal: Refusal, changes: dict[str, Any], saying: str
) -> None:
    assert refusal(lambda: forge.verify(forge.chain(**changes)), saying) is Reason.ATTESTATION_INVALID


def test_an_extension_that_is_not_critical_is_not_judged(forge: Forge) -> None:
    forge.verify(forge.chain(leaf={"extensions": [(x509.OCSPNoCheck(), False)]}))


def test_a_key_is_used_for_what_its_certificate_allows(forge: Forge, refusal: Refusal) -> None:
    usage = forge.made.usage
    signer, certifier = usage(digital_signature=True), usage(key_cert_sign=True)
    chain = forge.chain(authority={"key_usage": signer})
    assert refusal(lambda: forge.verify(chain), "does not allow signing certificates") is Reason.ATTESTATION_INVALID
    chain = forge.chain(leaf={"key_usage": certifier})
    assert refusal(lambda: forge.verify(chain), "does not allow signatures") is Reason.ATTESTATION_INVALID


def test_a_key_for_one_named_use_does_not_attest(forge: Forge, refusal: Refusal) -> None:
    for critical in (False, True):
        named = x509.ExtendedKeyUsage([x509.ObjectIdentifier("1.3.6.1.5.5.7.3.1")])
        chain = forge.chain(leaf={"extensions": [(named, critical)]})
        assert refusal(partial(forge.verify, chain)) is Reason.ATTESTATION_INVALID


def test_no_more_authorities_stand_below_one_than_it_allows(forge: Forge, refusal: Refusal) -> None:
    issue, key = forge.made.issue, forge.made.p256
    for allowed, lower in ((0, False), (1, True)):
        upper = issue("upper", key(40), forge.root, ca=True, path_length=allowed)
        middle = issue("lower", key(41), upper, ca=True, path_length=0)
        chain = [issue("leaf", key(42), middle), middle, upper, forge.root]
        if lower:
            forge.verify(chain)
        else:
            assert refusal(partial(forge.verify, chain), "more authorities") is Reason.ATTESTATION_INVALID


def test_the_scheme_is_the_vendors_and_not_the_certificates(forge: Forge, refusal: Refusal) -> None:
    weaker = forge.chain(leaf={"digest": hashes.SHA384()})
    assert refusal(lambda: forge.verify(weaker), "from its vendor's, ECDSA on P-256") is Reason.ATTESTATION_INVALID
    assert refusal(lambda: forge.verify(forge.chain(), scheme=ECDSA_P384)) is Reason.ATTESTATION_INVALID
    key = ec.derive_private_key(5, ec.SECP384R1())
    middle = forge.made.issue("authority", key, forge.root, ca=True)
    other_curve = [forge.made.issue("leaf", forge.made.p256(5), middle, digest=hashes.SHA256()), middle, forge.root]
    assert refusal(lambda: forge.verify(other_curve), "is not on secp256r1") is Reason.ATTESTATION_INVALID


def test_each_scheme_refuses_keys_of_another_kind(self_made: ModuleType, refusal: Refusal) -> None:
    made = self_made.authority
    keys = {"p256": made.p256(1), "p384": made.p384(1), "rsa": made.rsa_key(0)}
    for scheme, own in ((ECDSA_P256, "p256"), (ECDSA_P384, "p384"), (RSA_PSS, "rsa")):
        for name, key in keys.items():
            signature = made.sign(key, b"message")
            if name == own:
                scheme.verify(key.public_key(), signature, b"message", "it")
                assert refusal(partial(scheme.verify, key.public_key(), signature, b"other", "it"))
            else:
                assert refusal(partial(scheme.verify, key.public_key(), signature, b"message", "it"))


def test_the_salt_of_a_signature_has_the_vendors_length(self_made: ModuleType, refusal: Refusal) -> None:
    key: rsa.RSAPrivateKey = self_made.authority.rsa_key(0)
    padding = self_made.authority.padding
    shorter = key.sign(b"message", padding.PSS(padding.MGF1(hashes.SHA384()), 20), hashes.SHA384())
    assert refusal(lambda: RSA_PSS.verify(key.public_key(), shorter, b"message", "it")) is Reason.ATTESTATION_INVALID


def test_a_certificate_numbered_zero_is_read_without_a_warning(forge: Forge) -> None:
    leaf, middle, root = forge.chain(leaf={"serial": 1})
    version = b"\xa0\x03\x02\x01\x02"
    zero = forge.made.signed_again(leaf, middle, version + b"\x02\x01\x01", version + b"\x02\x01\x00")
    negative = forge.made.signed_again(leaf, middle, version + b"\x02\x01\x01", version + b"\x02\x01\x80")
    assert forge.verify([zero, middle, root]).leaf.serial == 0
    assert forge.verify([negative, middle, root]).leaf.serial == -128


def test_a_signed_certificate_that_does_not_decode_is_refused(forge: Forge) -> None:
    leaf, middle, root = forge.chain()

    def altered(old: bytes, new: bytes) -> list[Any]:
        return [forge.made.signed_again(leaf, middle, old, new), middle, root]

    date = forge.made.END.strftime("%y%m%d%H%M%SZ").encode()
    curve = bytes.fromhex("2a8648ce3d030107")
    subject = b"leaf"
    for old, new in (
        (date, b"31993" + date[5:]),
        (b"\x04\x02\x30\x00", b"\x04\x02\x31\x00"),
        (curve, curve[:-1] + b"\x63"),
        (subject, b"\xff" * 4),
    ):
        with pytest.raises(MalformedMessage, match="does not decode"):
            forge.verify(altered(old, new))


def test_every_value_of_a_certificate_may_be_anything_once_it_is_signed(forge: Forge) -> None:
    policy = x509.NameConstraints([x509.DNSName("a"), x509.IPAddress(IPv4Network("10.0.0.0/8"))], None)
    names = x509.SubjectAlternativeName([x509.DNSName("b"), x509.RFC822Name("c@d")])
    leaf, middle, root = forge.chain(leaf={"extensions": [(policy, False), (names, False)]})
    message, algorithm, _ = only(leaf.der, SEQUENCE).children()
    roots = frozenset({hashlib.sha256(root.der).digest()})
    (tree,) = forge.mutations.tree_of(message.encoded)
    refused, tried = 0, 0
    for altered in forge.mutations.altered(tree):
        tried += 1
        chain = [forge.mutations.signed(middle, altered, algorithm.encoded), middle.der, root.der]
        try:
            verified = verify_chain(chain, roots=roots, scheme=ECDSA_P256, now=forge.made.NOW)
        except PeerError:
            refused += 1
        else:
            verified.leaf.vendor_extension("1.2.3")
    assert tried > 900
    assert tried > refused > tried // 3


def test_every_value_of_a_revocation_list_may_be_anything_once_it_is_signed(forge: Forge) -> None:
    leaf, middle, _ = forge.verified().certificates
    signer = forge.chain()[1]
    listed = forge.made.revocation_list(signer, [leaf.serial, 77])
    message, algorithm, _ = only(listed, SEQUENCE).children()
    (tree,) = forge.mutations.tree_of(message.encoded)
    outcomes = {"PeerMisbehaved": 0, "MalformedMessage": 0, "": 0}
    for altered in forge.mutations.altered(tree):
        changed = forge.mutations.signed(signer, altered, algorithm.encoded)
        try:
            check_not_revoked([leaf], changed, issuer=middle, scheme=ECDSA_P256, now=forge.made.NOW)
        except PeerError as error:
            outcomes[type(error).__name__] += 1
        else:
            outcomes[""] += 1
    assert all(outcomes.values())


def test_many_values_in_a_row_are_refused_before_they_are_taken_apart(forge: Forge, refusal: Refusal) -> None:
    """A list of a megabyte with nothing but empty values took seconds, before its signature was checked."""
    der, issuer = forge.made.der, forge.verified().certificates[1]
    listed = der(0x30, der(0x30, b"\x05\0" * 520_000), der(0x30), der(3, b"\0"))
    check = partial(check_not_revoked, [], listed, issuer=issuer, scheme=ECDSA_P256, now=forge.made.NOW)
    started = time.process_time()
    assert refusal(check, "consecutive DER values") is Reason.LENGTH_OVER_LIMIT
    assert time.process_time() - started < 1
    assert len(elements(b"\x05\0" * MAXIMUM_ELEMENTS)) == MAXIMUM_ELEMENTS
    with pytest.raises(MalformedMessage, match="more than 64"):
        elements(b"\x05\0" * (MAXIMUM_ELEMENTS + 1))


def test_what_is_no_certificate_is_malformed(forge: Forge, refusal: Refusal) -> None:
    leaf, middle, root = (issued.der for issued in forge.chain())
    roots = frozenset({hashlib.sha256(root).digest()})
    der, parts = forge.made.der, only(leaf, SEQUENCE).children()
    version_1 = der(0x30, b"".join(field.encoded for field in parts[0].children()[1:]))
    forms = [
        b"",
        b"0",
        b"\x30\x00",
        leaf[:-1],
        leaf + b"\0",
        leaf + b"\5\0",
        b"\x31" + leaf[1:],
        b"\x30\x84" + bytes(9),
    ]
    forms += [der(0x30, content, parts[1].encoded, parts[2].encoded) for content in (b"\x30\0", b"\5\0", version_1)]
    for wrong in forms:
        for chain in ([wrong, middle, root], [leaf, wrong, root]):
            with pytest.raises(MalformedMessage):
                verify_chain(chain, roots=roots, scheme=ECDSA_P256, now=forge.made.NOW)
    assert refusal(lambda: forge.verify([])) is Reason.ATTESTATION_INVALID
    with pytest.raises(MalformedMessage) as caught:
        verify_chain([bytes(8193), middle, root], roots=roots, scheme=ECDSA_P256, now=forge.made.NOW)
    assert caught.value.reason is Reason.LENGTH_OVER_LIMIT


def test_every_byte_of_a_certificate_matters(forge: Forge) -> None:
    leaf, middle, root = forge.chain()
    for position in range(len(leaf.der)):
        for bit in (0, position % 7 + 1):
            changed = bytearray(leaf.der)
            changed[position] ^= 1 << bit
            altered = type(leaf)(leaf.name, bytes(changed), leaf.key, leaf.serial)
            with pytest.raises((MalformedMessage, PeerMisbehaved)):
                pytest.fail(f"bit {bit} of byte {position} was ignored: {forge.verify([altered, middle, root])}")


def test_what_is_signed_has_one_frame(forge: Forge) -> None:
    content, algorithm, signature = (b"\x30\x03\x02\x01\x05", b"\x30\x00", b"\x03\x03\x00ab")
    assert read_signed(forge.made.der(0x30, content, algorithm, signature)).signature == b"ab"
    frames = {
        "a part less": (content, algorithm),
        "a part more": (content, algorithm, signature, b"\5\0"),
        "bits left over": (content, algorithm, b"\x03\x03\x01ab"),
        "an empty signature": (content, algorithm, b"\x03\x00"),
        "a string for a signature": (content, algorithm, b"\x04\x03\x00ab"),
        "a set for an algorithm": (content, b"\x31\x00", signature),
        "a set for the content": (b"\x31" + content[1:], algorithm, signature),
    }
    for name, parts in frames.items():
        with pytest.raises(MalformedMessage):
            pytest.fail(f"{name}: {read_signed(forge.made.der(0x30, *parts))}")


def test_a_certificate_that_states_two_algorithms_is_malformed(forge: Forge) -> None:
    leaf, middle, root = forge.chain()
    inner = b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02"
    first, _, second = leaf.der.rpartition(inner)
    leaf = type(leaf)(leaf.name, first + inner[:-1] + b"\x03" + second, leaf.key, leaf.serial)
    with pytest.raises(MalformedMessage, match="two different signature algorithms"):
        forge.verify([leaf, middle, root])


# --- PEM --------------------------------------------------------------------------------------------------------------


def test_pem_has_one_form(forge: Forge, self_made: ModuleType) -> None:
    chain = forge.chain()
    text: bytes = self_made.authority.pem(*chain)
    encoded = [issued.der for issued in chain]
    assert read_pem_chain(text) == encoded
    assert read_pem_chain(text[:-1]) == encoded
    forms = {
        "a newline more": text + b"\n",
        "a newline in front": b"\n" + text,
        "carriage returns": text.replace(b"\n", b"\r\n"),
        "words between": text.replace(b"-----\n-----", b"-----\nnote\n-----"),
        "longer lines": text.replace(b"\n", b"", 2).replace(b"CERTIFICATE-----", b"CERTIFICATE-----\n", 1),
        "another kind": text.replace(b"CERTIFICATE", b"CERTIFICATES"),
        "a terminator": text + b"\0",
        "no end": text[:-10],
    }
    for name, form in forms.items():
        with pytest.raises(MalformedMessage):
            pytest.fail(f"{name}: {len(read_pem_chain(form))} certificates were read")


def test_base64_whose_last_bits_are_not_zero_is_refused() -> None:
    block = b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----\n"
    assert read_pem_chain(block % base64.b64encode(b"abcd")) == [b"abcd"]
    for form in (b"YWJjZB==", b"YWJjZA=", b"YWJjZA", b"YWJj=ZA=", b"====", b"A"):
        with pytest.raises(MalformedMessage):
            read_pem_chain(block % form)
    for empty in (b"", b"\n"):
        with pytest.raises(MalformedMessage):
            read_pem_chain(empty)


# --- DER --------------------------------------------------------------------------------------------------------------


def test_der_lengths_are_minimal() -> None:
    assert only(b"\x04\x81\x80" + bytes(128), 4).content == bytes(128)
    longer = {
        b"\x04\x81\x01a": "short form fits",
        b"\x04\x82\x00\x80" + bytes(128): "one byte fits",
        b"\x04\x80aa\0\0": "indefinite",
        b"\x04\x84\0\0\0\1a": "four bytes",
        b"\x04\x02a": "ends early",
        b"\x04": "no length",
        b"\x04\x82\x01": "half a length",
    }
    for encoded, why in longer.items():
        with pytest.raises(MalformedMessage):
            pytest.fail(f"{why}: {elements(encoded)}")


def test_small_integers_are_minimal_and_in_range() -> None:
    assert [small_integer(bytes.fromhex(text), 255) for text in ("020100", "02017f", "020200ff")] == [0, 127, 255]
    for text in ("0200", "0201ff", "02020001", "02020100", "030101", "02010100", "0203000001"):
        with pytest.raises(MalformedMessage):
            small_integer(bytes.fromhex(text), 255)


# --- Revocation lists -------------------------------------------------------------------------------------------------


def check(forge: Forge, encoded: bytes, **changes: Any) -> Any:
    leaf, authority, _ = forge.verified().certificates
    arguments: dict[str, Any] = {"issuer": authority, "scheme": ECDSA_P256, "now": forge.made.NOW} | changes
    return check_not_revoked([leaf], encoded, **arguments)


def test_a_list_that_does_not_name_the_certificate_speaks_until_its_next_update(forge: Forge) -> None:
    middle = forge.chain()[1]
    end = forge.made.NOW + timedelta(hours=3)
    assert check(forge, forge.made.revocation_list(middle, [1, 2, 3], end=end))[1:] == (forge.made.START, end)


def test_a_revoked_certificate_is_refused(forge: Forge, refusal: Refusal) -> None:
    leaf, middle, _ = forge.chain()
    encoded = forge.made.revocation_list(middle, [leaf.serial])
    assert refusal(lambda: check(forge, encoded), "has revoked") is Reason.ATTESTATION_INVALID


def test_an_authority_that_may_not_sign_lists_revokes_nothing(forge: Forge, refusal: Refusal) -> None:
    chain = forge.chain(authority={"key_usage": forge.made.usage(key_cert_sign=True, crl_sign=False)})
    leaf, authority, _ = forge.verify(chain).certificates
    encoded = forge.made.revocation_list(chain[1])
    arguments: dict[str, Any] = {"issuer": authority, "scheme": ECDSA_P256, "now": forge.made.NOW}
    assert refusal(lambda: check_not_revoked([leaf], encoded, **arguments), "lists") is Reason.ATTESTATION_INVALID


def test_a_list_of_another_time_is_stale(forge: Forge, refusal: Refusal) -> None:
    middle, second, skew = forge.chain()[1], timedelta(seconds=1), timedelta(minutes=5)
    check(forge, forge.made.revocation_list(middle, start=forge.made.NOW + skew))
    for times in ({"start": forge.made.NOW + skew + second}, {"end": forge.made.NOW - second}):
        encoded = forge.made.revocation_list(middle, **times)
        assert refusal(partial(check, forge, encoded), "fetch") is Reason.COLLATERAL_STALE


def test_a_list_of_another_issuer_is_refused(forge: Forge, refusal: Refusal) -> None:
    middle = forge.chain()[1]
    by_another_key = forge.made.revocation_list(forge.made.issue("authority", forge.made.p256(50)))
    by_another_name = forge.made.revocation_list(middle, issuer_name="somebody")
    assert refusal(lambda: check(forge, by_another_key), "does not verify") is Reason.ATTESTATION_INVALID
    assert refusal(lambda: check(forge, by_another_name), "was not issued by") is Reason.ATTESTATION_INVALID


def test_a_partial_list_is_refused(forge: Forge, refusal: Refusal) -> None:
    encoded = forge.made.revocation_list(forge.chain()[1], critical=True)
    assert refusal(lambda: check(forge, encoded), "critical") is Reason.ATTESTATION_INVALID


def test_a_list_has_the_fields_of_its_version(forge: Forge, refusal: Refusal) -> None:
    """Sign lists that no builder makes, with the issuer's own key."""
    middle = forge.chain()[1]
    signed = read_signed(forge.made.revocation_list(middle))
    version, inner, issuer, start, end, *rest = (field.encoded for field in signed.fields)
    der, other = forge.made.der, inner[:-1] + b"\x03"

    def encoded(*fields: bytes, outer: bytes = signed.algorithm) -> bytes:
        content = der(0x30, *fields)
        listed: bytes = der(0x30, content, outer, der(3, b"\0", forge.made.sign(middle.key, content)))
        return listed

    assert check(forge, encoded(version, inner, issuer, start, end, *rest)).until == forge.made.END
    forms = {
        "no next update": encoded(version, inner, issuer, start),
        "no version": encoded(inner, issuer, start, end),
        "two algorithms": encoded(version, inner, issuer, start, end, outer=other),
        "nothing": encoded(),
        "an update that is no time": encoded(version, inner, issuer, b"\5\0", end),
    }
    for name, form in forms.items():
        with pytest.raises(MalformedMessage):
            pytest.fail(f"{name}: {check(forge, form)}")
    form = encoded(version, other, issuer, start, end, *rest, outer=other)
    assert refusal(lambda: check(forge, form), "a different signature algorithm") is Reason.ATTESTATION_INVALID


def test_every_byte_of_a_list_matters(forge: Forge) -> None:
    encoded = forge.made.revocation_list(forge.chain()[1], [5])
    for position in range(len(encoded)):
        changed = bytearray(encoded)
        changed[position] ^= 1 << position % 8
        with pytest.raises((MalformedMessage, PeerMisbehaved)):
            pytest.fail(f"byte {position} was ignored: {check(forge, bytes(changed))}")
    for length in range(0, len(encoded), 7):
        with pytest.raises(PeerError):
            check(forge, encoded[:length])
    with pytest.raises(MalformedMessage) as caught:
        check(forge, bytes((1 << 20) + 1))
    assert caught.value.reason is Reason.LENGTH_OVER_LIMIT
