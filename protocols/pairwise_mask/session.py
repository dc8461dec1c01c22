"""Pairwise masks as a session: four or five stages, the third of which takes the updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from secagg.contract import Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, Misuse, PeerError, Reason, SecAggError
from secagg.identifiers import ClientId
from secagg.privacy.client_noise import NO_NOISE, ClientNoise, NoiseSettings
from secagg.session.certificates import Authority, Certificate, SigningKey
from secagg.session.latch import Latch
from secagg.session.ledger import Spent
from secagg.session.privacy_ledger import PrivacyLedger
from secagg.session.roles import LateUpdate, Subject

from .client import Client
from .client_record import Recorder
from .configuration import NO_AUTHORITY, SessionConfiguration
from .floors import ClientFloors
from .member import LateInput, SessionTerms
from .plan import PairwiseSettings, noise_of, require_subject, terms_of
from .server import Server
from .transitions import ClientState

# --- The server -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PairwiseHelpers:
    """Resources of a server; it has no helper."""

    coins: Coins
    authority: bytes = NO_AUTHORITY
    """The public key of who certifies clients; for active mode."""
    threads: int = 1


def open_session(
    subject: Subject, settings: PairwiseSettings, invited: frozenset[ClientId] | None, helpers: PairwiseHelpers
) -> Server:
    """Begin a session.

    Raises:
        InvalidParameters: no such session is safe; the message says what to relax.
    """
    population = settings.population if invited is None else len(invited)
    if population is None:
        raise InvalidParameters("settings.population says how many clients are invited, unless they are named")
    plan = settings.plan(subject, population, helpers.authority, helpers.coins)
    noise = noise_of(plan.configuration, settings, settings.corrupted)
    return Server(plan, invited, threads=helpers.threads, noise=noise)


# --- The client -------------------------------------------------------------------------------------------------------


def _nothing_to_charge(spent: Spent) -> None:
    """Charge nobody: the platform's own loop sees to it that a client uploads once for each round."""


class PairwiseMember(Confined):
    """A client of sessions of pairwise masks."""

    def __init__(  # noqa: PLR0913 -- what a client brings
        self,
        client: ClientId,
        *,
        floors: ClientFloors,
        coins: Coins,
        authority: Authority | None = None,
        signing_key: SigningKey | None = None,
        certificate: Certificate | None = None,
        charge: Callable[[Spent], None] = _nothing_to_charge,
        latch: Latch | None = None,
        threads: int = 1,
        noise: NoiseSettings = NO_NOISE,
        privacy: PrivacyLedger | None = None,
    ) -> None:
        """Prepare to join sessions.

        Args:
            authority: who certifies identities; for active mode, with the client's own key and certificate.
            charge: told of an upload before its update is made; durable when it returns, as ``SpentUpdates.charge`` is.
            latch: where suspended sessions are numbered; without one a session cannot be suspended.
            noise: what this client adds to every update; an offer that says otherwise is refused.
            privacy: what it has spent in all its tasks; an upload that its budget does not pay for is refused.
        """
        self.client, self.charge, self.latch, self.noise, self._privacy = client, charge, latch, noise, privacy
        self._floors, self._coins, self._threads = floors, coins, threads
        self._authority, self._signing_key, self._certificate = authority, signing_key, certificate

    def join(
        self, subject: Subject, update: LateUpdate | None = None, suspended: Secret | None = None
    ) -> PairwiseClientSession:
        """Begin, or resume a suspended session."""
        session = PairwiseClientSession(self, subject, update)
        session.begin(self._client(session, subject, suspended))
        return session

    def terms_of(self, subject: Subject) -> SessionTerms:
        """Return what a session of this subject has to be about, this client's noise included."""
        return terms_of(subject, self.noise, self._floors.assumed_corrupted)

    def require_noise(self, configuration: SessionConfiguration) -> None:
        """Refuse a session that this client's noise does not go with, or that its budget does not pay for."""
        noise = self._noise_of(configuration)
        if self._privacy is not None:
            self._privacy.require_room(noise)

    def charge_privacy(self, configuration: SessionConfiguration) -> None:
        """Spend what one upload costs, where this client has a budget."""
        if self._privacy is not None:
            self._privacy.charge(self._noise_of(configuration))

    def noised(self, payload: Payload, configuration: SessionConfiguration) -> Payload:
        """Return the values to mask: with noise, the clipped values and this client's share of it, drawn once.

        Claim PM-7: noise is part of the input, so that it is in the one sum and in nothing else.
        """
        noise = self._noise_of(configuration)
        return payload if noise is None else noise.add_to(payload, self._coins)

    def _noise_of(self, configuration: SessionConfiguration) -> ClientNoise | None:
        return noise_of(configuration, self.noise, self._floors.assumed_corrupted)

    def _client(self, session: PairwiseClientSession, subject: Subject, suspended: Secret | None) -> Client:
        client = Client(
            self.client,
            LateInput(session.take),
            floors=self._floors,
            capacity=subject.capacity,
            coins=self._coins,
            authority=self._authority,
            signing_key=self._signing_key,
            certificate=self._certificate,
            terms=self.terms_of(subject),
            threads=self._threads,
            recording=None if self.latch is None else Recorder(self.latch, self._coins),
        )
        if suspended is not None:
            configuration = client.resume(suspended)
            try:
                require_subject(subject, self.terms_of(subject), configuration)
            except SecAggError:
                client.abort()
                raise
        return client


