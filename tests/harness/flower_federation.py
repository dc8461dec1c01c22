"""A deployed Flower federation: SuperLink and SuperNodes as processes, over TLS, with registered node keys.

One constant of Flower is raised: it gives an app's process 30 seconds to start, and then loses the message. A pause is
lowered: a SuperNode without a message polls again after 3 seconds.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PATIENT = """
import os, sys, time
from importlib.metadata import entry_points
from types import SimpleNamespace
from flwr.common import constant
from flwr.supernode import start_client_internal
pause = float(os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"])
start_client_internal.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, pause)))
constant.HEARTBEAT_DEFAULT_INTERVAL = 600
# What lets an app's token expire has copied it.
for name, module in list(sys.modules.items()):
    if "corestate" in name and hasattr(module, "HEARTBEAT_DEFAULT_INTERVAL"):
        module.HEARTBEAT_DEFAULT_INTERVAL = 600
sys.argv.pop(0)
(command,) = entry_points(group="console_scripts", name=sys.argv[0])
sys.exit(command.load()())
"""


class Federation:
    """A SuperLink and its SuperNodes on loopback."""

    def __init__(self, place: Any, name: str) -> None:
        self.place = place
        self.name = name
        self.folder: Path = place.folder / name
        self.folder.mkdir()
        self.port = place.free_port()
        self.nodes = dict[int, subprocess.Popen[bytes]]()
        self.removed = list[int]()
        authority = _make_certificates(self.folder)
        place.start(
            f"{name}/superlink.log",
            *(sys.executable, "-c", PATIENT, "flower-superlink"),
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
        until(lambda: _listens(self.port))

    def register(self, numbers: Iterable[int]) -> None:
        """Make and register a key for each SuperNode, in one process of Flower's command line."""
        self._command(*(["supernode", "register", str(self._new_key(number)), self.name] for number in numbers))

    def _command(self, *commands: list[str]) -> None:
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

    def add(self, number: int, *options: str, port: int = 0, **changes: str | bool) -> None:
        """Start a SuperNode with a registered key, these options and additional keys of its config."""
        private = self.folder / f"node-{number}.key"
        config = {
            "secagg-identity": str(self.place.folder / "keys" / f"client-{number}.key"),
            "secagg-modes": "semi_honest,active",
            "pid-file": str(self.folder / f"node-{number}.pid"),
            **changes,
        }
        given = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        process = self.place.start(
            f"{self.name}/node-{number}.log",
            *(sys.executable, "-c", PATIENT, "flower-supernode"),
            *("--root-certificates", str(self.folder / "ca.pem"), "--superlink", f"127.0.0.1:{self.port}"),
            *(
                "--auth-supernode-private-key",
                str(private),
                "--host",
                "127.0.0.1",
                "--port",
                str(port or self.place.free_port()),
                *options,
            ),
            *("--node-config", f"partition-id={number} num-partitions=24 {given}"),
        )
        (self.folder / f"node-{number}.pid").write_text(str(process.pid), encoding="utf-8")
        self.nodes[number] = process

    def remove(self, number: int) -> None:
        """Remove a SuperNode from the federation."""
        self._command(["supernode", "unregister", self.identity(number), self.name])
        self.removed.append(number)

    def identity(self, number: int) -> str:
        """Return Flower's number of a connected SuperNode."""
        found: list[str] = re.findall(r"SuperNode ID: ([0-9]+)", self._log(f"node-{number}.log"))
        assert found, self._log(f"node-{number}.log")[-2000:]
        return found[0]

    def _log(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8", errors="replace")

    def run(self, app: Path, **run_config: Any) -> list[dict[str, Any]]:
        """Run the app, and return what its server printed."""
        written = self._run(app, "--stream", **run_config)
        results = [json.loads(line.partition("RESULT ")[2]) for line in written.splitlines() if "RESULT " in line]
        assert results, f"{written[-3000:]}\n{self._log('superlink.log')[-3000:]}"
        return results

    def begin(self, app: Path, **run_config: Any) -> str:
        """Start the app, and return the number of the run."""
        found = re.search(r"run (\d+)", self._run(app, **run_config))
        assert found is not None
        return found[1]

    def runs(self) -> str:
        """Return what Flower's command reports about the last run."""
        said: str = self.place.run("flwr", "list", self.name, "--limit", "1", "--format", "json", timeout=300)
        return said

    def stop(self, run: str) -> None:
        """Stop a run, as its operator does."""
        self.place.run("flwr", "stop", run, self.name, timeout=300)

    def _run(self, app: Path, *options: str, **run_config: Any) -> str:
        given = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in run_config.items())
        written: str = self.place.run("flwr", "run", str(app), self.name, *options, "-c", given, timeout=900)
        return written


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


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(is_so: Callable[[], object], seconds: float = 60) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)


def counts(outcome: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the numbers of messages and answers of each stage of a round."""
    return [(stage["sent"], stage["received"]) for stage in outcome["stages"]]
