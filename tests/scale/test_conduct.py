"""Sessions whose uploads others add keep the laws of sessions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from secagg.conformance.sessions import LAWS, check_law
from secagg.contract.pieces import Cut, Retractable
from secagg.crypto.entropy import SystemCoins
from secagg.scale.spread import SpreadSettings, SpreadSum
from secagg.scale.workers import InProcess
from tests.harness.session_worlds import SETTINGS, candidate_of

SPREAD = tuple(
    name for name in SETTINGS if name.startswith(("pairwise", "enclave", "one message")) and "buffer" not in name
)


ABANDONS = {"another_session", "restored"}
"""Laws that leave a session without ending it."""


def adding(folder: Path, cut: Cut) -> Retractable:
    return SpreadSum(cut, InProcess(), SpreadSettings(storage=str(folder), clients_in_a_batch=2), coins=SystemCoins())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", SPREAD)
def test_a_protocol_whose_uploads_others_add_keeps_a_law(name: str, law: str, tmp_path: Path) -> None:
    candidate = candidate_of(name)
    simulate: Any = candidate.entry.simulate
    entry = replace(candidate.entry, simulate=partial(simulate, adding=partial(adding, tmp_path)), restore=None)
    check_law(law, replace(candidate, entry=entry))
    assert law in ABANDONS or not list(tmp_path.iterdir())
