"""Platforms' kits that vouch for clients when an authority certifies their keys, and strangers with a kit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from secagg.cli import main
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.platforms.kits import load_kit, read_sites, require_vouched
from secagg.session.identities import Request, load_roster
from secagg.session.signing_keys import new_signing_key

NOW = datetime.now(UTC)
AUTHORITY = new_signing_key(SystemCoins())
ROOT_KEY, OTHER_KEY = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
RSA = rsa.generate_private_key(65537, 2048)


def certificate(
    names: str,
    public: rsa.RSAPublicKey | ec.EllipticCurvePublicKey,
    issuer: ec.EllipticCurvePrivateKey = ROOT_KEY,
    *,
    ca: bool = False,
    days: int = 30,
) -> x509.Certificate:
    named = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names.split(", ")])
    issuing = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a project")])
    made = x509.CertificateBuilder().subject_name(named).issuer_name(issuing).public_key(public).serial_number(7)
    made = made.not_valid_before(NOW - timedelta(days=60)).not_valid_after(NOW + timedelta(days=days))
    return made.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True).sign(
        issuer, hashes.SHA256()
    )


ROOT = certificate("a project", ROOT_KEY.public_key(), ca=True)


def site(folder: Path, name: str, shown: x509.Certificate | None = None) -> Path:
    """Write the folder of an NVFlare site."""
    kit = folder / name
    (kit / "startup").mkdir(parents=True)
    shown = shown or certificate(name, RSA.public_key())
    (kit / "startup" / "client.crt").write_bytes(shown.public_bytes(Encoding.PEM))
    key = RSA.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (kit / "startup" / "client.key").write_bytes(key)
    return kit


def request(client: int) -> Request:
    return Request.of(AUTHORITY.public_key, ClientId(client), new_signing_key(SystemCoins()))


def judged(asked: Request, line: str, sites: dict[int, str], root: x509.Certificate | None = ROOT) -> None:
    require_vouched(asked, line, sites, root, NOW)


def test_the_kit_of_a_site_vouches_for_its_number(tmp_path: Path) -> None:
    asked = request(3)
    line = load_kit(site(tmp_path, "site-3")).vouch(asked)
    judged(asked, line, {3: "site-3"})
    judged(asked, load_kit(tmp_path / "site-3" / "startup").vouch(asked), {3: "site-3"})


@pytest.mark.parametrize("form", [PrivateFormat.OpenSSH, PrivateFormat.PKCS8])
def test_a_supernodes_key_vouches_for_its_number(tmp_path: Path, form: PrivateFormat) -> None:
    key = ec.generate_private_key(ec.SECP384R1())
    (tmp_path / "node").write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
    named = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    (tmp_path / "sites").write_text(f"# of SuperNodes\n3 {named} node@a-hospital\n\n4 {named[:-1]}A\n")
    asked, sites = request(3), read_sites(tmp_path / "sites")
    line = load_kit(tmp_path / "node").vouch(asked)
    require_vouched(asked, line, sites, None, NOW)
    with pytest.raises(InvalidParameters, match="does not vouch for client 4"):
        require_vouched(request(4), load_kit(tmp_path / "node").vouch(request(4)), sites, None, NOW)


Changed = Callable[[Path, Request], tuple[Request, str, dict[int, str]]]


def another_number(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    """One kit vouches for one number."""
    other = replace(asked, client=ClientId(4))
    return other, load_kit(site(folder, "site-3")).vouch(other), {3: "site-3", 4: "site-4"}


def of_another_request(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    return asked, load_kit(site(folder, "site-3")).vouch(request(3)), {3: "site-3"}


def of_another_authority(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    line = load_kit(site(folder, "site-3")).vouch(asked)
    return replace(asked, authority=new_signing_key(SystemCoins()).public_key), line, {3: "site-3"}


def another_root(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    forged = certificate("site-3", RSA.public_key(), OTHER_KEY)
    return asked, load_kit(site(folder, "site-3", forged)).vouch(asked), {3: "site-3"}


def expired(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    old = certificate("site-3", RSA.public_key(), days=-1)
    return asked, load_kit(site(folder, "site-3", old)).vouch(asked), {3: "site-3"}


def an_issuer(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    between = certificate("site-3", RSA.public_key(), ca=True)
    return asked, load_kit(site(folder, "site-3", between)).vouch(asked), {3: "site-3"}


def of_two_names(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    shown = certificate("site-3, site-4", RSA.public_key())
    return asked, load_kit(site(folder, "site-3", shown)).vouch(asked), {3: "site-3"}


def a_stolen_certificate(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    """Sites' certificates are public: every connection reveals them."""
    kit = load_kit(site(folder, "site-3"))
    thief = replace(kit, key=rsa.generate_private_key(65537, 2048))
    return asked, thief.vouch(asked), {3: "site-3"}


