"""The plug-in without Flower installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import secagg.flower

PROGRAM = """
import sys
sys.modules["flwr"] = None
from secagg.errors import InvalidParameters
import secagg.flower
from secagg.platforms import settings
import secagg.session.identities
try:
    secagg.flower.{name}
except InvalidParameters as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["SecAggMod", "SecAggGrid", "SecAggFitWorkflow"])
def test_the_extra_is_named_where_flower_is_absent(name: str) -> None:
    program = PROGRAM.format(name=name)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == f"{name} needs flwr; install it with: pip install '.[flower]' in a checkout\n"


def test_settings_need_no_flower() -> None:
    program = 'import sys; sys.modules["flwr"] = None; from secagg.flower import SecAggSettings; SecAggSettings()'
    subprocess.run([sys.executable, "-c", program], check=True)  # noqa: S603


def test_no_other_name_is_there() -> None:
    with pytest.raises(AttributeError, match="absent"):
        getattr(secagg.flower, "absent")  # noqa: B009