class PairwiseClientSession(Confined):
    """A client's side; ``Client`` holds the latches and the mathematics."""

    def __init__(self, member: PairwiseMember, subject: Subject, update: LateUpdate | None) -> None:
        self._member, self._subject, self._update = member, subject, update
        self._client: Client | None = None

    def begin(self, client: Client) -> None:
        """Work with this client, whose input ``take`` makes; for ``PairwiseMember.join``."""
        self._client = client

    @property
    def _machine(self) -> Client:
        if self._client is None:
            raise Misuse("a session is begun with PairwiseMember.join")
        return self._client

    @property
    def client(self) -> ClientId:
        """The client's identifier."""
        return self._member.client

    @property
    def faults(self) -> tuple[PeerError, ...]:
        """Unusable messages of other clients."""
        return tuple(self._machine.complaints)

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message; the upload is handed out once."""
        client = self._machine
        if client.state is ClientState.AWAITING_OFFER:
            configuration = SessionConfiguration.decode(message)
            require_subject(self._subject, self._member.terms_of(self._subject), configuration)
            self._member.require_noise(configuration)
        answers = client.receive(message)
        client.forget_upload()
        if not answers:
            raise Misuse("the upload was handed over before, and nothing keeps it", reason=Reason.ALREADY_SPENT)
        return answers[0]

    def take(self, configuration: SessionConfiguration) -> tuple[Payload, int]:
        """Charge the ledgers and make the update; nothing is refused after that."""
        if self._update is None:
            raise InvalidParameters("the message that an upload answers brings the model, and this one did not")
        model = self._update.model_for(self._subject)
        if model != configuration.model_digest:
            raise InvalidParameters(
                "the session is about another model than the update was trained from", reason=Reason.BELOW_FLOOR
            )
        self._member.charge(Spent(configuration.task, configuration.round_number, model))
        self._member.charge_privacy(configuration)
        update = self._update.take(configuration.layout, range(1, configuration.maximum_weight + 1))
        return self._member.noised(update.payload, configuration), update.weight

    def suspend(self) -> Secret | None:
        """Return the record that ``join`` resumes, and answer no more."""
        client = self._machine
        if client.state in (ClientState.AWAITING_OFFER, ClientState.COMPLETED, ClientState.ABORTED):
            client.abort()
            return None
        return client.suspend()

    def abort(self) -> None:
        """Leave and wipe."""
        self._machine.abort()

    def __repr__(self) -> str:
        return f"<PairwiseClientSession of {self.client}>"
