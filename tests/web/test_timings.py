"""Times of a client with a million values in Chromium, and their floor, WebCrypto's AES in the same run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from secagg.protocols.one_message.parameters import Values
from secagg.protocols.one_message.session import choose_committee, plan

pytestmark = pytest.mark.web
VALUES, CLIENTS = 10**6, 100
MOST_FLOORS = 20
"""Far above the measured times, so that a busy machine passes, but a loop with BigInt does not."""


def test_a_client_of_a_million_values(
    repository: Path, browser: Any, files: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    parameters = plan([Values(VALUES, 23)], CLIENTS, choose_committee(4, 1))
    planned = {
        "degree": parameters.degree,
        "modulusBits": parameters.modulus_bits,
        "guardBits": parameters.guard_bits,
        "droppedBits": parameters.dropped_bits,
        "capacity": CLIENTS,
        "ringBits": 23,
    }
    vector = json.loads((repository / "tests/vectors/one_message/semi_honest.json").read_text())
    files.pages["/timings"] = (
        '<!doctype html><script type="module">'
        'import { times } from "/clients/web/tests/timings.js"; window.times = times;</script>'
    )
    tab = browser.new_page()
    tab.goto(f"{files.url}/timings")
    tab.wait_for_function("() => Boolean(window.times)")
    found: dict[str, float] = tab.evaluate(
        "([offer, planned]) => window.times(offer, planned)", [vector["messages"]["offer"], planned]
    )
    load = round(os.getloadavg()[0] / (os.cpu_count() or 1), 1)
    figures = {
        "chromium": browser.version,
        "load a core": load,
        **{name: round(value, 1) for name, value in found.items()},
    }
    figures["pairwise / floor"] = round(found["pairwise"] / found["floor"], 2)
    figures["one message / floor"] = round(found["oneMessage"] / found["floor"], 2)
    (repository / "build").mkdir(exist_ok=True)
    (repository / "build" / "web.json").write_text(json.dumps(figures, indent=1) + "\n")
    with capsys.disabled():
        sys.stdout.write(f"\n{json.dumps(figures)}")
    assert found["pairwise"] < MOST_FLOORS * found["floor"]
    assert found["oneMessage"] < MOST_FLOORS * found["floor"]
