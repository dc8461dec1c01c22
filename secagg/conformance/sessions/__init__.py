"""The conduct kit for secure sums: laws that every ``ServerSession`` and ``ClientSession`` keeps.

check_sessions(SessionCandidate(entry=find("enclave"), settings=..., subject=..., clients=..., payload=..., ...))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from secagg.errors import ContractViolation

from . import calls, messages, silence
from .rehearsal import MODEL, SessionCandidate

LAWS: Final[Mapping[str, Callable[[SessionCandidate], None]]] = {
    law.__name__: law
    for law in (
        messages.sum_of_all,
        messages.same_bytes_again,
        messages.second_answer,
        messages.any_order,
        messages.other_stage,
        messages.late_answer,
        messages.altered_answer,
        messages.altered_message,
        messages.another_sender,
        messages.another_session,
        messages.from_many_threads,
        messages.one_fault_for_each_reason,
        calls.strangers,
        calls.wrong_order,
        calls.after_the_end,
        calls.aborted,
        calls.too_few,
        calls.turnouts,
        calls.dropped,
        calls.not_invited,
        calls.another_subject,
        calls.update_once,
        calls.side_by_side,
        calls.restored,
        calls.suspended,
        silence.silence,
    )
}
"""Each law by its name; its docstring says what it holds a protocol to."""


def check_sessions(candidate: SessionCandidate) -> None:
    """Hold a protocol to all laws."""
    for name in LAWS:
        check_law(name, candidate)


def check_law(name: str, candidate: SessionCandidate) -> None:
    """Hold a protocol to one law; an error of the protocol breaks it as well."""
    try:
        LAWS[name](candidate)
    except Exception as error:
        raise ContractViolation(f"{candidate.entry.name} breaks {name}: {error}") from error


__all__ = ["LAWS", "MODEL", "SessionCandidate", "check_law", "check_sessions"]
