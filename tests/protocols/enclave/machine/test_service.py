"""The service of an enclave: its self-test, where it listens, and sessions of every form behind the filter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InternalError
from secagg.protocols.enclave.machine import self_test
from secagg.protocols.enclave.machine.serving import serve_at
from secagg.protocols.enclave.remote_enclave import RemoteEnclave
from secagg.protocols.enclave.trusted.enclave import Enclave
from tests.harness.enclave_buffers import EnclaveSetup
from tests.harness.enclave_forms import released_by, released_here, require_same, setups
from tests.harness.planted import always

if sys.platform == "win32":
    pytest.skip("an enclave's machine runs Linux", allow_module_level=True)

PATIENCE = 30


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Serve in one process for all sessions, which therefore load and open nothing that another has not."""
    path = tmp_path_factory.mktemp("enclave") / "s"
    command = [sys.executable, "-m", "secagg.protocols.enclave.machine", "--listen", f"unix:{path}"]
    with subprocess.Popen([*command, "--evidence", "simulated"], stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        assert "ready at" in process.stdout.readline()
        yield path
        process.terminate()
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("setup", [pytest.param(setup, id=name) for name, setup in setups()])
def test_a_session_of_every_form_runs_behind_the_filter(served: Path, setup: EnclaveSetup) -> None:
    with RemoteEnclave(f"unix:{served}", timeout=PATIENCE) as remote:
        require_same(setup, released_by(remote, setup), released_here(setup))


def test_the_self_test_starts_every_kind_of_epoch() -> None:
    tried = list(self_test.configurations())
    for setup in dict(setups()).values():
        assert any(each.suite is setup.suite and each.accumulation is setup.accumulation for each in tried)
    assert {each.form for each in tried} == {setup.form for setup in dict(setups()).values()}
    assert any(each.noise for each in tried)
    assert any(each.max_norms for each in tried)
    assert any(each.has_rows for each in tried)


@pytest.mark.parametrize(
    ("name", "broken", "sentence"),
    [
        ("sample", lambda *_: np.zeros(64), "noise"),
        ("Enclave", None, "without uploads was released"),
        ("message_kind", always(None), "not refused"),
    ],
)
def test_nothing_is_served_where_the_self_test_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, broken: Any, sentence: str
) -> None:
    if broken is None:
        monkeypatch.setattr(Enclave, "release", always(b""))
    else:
        monkeypatch.setattr(self_test, name, broken)
    with pytest.raises(InternalError, match=sentence):
        serve_at(f"unix:{tmp_path / 's'}", evidence="simulated", coins=SystemCoins())
    assert not (tmp_path / "s").exists()
