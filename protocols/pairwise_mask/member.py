"""A client's part in a session: its identity, its floors, its coins, and its input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields

from secagg.contract.layout import Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.session.certificates import Authority, Certificate, SigningKey

from .configuration import NO_DIGEST, SessionConfiguration
from .floors import ClientFloors


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A client's part in a session: its identity, its floors, and its coins."""

    client: ClientId
    floors: ClientFloors
    capacity: int
    """The largest total weight that the client's own decoder can take."""
    coins: Coins = field(repr=False)
    authority: Authority | None = None
    signing_key: SigningKey | None = None
    certificate: Certificate | None = None
    threads: int = 1

    def require_signing(self) -> None:
        """Refuse an identity key that was wiped, where there is one."""
        if self.signing_key is not None:
            self.signing_key.require_usable()

    def sign(self, label: Label, *parts: bytes) -> bytes:
        """Sign with the identity key; nothing in semi-honest mode, where there is none."""
        return self.signing_key.sign(label, *parts) if self.signing_key is not None else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTerms:
    """A session's subject as the client knows it; the client compares a server's offer with it."""

    task: bytes
    model_digest: bytes | None
    """Of the model that the update was trained from, as the client has it; None if the model is still to come, and is
    compared with the session's when it does."""
    round_number: int
    application_digest: bytes = NO_DIGEST

    @classmethod
    def of(cls, configuration: SessionConfiguration) -> SessionTerms:
        """Return the terms of a configuration that the client has from somebody whom it believes.

        Security: taken from an offer they refuse nothing; simulations, which hold both ends, may do that.
        """
        return cls(**{field_.name: getattr(configuration, field_.name) for field_ in fields(cls)})

    def require(self, configuration: SessionConfiguration) -> None:
        """Refuse a session about something else.

        Raises:
            InvalidParameters: naming what differs.
        """
        for field_ in fields(self):
            known = getattr(self, field_.name)
            if known is not None and getattr(configuration, field_.name) != known:
                raise InvalidParameters(
                    f"the offer has another {field_.name} than this client; offer what the client trained for",
                    reason=Reason.BELOW_FLOOR,
                )


class ClientInput(Confined):
    """One client's input, which is uploaded once.

    An input whose upload may have been seen is spent, whether or not a sum came of it: a server that lets one attempt
    fail and repeats it with one client fewer would learn that client's input as the difference. So this object is given
    to one session, and another attempt needs a decision of the caller's: another update, or differential privacy that
    charges every attempt.
    """

    def __init__(self, payload: Payload, weight: int = 1) -> None:
        """Take an encoded update and its weight."""
        if type(payload) is not Payload:
            raise Misuse(f"an input is a Payload, which a scheme encodes; got {type(payload).__name__}")
        payload.check()
        self._unspent = [(payload, weight)]

    def require_fits(self, configuration: SessionConfiguration) -> None:
        """Refuse a session that this input was not made for, before anything secret is drawn.

        Raises:
            Misuse: the input is spent.
            InvalidParameters: it has another layout, or a weight over the session's maximum.
        """
        if self.is_spent:
            raise _spent()
        _require_fits(configuration, *self._unspent[0])

    def spend(self) -> tuple[Payload, int]:
        """Hand the input over for its one upload.

        Raises:
            Misuse: it was handed over before.
        """
        try:
            return self._unspent.pop()
        except IndexError:
            raise _spent() from None

    @property
    def is_spent(self) -> bool:
        """Whether it was handed over."""
        return not self._unspent

    def __repr__(self) -> str:
        return f"<ClientInput{', spent' if self.is_spent else ''}>"


class LateInput(ClientInput):
    """An input that is made only when the upload needs it, such as one that is trained meanwhile."""

    def __init__(self, make: Callable[[SessionConfiguration], tuple[Payload, int]]) -> None:
        """Take what makes an encoded update and its weight, called once; what it raises ends the session."""
        self._maker = [make]
        self._configuration: SessionConfiguration | None = None

    def require_fits(self, configuration: SessionConfiguration) -> None:
        """Note the session, to which the input is held.

        Raises:
            Misuse: the input is spent.
        """
        if self.is_spent:
            raise _spent()
        self._configuration = configuration

    def spend(self) -> tuple[Payload, int]:
        """Make the input and hand it over.

        Raises:
            Misuse: it was handed over before.
            InvalidParameters: the input does not fit the session.
        """
        if self.is_spent or self._configuration is None:
            raise _spent()
        payload, weight = self._maker.pop()(self._configuration)
        _require_fits(self._configuration, payload, weight)
        return payload, weight

    @property
    def is_spent(self) -> bool:
        """Whether it was handed over."""
        return not self._maker


def _require_fits(configuration: SessionConfiguration, payload: Payload, weight: int) -> None:
    if payload.layout != configuration.layout:
        raise InvalidParameters("the input belongs to another layout than the session; encode it for this session")
    if type(weight) is not int or not 1 <= weight <= configuration.maximum_weight:
        raise InvalidParameters(f"a weight is an integer in 1..{configuration.maximum_weight}; got {weight!r}")


def _spent() -> Misuse:
    return Misuse(
        "this input was uploaded before; train another update, or account for a second release of this one and wrap it "
        "again",
        reason=Reason.ALREADY_SPENT,
    )
