"""What a SuperNode's operator can and cannot enforce, tried in a federation of processes."""

from __future__ import annotations

import json
import shutil
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.harness.flower_federation import PATIENT, Federation

pytestmark = pytest.mark.flower
APPS = Path(__file__).resolve().parent / "apps"
REQUIRED, TRUSTED, ISOLATED = range(3)
"""A node that requires the mod, one that requires signed bundles, and one that runs its app in a separate process."""
ENTITY = "fpk_hospital"
SERVER = """
import json, time
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < 3:
        time.sleep(0.3)
    asked = [Message(RecordDict(), node, "query") for node in nodes]
    for reply in grid.send_and_receive(asked, timeout=60):
        said = reply.error.reason if reply.has_error() else list(reply.content)
        node = str(reply.metadata.src_node_id)
        print("RESULT", json.dumps({"node": node, "said": said}), flush=True)
"""
"""A server app that asks each node for its data in the clear."""
CLIENT = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from secagg.flower import SecAggMod
app = ClientApp(mods=[MODS])
@app.query()
def query(message, context):
    return Message(RecordDict({"data-of-the-node": ConfigRecord()}), reply_to=message)
"""
SHADOW = "class SecAggMod:\n    def __call__(self, message, context, call_next): return call_next(message, context)\n"
"""A package with the library's name whose mod does nothing."""


@pytest.fixture(scope="module")
def federation(workplace: Any) -> Iterator[Federation]:
    made = Federation(workplace, "nodes")
    made.register(range(3))
    made.add(REQUIRED, **{"secagg-required": True})
    made.add(TRUSTED, "--trusted-entities", str(trusted(made.folder)))
    secret, port = made.folder / "superexec.secret", workplace.free_port()
    secret.write_bytes(b"s" * 32)
    made.add(
        ISOLATED, "--isolation", "process", "--superexec-auth-secret-file", str(secret), port=port,
    )  # fmt: skip
    workplace.start(
        f"{made.name}/superexec.log",
        *(sys.executable, "-c", PATIENT, "flower-superexec", "--insecure"),
        *("--runtime-api-address", f"127.0.0.1:{port}", "--superexec-auth-secret-file", str(secret)),
    )
    yield made
    workplace.end()


def answers(federation: Federation, app: Path) -> list[Any]:
    """Return the nodes' answers to the server, by number."""
    said = dict[str, Any]()
    for result in federation.run(app):
        said[result["node"]] = result["said"]
    return [said[federation.identity(number)] for number in (REQUIRED, TRUSTED, ISOLATED)]


def bundle(folder: Path, mods: str = "SecAggMod()") -> Path:
    """Write an app."""
    app = folder / f"app{len(list(folder.iterdir()))}"
    shutil.copytree(APPS / "federated", app)
    (app / "federated" / "client_app.py").write_text(CLIENT.replace("MODS", mods), encoding="utf-8")
    (app / "federated" / "server_app.py").write_text(SERVER, encoding="utf-8")
    (app / "federated" / "__init__.py").touch()
    return app


def test_only_a_signature_binds_the_code_that_a_server_sends(federation: Federation, tmp_path: Path) -> None:
    """The mod reads ``secagg-required``, and the server sends the mod: against other code the key protects nobody."""
    required, signed, isolated = answers(federation, bundle(tmp_path))
    assert required == "secagg: this client left the round; code: terms"
    assert "could not be verified" in signed
    log = (federation.folder / f"node-{TRUSTED}.log").read_text(encoding="utf-8", errors="replace")
    assert "App verification is not supported by the connected SuperLink" in log
    assert isolated == ["data-of-the-node"]
    required, signed, isolated = answers(federation, bundle(tmp_path, mods=""))
    assert required == isolated == ["data-of-the-node"]
    assert "could not be verified" in signed
    # The bundle's own folder is searched first.
    app = bundle(tmp_path)
    (app / "secagg").mkdir()
    (app / "secagg" / "__init__.py").touch()
    (app / "secagg" / "flower.py").write_text(SHADOW, encoding="utf-8")
    assert answers(federation, app)[REQUIRED] == ["data-of-the-node"]


def trusted(folder: Path) -> Path:
    """Write a file of trusted entities with one key."""
    path = folder / "trusted.yaml"
    path.write_text(json.dumps({ENTITY: openssh(Ed25519PrivateKey.generate())}), encoding="utf-8")
    return path


def openssh(key: Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def test_a_signature_is_over_the_bundle_and_by_a_key_that_the_node_pins() -> None:
    """Run Flower's own check on a bundle signed like its hub's; it binds no version, so an older bundle passes too."""
    internal = pytest.importorskip("flwr.supernode.start_client_internal")
    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()

    def signed_bundle(content: bytes, signer: Ed25519PrivateKey, signed: bytes | None = None) -> SimpleNamespace:
        message = internal.create_message_to_sign(sha256(content if signed is None else signed).digest(), 1)
        signature = urlsafe_b64encode(signer.sign(message)).decode().rstrip("=")
        about = json.dumps({"signed_at": 1, "signature": signature})
        return SimpleNamespace(content=content, verifications={"valid_license": "Valid", ENTITY: about})

    pinned = {ENTITY: openssh(key)}
    assert internal._verify_fab(signed_bundle(b"app", key), pinned)  # noqa: SLF001 -- Flower has no public name for it
    assert internal._verify_fab(signed_bundle(b"an older app", key), pinned)  # noqa: SLF001 -- the same
    assert not internal._verify_fab(signed_bundle(b"app", other), pinned)  # noqa: SLF001 -- the same
    assert not internal._verify_fab(signed_bundle(b"other", key, signed=b"app"), pinned)  # noqa: SLF001 -- the same
    assert not internal._verify_fab(signed_bundle(b"app", key), {"fpk_other": openssh(key)})  # noqa: SLF001 -- the same
