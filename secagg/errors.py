"""Every error that the library raises, and the parties that it blames.

The class gives the kind of error and ``reason`` the exact one. Errors that a peer can cause have ``culprits``, as in
the table of ``secagg.blame``. An error names a party only if the evidence proves it: if the evidence points at two
parties, both are named; if at none, ``culprits`` is ``NOBODY``. Messages contain parameters, counts and identifiers,
never keys, seeds, shares or inputs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Party:
    """Base of all parties that an error can name; ``secagg.identifiers`` defines them."""

    __slots__ = ()


class _Unnamed(frozenset[Party]):
    """Empty set of culprits with the reason why it is empty; compare it with ``is``."""

    def __reduce__(self) -> str:
        # One object in every process, however the error that holds it got there.
        return "NOBODY" if self is NOBODY else "UNDECIDED"

    def __repr__(self) -> str:
        return self.__reduce__()


NOBODY: Final[frozenset[Party]] = _Unnamed()
"""The evidence singles out no party; no caller may name one."""
UNDECIDED: Final[frozenset[Party]] = _Unnamed()
"""The code that raised the error does not know the sender; ``blaming`` adds it in a caller."""


class Reason(StrEnum):
    """Why an error was raised: shared by errors, negative test vectors and platform metrics.

    The values are public API. The sentence under each member ends in its attribution.
    """

    PARAMETER_OUT_OF_RANGE = "parameter_out_of_range"
    """A configured value is unsafe, inconsistent or outside its range. Attribution: the party that configured it."""
    BELOW_FLOOR = "below_floor"
    """An offered configuration is weaker than this client's policy allows. Attribution: the party that offered it."""
    BACKEND_MISSING = "backend_missing"
    """The installed cryptographic backend lacks an algorithm. Attribution: the installation."""
    API_MISUSE = "api_misuse"
    """A function was called with the wrong type of object or in the wrong order. Attribution: the caller."""
    ALREADY_SPENT = "already_spent"
    """A one-time object was used twice. Attribution: the caller."""
    SECRET_EXPOSURE = "secret_exposure"  # noqa: S105 -- a name, not a password
    """Something tried to copy, pickle or iterate a secret. Attribution: the caller."""
    TRUNCATED = "truncated"
    """The bytes end before the message does. Attribution: the party that handed them over."""
    TRAILING_BYTES = "trailing_bytes"
    """Bytes follow the end of the message. Attribution: the party that handed them over."""
    LENGTH_OVER_LIMIT = "length_over_limit"
    """A declared length exceeds its limit; nothing was allocated. Attribution: the party that handed the bytes over."""
    NOT_CANONICAL = "not_canonical"
    """A second encoding of a value that has exactly one. Attribution: the party that handed the bytes over."""
    WRONG_VERSION = "wrong_version"
    """The message is of another wire version. Attribution: the party that handed the bytes over."""
    WRONG_KIND = "wrong_kind"
    """The message decodes, but another kind is expected now. Attribution: the party that handed the bytes over."""
    LAYOUT_MISMATCH = "layout_mismatch"
    """A payload or an aggregate belongs to another layout. Attribution: the party that made it."""
    AUTHENTICATION_FAILED = "authentication_failed"
    """A tag or signature does not verify. Attribution: the sender or any relay; not decidable."""
    PUBLIC_KEY_NOT_CANONICAL = "public_key_not_canonical"
    """A second encoding of a public key. Attribution: the sender or any relay of an unsigned message."""
    PUBLIC_KEY_LOW_ORDER = "public_key_low_order"
    """A public key that forces a known shared secret. Attribution: the sender or any relay of an unsigned message."""
    PUBLIC_KEY_REUSED = "public_key_reused"
    """Two parties have the same public key. Attribution: the sender or any relay of an unsigned message."""
    SHARE_OUT_OF_RANGE = "share_out_of_range"
    """A share is not a field element, or is at a point of no holder. Attribution: the party that handed it over."""
    SHARE_DUPLICATE = "share_duplicate"
    """Two shares of one secret have the same point. Attribution: nobody; at most one of the two can be right."""
    SHARES_IRRECONCILABLE = "shares_irreconcilable"
    """More shares are wrong than can be corrected. Attribution: nobody; the evidence does not single anyone out."""
    THRESHOLD_NOT_MET = "threshold_not_met"
    """Fewer answered than are needed. Attribution: nobody."""
    WRONG_SESSION = "wrong_session"
    """The message was made for another session, attempt or roster. Attribution: the party that handed it over."""
    ALREADY_ANSWERED = "already_answered"
    """A second, different message of a kind that was answered. Attribution: its sender or any relay, if it is unsigned;
    else nobody, since a client that lost its state in a restart sends one too; a holder, which then has other keys, is
    named."""
    NOT_ELIGIBLE = "not_eligible"
    """A message of a client that is not a member of the session, or has left it. Attribution: its sender."""
    ROSTER_INVALID = "roster_invalid"
    """A roster is unordered, unproven, or does not hold this client as it is. Attribution: the server."""
    SURVIVORS_INVALID = "survivors_invalid"
    """A set of clients contradicts what came before, or declares this client dropped. Attribution: the server."""
    QUORUM_NOT_MET = "quorum_not_met"
    """A certificate holds too few signatures of its committee. Attribution: the server."""
    COMMITMENT_MISMATCH = "commitment_mismatch"
    """An opened value differs from its commitment. Attribution: the committer, if authenticated; otherwise no one."""
    EDGE_UNUSABLE = "edge_unusable"
    """A client left because a seed that was sealed to it is unusable. Attribution: it, or who sealed the seed."""
    CHECK_WORDS_MISMATCH = "check_words_mismatch"
    """The unmasked sum contradicts its check words. Attribution: nobody; a client or a wrong seed."""
    REPLAYED = "replayed"
    """An upload that was already accepted is submitted again. Attribution: the party that handed it over."""
    STALE_UPDATE = "stale_update"
    """An update of a model that is too old, or newer than the sum. Attribution: its sender, or who chose the sum."""
    MODEL_MISMATCH = "model_mismatch"
    """Clients hold different models under one number. Attribution: the sender, or the source of the models."""
    BUDGET_SPENT = "budget_spent"
    """A client has used up its privacy budget. Attribution: the client, or who asked it again."""
    BUFFER_FULL = "buffer_full"
    """A sum already holds its maximum number of uploads. Attribution: nobody, or the host that handed over another."""
    ONE_HOT_REFUTED = "one_hot_refuted"
    """An upload is not one vote in every block. Attribution: its client, or the server that opened it."""
    SERVERS_DISAGREE = "servers_disagree"
    """Two servers hold different sets, or shares that do not add up to a sum. Attribution: one of them, or a client."""
    CAPACITY_EXCEEDED = "capacity_exceeded"
    """The sum of this many inputs, or this much weight, could leave the ring. Attribution: the configuring party."""
    INPUT_OUT_OF_RANGE = "input_out_of_range"
    """An input value lies outside the agreed range. Attribution: the party that made the input."""
    CONTRACT_VIOLATION = "contract_violation"
    """A compression scheme breaks the linear-decoder contract. Attribution: the author of the scheme."""
    INTERNAL_ERROR = "internal_error"
    """A state that should be impossible occurred. Attribution: this library; please report it."""
    ATTESTATION_INVALID = "attestation_invalid"
    """An enclave's evidence or its collateral does not verify. Attribution: its maker or any relay; not decidable."""
    COLLATERAL_STALE = "collateral_stale"
    """Valid collateral that is expired or not yet valid. Attribution: its sender, or a wrong clock."""
    ATTESTATION_REFUSED = "attestation_refused"
    """This client's policy does not accept the enclave. Attribution: the party that offered the enclave."""


