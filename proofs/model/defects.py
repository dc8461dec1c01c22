"""Plants defects into the library, to show that the searches can find faults; with the defects of the client.

Each defect replaces one function of the library while a case runs: by the function itself with a check removed, if
possible, or by another function.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from secagg.protocols.pairwise_mask import client, round2_masked_input, rounds3_4_unmasking
from secagg.protocols.pairwise_mask.configuration import Roster, SessionConfiguration
from secagg.protocols.pairwise_mask.member import ClientState
from secagg.session.certificates import Authority, Certificate, VerifiedIdentity
from secagg.session.roles import LazyUpdate
from secagg.session.sealed_state import MemoryLatch
from secagg.wire import MessageKind, message_kind

Replacement = tuple[object, str, object]


@dataclass(frozen=True, slots=True)
class Altered:
    """A function of the library with parts of its source replaced; compiled when it is planted."""

    place: Any
    name: str
    changes: tuple[tuple[str, str], ...]

    def made(self) -> object:
        """Return the function; each part to replace must occur in its source exactly once.

        Raises:
            LookupError: a part does not, because the function has changed.
        """
        function = inspect.unwrap(inspect.getattr_static(self.place, self.name))
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in self.changes:
            if source.count(old) != 1:
                raise LookupError(f"{self.name} contains {source.count(old)} times {old!r}; update the defect")
            source = source.replace(old, new)
        made = dict[str, Any]()
        exec(compile(source, f"<{self.name}, altered>", "exec"), function.__globals__, made)  # noqa: S102 -- the library's own source, altered
        return made[function.__name__]


@contextmanager
def planted(*replacements: Replacement) -> Iterator[None]:
    """Plant these defects into the library."""
    made = [(place, name, one.made() if isinstance(one, Altered) else one) for place, name, one in replacements]
    with ExitStack() as stack:
        for place, name, instead in made:
            stack.enter_context(mock.patch.object(place, name, instead))
        yield


def altered(place: object, name: str, *changes: tuple[str, str]) -> Replacement:
    """Return a defect that replaces parts of a function's source."""
    return place, name, Altered(place, name, changes)


def nothing(*_: object, **__: object) -> None:
    """Check nothing."""


# --- The client of pairwise masks -------------------------------------------------------------------------------------

_AWAITING = {
    MessageKind.SURVIVOR_SET: ClientState.AWAITING_SURVIVOR_SET,
    MessageKind.UNMASKING_REQUEST: ClientState.AWAITING_UNMASKING_REQUEST,
}
ANSWERED_AGAIN = frozenset(_AWAITING)


def _answer_again(original: Callable[..., bytes]) -> Callable[..., bytes]:
    def answer(self: Any, message: bytes) -> bytes:  # noqa: ANN401 -- a client, with its latches
        kind = message_kind(message)
        if kind not in ANSWERED_AGAIN:
            return original(self, message)
        # It forgets what it has signed and that it has answered.
        masked = self._step.masked if isinstance(self._step, rounds3_4_unmasking.Confirmed) else self._step
        self._step, self._state = masked, _AWAITING[kind]
        reply = original(self, message)
        del self._answered[kind]
        if self._step is None:
            self._step = masked
        return reply

    return answer


def _unbound_survivors(context: Any, signer: Any, sharers: Any, contributors: Any) -> tuple[bytes, ...]:  # noqa: ANN401, ARG001
    return context.digest, signer.encode()


def _survivors_without_context(_: Any, signer: Any, sharers: Any, contributors: Any) -> tuple[bytes, ...]:  # noqa: ANN401
    return signer.encode(), sharers.encode(), contributors.encode()


def _any_certificate(_: Authority, certificate: Certificate, **__: object) -> VerifiedIdentity:
    return VerifiedIdentity(certificate.client, certificate.public_key)


def _mask_half(vector: Any, state: Any, seeds: Any, threads: int) -> None:  # noqa: ANN401
    own = state.key_set.position
    _APPLY(vector, state, {other: seed for other, seed in seeds.items() if (other - own) % 2 == 0}, threads)