def of_another_version(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    kit = load_kit(site(folder, "site-3"))
    later = kit.certificate.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020105"), 1)
    return asked, replace(kit, certificate=later).vouch(asked), {3: "site-3"}


def not_listed(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    return asked, load_kit(site(folder, "site-3")).vouch(asked), {4: "site-3"}


def nothing(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    del folder
    return asked, "", {3: "site-3"}


def no_certificate(folder: Path, asked: Request) -> tuple[Request, str, dict[int, str]]:
    kit = load_kit(site(folder, "site-3"))
    return asked, replace(kit, certificate=b"").vouch(asked), {3: "site-3"}


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (another_number, "belongs to site-3, but the number to site-4"),
        (of_another_request, "signature or certificate is wrong"),
        (of_another_authority, "signature or certificate is wrong"),
        (another_root, "signature or certificate is wrong"),
        (expired, "the kit's certificate is valid from .* to"),
        (an_issuer, "the kit's certificate may issue others"),
        (of_two_names, "signature or certificate is wrong"),
        (of_another_version, "signature or certificate is wrong"),
        (a_stolen_certificate, "no certificate of its key"),
        (no_certificate, "no certificate of its key"),
        (not_listed, "the list of sites has no such number"),
        (nothing, "came without a kit"),
    ],
)
def test_nobody_is_enrolled_by_anothers_kit(tmp_path: Path, changed: Changed, sentence: str) -> None:
    asked, line, sites = changed(tmp_path, request(3))
    with pytest.raises(InvalidParameters, match=rf"does not vouch for client {asked.client.value}: .*{sentence}"):
        judged(asked, line, sites)


def test_a_damaged_line_vouches_for_nobody(tmp_path: Path) -> None:
    asked = request(3)
    line = load_kit(site(tmp_path, "site-3")).vouch(asked)
    for at in range(0, len(line) - 1, 97):
        damaged = line[:at] + ("0" if line[at] != "0" else "1") + line[at + 1 :]
        with pytest.raises(InvalidParameters, match="does not vouch"):
            judged(asked, damaged, {3: "site-3"})


@pytest.mark.parametrize(
    ("root", "sentence"),
    [
        (certificate("a project", ROOT_KEY.public_key(), ca=True, days=-1), "the root's certificate is valid from"),
        (certificate("a project", ROOT_KEY.public_key()), "the root's certificate may not issue others"),
        (None, "name the root of the NVFlare project with --root"),
    ],
)
def test_a_root_that_may_issue_no_kit_vouches_for_nobody(
    tmp_path: Path, root: x509.Certificate | None, sentence: str
) -> None:
    asked = request(3)
    with pytest.raises(InvalidParameters, match=sentence):
        judged(asked, load_kit(site(tmp_path, "site-3")).vouch(asked), {3: "site-3"}, root)


@pytest.mark.parametrize(
    "text", ["3 site-3\n3 site-4\n", "3 site-3\n4 site-3\n", "site-3 3\n", "3\n", "\xff", "+3 site-3\n", "1_0 site-3\n"]
)
def test_a_list_that_gives_a_site_two_numbers_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "sites").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidParameters, match=r"lists a number or a site twice|is not a list of sites"):
        read_sites(tmp_path / "sites")


def test_what_is_no_kit_is_refused_before_a_key_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "key"
    made = ed25519.Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content in (b"", made):
        wrong.write_bytes(content)
        own = tmp_path / "me.key"
        command = ["keys", "new", "--client", "3", "--authority", AUTHORITY.public_key.hex(), "--out", str(own)]
        assert main([*command, "--kit", str(wrong)]) == 2
        assert "SuperNode's private key" in (said := capsys.readouterr().err) or "unsupported key" in said
        assert not own.exists()


def test_the_commands_enrol_the_sites_of_a_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    roster, requests, key = tmp_path / "roster.txt", tmp_path / "requests", tmp_path / "authority.key"
    requests.mkdir()
    (tmp_path / "rootCA.pem").write_bytes(ROOT.public_bytes(Encoding.PEM))
    (tmp_path / "sites").write_text("1 site-1\n2 site-2\n")
    assert main(["keys", "authority", "--out", str(key)]) == 0
    public = capsys.readouterr().out.split()[-1]

    def asks(number: int, kit: str) -> None:
        own = requests / f"{number}.key"
        command = ["keys", "new", "--client", str(number), "--authority", public, "--out", str(own)]
        assert main([*command, "--kit", str(tmp_path / kit)]) == 0

    for name in ("site-1", "site-2"):
        site(tmp_path, name)
        asks(int(name[-1]), name)
    sign = ["keys", "sign", str(requests), "--key", str(key), "--roster", str(roster)]
    vouched = [*sign, "--sites", str(tmp_path / "sites"), "--root", str(tmp_path / "rootCA.pem")]
    assert main([*sign, "--root", str(tmp_path / "rootCA.pem")]) == 2
    assert "set both" in capsys.readouterr().err
    # A third request, with site 1's kit, stops all of them.
    shutil.copytree(requests, tmp_path / "kept")
    asks(3, "site-1")
    assert main(vouched) == 2
    assert "does not vouch for client 3" in capsys.readouterr().err
    assert not roster.exists()
    (requests / "3.request").unlink()
    assert main(vouched) == 0
    assert "must not run the server" in capsys.readouterr().out
    assert {client.value for client in load_roster(roster).clients} == {1, 2}
    # A kit does not replace a live key: that takes the key itself, or --replace.
    (requests / "1.key").unlink()
    (requests / "2.request").unlink()
    asks(1, "site-1")
    assert main(vouched) == 2
    assert "has no proof by it" in capsys.readouterr().err
