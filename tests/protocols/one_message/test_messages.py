"""Messages: one encoding each, and the README has the tables that the declarations give."""

from __future__ import annotations

from pathlib import Path

import pytest

from secagg.declared import Field, Message, fixed, repeated, unsigned, variable
from secagg.errors import InvalidParameters
from secagg.protocols.one_message.configuration import EpochRecord, HolderKeys, Offer
from secagg.wire import Writer
from tests.harness.message_tables import table_of
from tests.harness.one_message_sums import MESSAGES

KINDS = (*MESSAGES, Offer, EpochRecord, HolderKeys)


@pytest.mark.parametrize("declared", KINDS)
def test_the_readme_has_the_table_of_every_message(declared: type[Message], repository: Path) -> None:
    text = (repository / "protocols/one_message/README.md").read_text(encoding="utf-8")
    assert f"### {declared.__name__} (kind {declared.kind.value})\n\n{table_of(declared)}" in text


@pytest.mark.parametrize(
    ("field", "value"),
    [(unsigned(1), 256), (fixed(2), b"abc"), (variable(2), b"abc"), (repeated(unsigned(1), 2), (1, 2, 3))],
)
def test_values_that_their_field_cannot_hold(field: Field, value: object) -> None:
    with pytest.raises(InvalidParameters):
        field.write(Writer(1), value)