class SecAggError(Exception):
    """Base of all errors that the library raises on purpose; never raised itself."""

    def __init__(self, message: str, *, reason: Reason) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only constructors do not survive the default protocol, and platforms send errors between processes.
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(cls: type[SecAggError], args: tuple[object, ...], state: dict[str, object]) -> SecAggError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class InvalidParameters(SecAggError, ValueError):
    """The configuration is unsafe or inconsistent; the object was not made."""

    def __init__(self, message: str, *, reason: Reason = Reason.PARAMETER_OUT_OF_RANGE) -> None:
        super().__init__(message, reason=reason)


class Misuse(SecAggError):
    """The caller misused the API: wrong type, wrong order, second use."""

    def __init__(self, message: str, *, reason: Reason = Reason.API_MISUSE) -> None:
        super().__init__(message, reason=reason)


class PeerError(SecAggError):
    """Another party sent something wrong; abstract.

    ``culprits`` holds every party that the evidence names, or is ``NOBODY`` or ``UNDECIDED``.
    """

    def __init__(self, message: str, *, reason: Reason, culprits: Iterable[Party]) -> None:
        super().__init__(message, reason=reason)
        self.culprits = named(culprits)


@dataclass(frozen=True, slots=True)
class Fault:
    """Record of an error. An exception would keep the refused message in memory through its traceback's frames."""

    reason: Reason
    sentence: str
    culprits: frozenset[Party] = NOBODY
    stage: str = ""  # of the session
    sender: Party | None = None  # of the message, as the transport authenticated it

    @classmethod
    def of(cls, error: SecAggError, *, stage: str = "", sender: Party | None = None) -> Fault:
        """Return the record of an error."""
        culprits = error.culprits if isinstance(error, PeerError) else NOBODY
        return cls(error.reason, str(error), culprits, stage, sender)

    def __str__(self) -> str:
        return self.sentence


