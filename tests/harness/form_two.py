"""Commands of secagg with a synthetic form 2 of pairwise masks, whose offers lack the standing.

``python -m tests.harness.form_two old contribute ...`` speaks form 2 and nothing else, as a client of an earlier
version does; ``new`` speaks forms 2 and 3, as the version after it. ``lacking`` registers the form in this process.
"""

from __future__ import annotations

import sys
from typing import Any

from secagg import wire


def register(which: str) -> None:
    """Let this process speak form 2; before anything else of secagg is imported."""
    is_old = which == "old"
    changes: dict[str, Any] = {"FORM": 2 if is_old else 3, "CHECKED_FORM": 2 if is_old else 3}
    changes |= {"FORMS": range(2, 3) if is_old else range(2, 4)}
    for name, value in changes.items():
        setattr(wire, name, value)
    lacking()


def lacking() -> dict[str, Any]:
    """Take the standing from offers of form 2, and return the fields as they were."""
    from secagg.declared import Field, fields_of  # noqa: PLC0415 -- after the forms are set
    from secagg.protocols.pairwise_mask.configuration import SessionConfiguration  # noqa: PLC0415
    from secagg.session.certificates import NO_STANDING  # noqa: PLC0415

    fields = fields_of(SessionConfiguration)
    before, whole = dict(fields), fields["standing"]
    if int(wire.FORM) == 2:
        del fields["standing"]
        return before

    def write(writer: Any, value: Any) -> None:
        if writer._parts[1] != b"\2":  # noqa: SLF001 -- the form, first of all
            whole.write(writer, value)

    def read(reader: Any, at: Any) -> Any:
        return NO_STANDING if at.before["message_form"] == 2 else whole.read(reader, at)

    fields["standing"] = Field(write, read, whole.row)
    return before


if __name__ == "__main__":
    register(sys.argv[1])
    from secagg.cli import main

    sys.exit(main(sys.argv[2:]))