def _unbound_sharers(context: Any, signer: Any, _: Any, contributors: Any) -> tuple[bytes, ...]:  # noqa: ANN401
    return context.digest, signer.encode(), contributors.digest(context)


_APPLY: Any = round2_masked_input._apply_masks  # noqa: SLF001
_CERTIFICATE = "_verify_certificate"
_LISTS = "positions != sorted(set(positions)) or not set(positions) <= set(roster.committee)"


def _signed_as(parts: Callable[..., tuple[bytes, ...]]) -> tuple[Replacement, ...]:
    return ((rounds3_4_unmasking, "signed_survivors", parts),)


def _checks(old: str, new: str = "False") -> tuple[Replacement, ...]:
    """Return the check of a set of contributors, with another condition."""
    return (altered(rounds3_4_unmasking, "check_survivors", (f"if {old}:", f"if {new}:")),)


DEFECTS: dict[str, tuple[Replacement, ...]] = {
    "no latch": (
        (client.Client, "_answer", _answer_again(client.Client._answer)),  # noqa: SLF001
        (round2_masked_input.Masked, "wipe", nothing),
    ),
    "no consistency check": ((rounds3_4_unmasking, _CERTIFICATE, nothing),),
    "no check of the list's size": ((Roster, "require_cohort", nothing),),
    "itself not looked for in the list": _checks("position not in contributors"),
    "list not compared with the sharers": _checks("not contributors.issubset(state.sharers)"),
    "signature not bound to the list": _signed_as(_unbound_survivors),
    "signature not bound to the sharers": _signed_as(_unbound_sharers),
    "signature not bound to the context": _signed_as(_survivors_without_context),
    "signatures not counted": (
        altered(rounds3_4_unmasking, _CERTIFICATE, ("len(positions) < roster.configuration.quorum", "False")),
    ),
    "one signature counts often": (
        altered(rounds3_4_unmasking, _CERTIFICATE, (_LISTS, "not set(positions) <= set(roster.committee)")),
    ),
    "signatures from outside of the committee": (
        altered(rounds3_4_unmasking, _CERTIFICATE, (_LISTS, "positions != sorted(set(positions))")),
    ),
    "first signature alone verified": (
        altered(
            rounds3_4_unmasking,
            _CERTIFICATE,
            ("in_parallel(check, message.endorsements,", "in_parallel(check, message.endorsements[:1],"),
        ),
    ),
    "view of the sharers not signed": ((rounds3_4_unmasking, "_verify_views", nothing),),
    "signs other sharers": (altered(client, "confirm_survivors", ("message.sharers != state.sharers", "False")),),
    "advertised keys not certified": ((Authority, "verify", _any_certificate),),
    "input not spent": (altered(LazyUpdate, "take", ("self._make = self._make, None", "_ = self._make, None")),),
    "masks left out": ((round2_masked_input, "_apply_masks", _mask_half),),
    "self mask left out": (
        altered(round2_masked_input, "_apply_masks", ("vector.apply(add, subtract", "vector.apply(add[1:], subtract")),
    ),
    "both shares shown": (altered(rounds3_4_unmasking, "_show", ("place.digest_of(hidden, other)", "bytes(hidden)")),),
    "the other share shown": (
        altered(rounds3_4_unmasking, "revealed_secret", ("position in contributors", "position not in contributors")),
    ),
    "seeds of all edges shown": (
        altered(rounds3_4_unmasking.AnsweredFor, "by", ("has_edges and n not in contributors", "has_edges")),
    ),
    "a latch that claims nothing": ((MemoryLatch, "claim", nothing),),
}
_NO_VIEWS = DEFECTS["view of the sharers not signed"]
DEFECTS |= {
    f"{name}, nor views": (*DEFECTS[name], *_NO_VIEWS)
    for name in ("list not compared with the sharers", "signature not bound to the sharers")
}
POLICY_OFF: tuple[Replacement, ...] = ((SessionConfiguration, "require_population", nothing),)
"""Clients that accept parameters that they otherwise refuse, so that only the other checks remain."""
