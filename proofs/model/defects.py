"""Defects to plant into the library, one at a time, so that a run which finds nothing is known to look.

Each replaces one function of the library, for as long as a case runs, by what somebody might have written instead. The
last ones are no defects of the client: they are parameters that a client refuses, and modes for another adversary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from secagg.protocols.pairwise_mask import (
    client,
    member,
    round2_masked_input,
    round3_consistency_check,
    round4_unmasking,
)
from secagg.protocols.pairwise_mask.configuration import SessionConfiguration
from secagg.protocols.pairwise_mask.transitions import ClientState
from secagg.session.certificates import Authority, Certificate, VerifiedIdentity
from secagg.wire import MessageKind, message_kind

Replacement = tuple[object, str, object]
_AWAITING = {
    MessageKind.SURVIVOR_SET: ClientState.AWAITING_SURVIVOR_SET,
    MessageKind.UNMASKING_REQUEST: ClientState.AWAITING_UNMASKING_REQUEST,
}
ANSWERED_AGAIN = frozenset(_AWAITING)


def _nothing(*_: object, **__: object) -> None:
    """Check nothing."""


def _receive_again(original: Callable[..., list[bytes]]) -> Callable[..., list[bytes]]:
    def receive(self: Any, message: bytes) -> list[bytes]:  # noqa: ANN401 -- a client, with its latches
        kind = message_kind(message)
        if kind not in ANSWERED_AGAIN:
            return original(self, message)
        # It remembers neither what it has signed nor that it has answered.
        masked = self._step.masked if isinstance(self._step, round3_consistency_check.Confirmed) else self._step
        self._step, self._state = masked, _AWAITING[kind]
        replies = original(self, message)
        del self._answered[kind]
        if self._step is None:
            self._step = masked
        return replies

    return receive


def _without_cohort(original: Callable[..., None]) -> Callable[..., None]:
    def check(state: Any, context: bytes, contributors: Any, round_name: str) -> None:  # noqa: ANN401
        try:
            original(state, context, contributors, round_name)
        except round3_consistency_check.ThresholdNotMet:
            return

    return check


def _unbound_survivors(context: Any, signer: Any, sharers: Any, contributors: Any) -> tuple[bytes, ...]:  # noqa: ANN401, ARG001
    return context.digest, signer.encode()


def _survivors_without_context(_: Any, signer: Any, sharers: Any, contributors: Any) -> tuple[bytes, ...]:  # noqa: ANN401
    return signer.encode(), sharers.encode(), contributors.encode()


def _any_certificate(_: Authority, certificate: Certificate, **__: object) -> VerifiedIdentity:
    return VerifiedIdentity(certificate.client, certificate.public_key)


def _spend_nothing(self: Any) -> Any:  # noqa: ANN401 -- an input
    return self._unspent[-1]


DEFECTS: dict[str, tuple[Replacement, ...]] = {
    "no latch": (
        (client.Client, "_receive", _receive_again(client.Client._receive)),  # noqa: SLF001
        (round2_masked_input.Masked, "wipe", _nothing),
    ),
    "no consistency check": ((round4_unmasking, "_verify_certificate", _nothing),),
    "no check of the list's size": (
        (round3_consistency_check, "check_survivors", _without_cohort(round3_consistency_check.check_survivors)),
        (round4_unmasking, "check_survivors", _without_cohort(round3_consistency_check.check_survivors)),
    ),
    "signature not bound to the list": (
        (round3_consistency_check, "signed_survivors", _unbound_survivors),
        (round4_unmasking, "signed_survivors", _unbound_survivors),
    ),
    "view of the sharers not signed": ((round4_unmasking, "_verify_views", _nothing),),
    "signature not bound to the context": (
        (round3_consistency_check, "signed_survivors", _survivors_without_context),
        (round4_unmasking, "signed_survivors", _survivors_without_context),
    ),
    "advertised keys not certified": ((Authority, "verify", _any_certificate),),
    "input not spent": ((member.ClientInput, "spend", _spend_nothing),),
}
FLOORS_OFF: tuple[Replacement, ...] = ((SessionConfiguration, "require_population", _nothing),)
"""Clients that take parameters which they refuse otherwise: the checks are then all that is left."""


@contextmanager
def planted(*replacements: Replacement) -> Iterator[None]:
    """Have the library be defective in these ways."""
    with ExitStack() as stack:
        for place, name, instead in replacements:
            stack.enter_context(mock.patch.object(place, name, instead))
        yield
