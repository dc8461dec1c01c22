"""A federation as it is deployed: SuperLink and SuperNodes as processes, over TLS, with nodes that authenticate."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

pytestmark = pytest.mark.flower

NODES = 12
"""A full graph of twelve clients stands four that drop out in active mode, wherever they do."""
KILLED = {2: "OFFER", 5: "ADVERTISED_KEYS", 7: "TRAIN", 4: "UNMASKING_REQUEST"}


class Federation:
    """A SuperLink and its SuperNodes on loopback."""

    def __init__(self, place: Any, name: str) -> None:
        self.place = place
        self.name = name
        self.folder: Path = place.folder / name
        self.folder.mkdir()
        self.port = _free_port()
        self.nodes = list[subprocess.Popen[bytes]]()
        authority = _make_certificates(self.folder)
        place.start(
            f"{name}/superlink.log",
            "flower-superlink",
            *("--ssl-ca-certfile", str(self.folder / "ca.pem"), "--ssl-certfile", str(self.folder / "server.pem")),
            *("--ssl-keyfile", str(self.folder / "server.key"), "--enable-supernode-auth"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--disable-runtime-dependency-installation"),
        )
        home: Path = place.folder / "home"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{name}"\n\n[superlink.{name}]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{authority}"\n',
            encoding="utf-8",
        )
        _until(lambda: _listens(self.port))

    def register(self, numbers: Iterable[int]) -> None:
        """Make a key for each SuperNode and register it, all in one process of Flower's command line."""
        commands = [["supernode", "register", str(self._new_key(number)), self.name] for number in numbers]
        program = f"from flwr.cli.app import app\nfor command in {commands!r}: app(command, standalone_mode=False)"
        self.place.run(sys.executable, "-c", program, timeout=300)

    def _new_key(self, number: int) -> Path:
        key = ec.generate_private_key(ec.SECP384R1())
        private, public = self.folder / f"node-{number}.key", self.folder / f"node-{number}.pub"
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            )
        )
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        )
        return public

    def add(self, number: int, **node_config: str) -> None:
        """Start a SuperNode whose key is registered."""
        private = self.folder / f"node-{number}.key"
        config = {
            "secagg-identity": str(self.place.folder / "keys" / f"client-{number}.key"),
            "pid-file": str(self.folder / f"node-{number}.pid"),
            **node_config,
        }
        given = " ".join(f'{key}="{value}"' for key, value in config.items())
        process = self.place.start(
            f"{self.name}/node-{number}.log",
            "flower-supernode",
            *("--root-certificates", str(self.folder / "ca.pem"), "--superlink", f"127.0.0.1:{self.port}"),
            *("--auth-supernode-private-key", str(private), "--host", "127.0.0.1", "--port", str(_free_port())),
            *("--node-config", f"partition-id={number} num-partitions={NODES} {given}"),
        )
        (self.folder / f"node-{number}.pid").write_text(str(process.pid), encoding="utf-8")
        self.nodes.append(process)

    def run(self, app: Path, **run_config: Any) -> dict[str, Any]:
        """Run the app, and return what its server printed."""
        given = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in run_config.items())
        written = self.place.run("flwr", "run", str(app), self.name, "--stream", "-c", given, timeout=900)
        results = [line.partition("RESULT ")[2] for line in written.splitlines() if "RESULT " in line]
        assert results, f"{written[-3000:]}\n{(self.folder / 'superlink.log').read_text(encoding='utf-8')[-3000:]}"
        result: dict[str, Any] = json.loads(results[-1])
        return result

    def logs(self) -> str:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace") for path in self.folder.glob("node-*.log"))


@pytest.fixture(scope="module")
def federation(workplace: Any) -> Iterator[Federation]:
    made = Federation(workplace, "deployed")
    made.register(range(NODES))
    for number in range(NODES):
        made.add(number, **({"kill-at": KILLED[number]} if number in KILLED else {}))
    yield made
    workplace.end()


def test_supernodes_over_tls_are_killed_at_every_stage_and_the_others_finish(
    federation: Federation, app_folder: Callable[[str], Path], workplace: Any, lab: Any
) -> None:
    app, roster = app_folder("deployed"), str(workplace.folder / "keys" / "roster.json")
    result = federation.run(app, nodes=NODES, training_timeout=300.0, secagg_mode="active", secagg_roster=roster)
    assert "error" not in result, result
    _agrees(result, lab, [number for number in range(NODES) if number not in (2, 5, 7)])
    assert [stage[0] for stage in result["stages"]][3] == "consistency check"
    assert [stage[1:3] for stage in result["stages"]] == [[12, 11], [11, 10], [10, 9], [9, 9], [9, 8]]
    for number, node in enumerate(federation.nodes):
        assert node.poll() == (-9 if number in KILLED else None)


def _agrees(result: dict[str, Any], lab: Any, contributors: list[int]) -> None:
    due = lab.expected(contributors, 1, {})
    assert np.abs(np.array(result["layer"]) - due["layer"].ravel()[:1000]).max() < 3e-5
    assert result["steps"] == due["steps"]
    assert result["loss"] == pytest.approx(lab.mean_loss(contributors, {}), abs=1e-6)


def _make_certificates(folder: Path) -> Path:
    """Write an authority's certificate, and one for loopback."""
    now, names = dt.datetime.now(dt.UTC), dict[str, tuple[x509.Name, ec.EllipticCurvePrivateKey]]()
    for name in ("ca", "server"):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"secagg test {name}")])
        issuer, signer = names.get("ca", (subject, key))
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "ca", path_length=None), critical=True)
        )
        if name == "server":
            hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        if name == "ca":
            usage = x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                **dict.fromkeys(
                    (
                        "content_commitment",
                        "key_encipherment",
                        "data_encipherment",
                        "key_agreement",
                        "encipher_only",
                        "decipher_only",
                    ),
                    False,
                ),
            )
            builder = builder.add_extension(usage, critical=True)
        certificate = builder.sign(signer, hashes.SHA256())
        names[name] = (subject, key)
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{name}.key").write_bytes(private)
    return folder / "ca.pem"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)