def named(culprits: Iterable[Party]) -> frozenset[Party]:
    """Return culprits as errors store them: an empty set becomes ``NOBODY``, unless it is ``UNDECIDED``."""
    return culprits if isinstance(culprits, _Unnamed) else frozenset(culprits) or NOBODY


@contextmanager
def blaming(*culprits: Party) -> Generator[None]:
    """Set the culprits of an ``UNDECIDED`` error: decoders see bytes but not senders."""
    try:
        yield
    except PeerError as error:
        if error.culprits is UNDECIDED:
            error.culprits = named(culprits)
        raise


class MalformedMessage(PeerError):
    """Bytes that do not decode. A decoder does not know their sender, so culprits default to ``UNDECIDED``."""

    def __init__(self, message: str, *, reason: Reason, culprits: Iterable[Party] = UNDECIDED) -> None:
        super().__init__(message, reason=reason, culprits=culprits)


def require_length(what: str, length: int, due: int, culprits: Iterable[Party] = UNDECIDED) -> None:
    """Raise ``MalformedMessage`` unless a message has the expected number of bytes."""
    if length != due:
        reason = Reason.TRUNCATED if length < due else Reason.TRAILING_BYTES
        raise MalformedMessage(f"{what} has {due} bytes; got {length}", reason=reason, culprits=culprits)


class UnexpectedMessage(PeerError):
    """A message that decodes, but is not expected now; culprits default to ``UNDECIDED``."""

    def __init__(
        self, *, expected: str, received: str, reason: Reason = Reason.WRONG_KIND, culprits: Iterable[Party] = UNDECIDED
    ) -> None:
        message = f"expected {expected}, received {received}"
        super().__init__(message, reason=reason, culprits=culprits)
        self.expected, self.received = expected, received


class AuthenticationFailed(PeerError):
    """A tag or signature that does not verify; it carries no detail on purpose."""

    def __init__(self, *, culprits: Iterable[Party]) -> None:
        super().__init__("authentication failed", reason=Reason.AUTHENTICATION_FAILED, culprits=culprits)


class PeerMisbehaved(PeerError):
    """A message that decodes and authenticates, but is wrong."""


class ThresholdNotMet(SecAggError):
    """Too few parties answered; nobody is blamed."""

    def __init__(self, *, needed: int, present: int, what: str, must: str = "", why: str = "") -> None:
        """Say what is missing, and with ``must`` what each party has to do, as in "upload"."""
        counts = f"{needed} must {must}, {present} did" if must else f"{needed} needed, got {present}"
        super().__init__(f"not enough {what}: {counts}{why}", reason=Reason.THRESHOLD_NOT_MET)
        self.needed, self.present = needed, present

    def because(self, *why: str) -> ThresholdNotMet:
        """Return this error with what only its caller knows: why parties did not answer, and what to change."""
        self.args = ("; ".join([str(self), *filter(None, why)]),)
        return self


class CapacityExceeded(SecAggError):
    """A sum could overflow the ring, or an input is out of range."""

    def __init__(self, message: str, *, reason: Reason = Reason.CAPACITY_EXCEEDED) -> None:
        super().__init__(message, reason=reason)


class ContractViolation(SecAggError):
    """A decoder is not linear, not deterministic, or wrong in shape."""

    def __init__(self, message: str, *, reason: Reason = Reason.CONTRACT_VIOLATION) -> None:
        super().__init__(message, reason=reason)


class InternalError(SecAggError):
    """A state that should be impossible occurred; please report it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.INTERNAL_ERROR)
