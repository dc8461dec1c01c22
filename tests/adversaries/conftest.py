"""Common checks of attacks: the expected error, true blame, and no remaining secret."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from secagg.crypto.hybrid_key_agreement import SEALING_OVERHEAD_BYTES, HybridKeyPair
from secagg.crypto.key_agreement import X25519KeyPair
from secagg.crypto.public_keys import KeyRole, X25519PublicKey
from secagg.crypto.secret import Secret
from secagg.errors import UNDECIDED, Misuse, PeerError, Reason, SecAggError, UnexpectedMessage
from secagg.identifiers import ClientId, Party, SessionContext
from secagg.protocols.pairwise_mask import Client, ClientState, ServerState
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.upload import Upload
from tests.harness.indexing_rounds import InsecureIndexingRound
from tests.harness.made_secrets import Made, recorded
from tests.harness.pairwise_sessions import InsecurePairwiseSession, same_sum, unmask

KeyPair = X25519KeyPair | HybridKeyPair
STRANGER = (ClientId(0), X25519PublicKey((9).to_bytes(32, "little")))


class Ledger:
    """Every secret and every key pair that each client made while it answered."""

    def __init__(self) -> None:
        self.at_work = list[Client]()
        self.secrets = dict[Client, list[Secret]]()
        self.pairs = dict[Client, list[KeyPair]]()

    def record(self, made: Secret | KeyPair) -> None:
        if not self.at_work:
            return
        if isinstance(made, Secret):
            self.secrets.setdefault(self.at_work[-1], []).append(made)
        else:
            self.pairs.setdefault(self.at_work[-1], []).append(made)


@pytest.fixture(autouse=True)
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Record the secrets that each client makes, to check that none remain."""
    book = Ledger()

    def recorded(cls: type[Secret | X25519KeyPair | HybridKeyPair]) -> None:
        make: Callable[..., None] = cls.__init__

        def make_and_record(self: Any, *args: Any, **named: Any) -> None:
            make(self, *args, **named)
            book.record(self)

        monkeypatch.setattr(cls, "__init__", make_and_record)

    for cls in (Secret, X25519KeyPair, HybridKeyPair):
        recorded(cls)
    answer = Client.answer

    def answer_at_work(self: Client, message: bytes) -> bytes:
        book.at_work.append(self)
        try:
            return answer(self, message)
        finally:
            book.at_work.pop()

    monkeypatch.setattr(Client, "answer", answer_at_work)
    return book


def _is_given_up(pair: KeyPair) -> bool:
    try:
        _use(pair)
    except Misuse as error:
        return error.reason is Reason.ALREADY_SPENT
    return False


def _use(pair: KeyPair) -> None:
    context = SessionContext(bytes(32))
    match pair:
        case HybridKeyPair():
            pair.open("probe", bytes(1 + SEALING_OVERHEAD_BYTES), 1, b"")
        case X25519KeyPair() if pair.role is KeyRole.MASK:
            pair.pairwise_seed(ClientId(1), STRANGER, context)
        case X25519KeyPair():
            pair.channel_key_from(ClientId(1), STRANGER, context)


@pytest.fixture
def ended(ledger: Ledger) -> Callable[[InsecurePairwiseSession, ClientId], None]:
    """Check that a client has left the session, keeps no secret, and answers nothing more."""

    def check(session: InsecurePairwiseSession, victim: ClientId) -> None:
        client = session.clients[victim]
        assert client.state is ClientState.ABORTED
        assert [secret for secret in ledger.secrets.get(client, []) if not secret.is_wiped] == []
        assert all(_is_given_up(pair) for pair in ledger.pairs.get(client, []))
        to_victim = [delivery.message for delivery in session.log if delivery.receiver == victim]
        to_victim += [outgoing.message for outgoing in session.pending if outgoing.receiver == victim]
        assert to_victim, "something was sent to it"
        for message in to_victim:
            with pytest.raises(UnexpectedMessage):
                client.answer(message)

    return check


@pytest.fixture
def refused(ended: Callable[[InsecurePairwiseSession, ClientId], None]) -> Callable[..., SecAggError]:
    """Check that a client refuses a message with exactly this error and this blame, and that it has left for good."""

    def check(  # noqa: PLR0913, PLR0917 -- an attack and its outcome
        session: InsecurePairwiseSession,
        victim: ClientId,
        message: bytes,
        kind: type[SecAggError],
        reason: Reason,
        culprits: Iterable[Party] = UNDECIDED,
    ) -> SecAggError:
        with pytest.raises(SecAggError) as caught:
            session.clients[victim].answer(message)
        assert (type(caught.value), caught.value.reason) == (kind, reason), str(caught.value)
        if isinstance(caught.value, PeerError):
            assert caught.value.culprits == frozenset(culprits)
        ended(session, victim)
        return caught.value

    return check


@pytest.fixture
def goes_on() -> Callable[..., None]:
    """Check that the others finish, and that only the exact sum of exactly these contributors is released."""

    def check(
        session: InsecurePairwiseSession, *, without: Iterable[ClientId] = (), of: Iterable[ClientId] = ()
    ) -> None:
        session.drop(*without)
        aggregate = session.finish()
        expected = frozenset(of) or frozenset(session.client_ids) - frozenset(without)
        assert session.server.revealed == {expected}
        assert same_sum(aggregate, session.sum_of(expected))
        assert session.server.state is ServerState.COMPLETED

    return check


@pytest.fixture
def nothing_is_released() -> Callable[..., SecAggError]:
    """Check that a session ends without a sum, with exactly this error and this blame."""

    def check(
        session: InsecurePairwiseSession, kind: type[SecAggError], reason: Reason, culprits: Iterable[Party] = UNDECIDED
    ) -> SecAggError:
        with pytest.raises(SecAggError) as caught:
            session.finish()
        assert (type(caught.value), caught.value.reason) == (kind, reason), str(caught.value)
        if isinstance(caught.value, PeerError):
            assert caught.value.culprits == frozenset(culprits)
        assert session.server.state is ServerState.ABORTED
        with pytest.raises(Misuse):
            unmask(session.server)
        return caught.value

    return check


# --- Two servers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def made_secrets(monkeypatch: pytest.MonkeyPatch) -> Made:
    return recorded(monkeypatch)


def _memory_of(server: IndexingServer) -> tuple[object, ...]:
    """Return a server's state of a round: each client's progress, and its share of the sums."""
    held: object = vars(server)["_totals"]
    totals = vars(held)
    sums = [part.tobytes() for part in totals["_vectors"]]
    sums += [part.rows().tobytes() for part in totals["_histograms"].values() if not vars(part)["_given_up"]]
    return repr(server), server.waiting(), server.rejected, sums


@pytest.fixture
def memory_of() -> Callable[[IndexingServer], tuple[object, ...]]:
    return _memory_of


@pytest.fixture
def raises_exactly() -> Callable[..., SecAggError]:
    """Check that a step ends with exactly this error and this blame, and that the servers' state is unchanged."""

    def check(
        step: Callable[[], object],
        kind: type[SecAggError],
        reason: Reason,
        *culprits: Party,
        unchanged: Iterable[IndexingServer] = (),
    ) -> SecAggError:
        before = [(server, _memory_of(server)) for server in unchanged]
        with pytest.raises(SecAggError) as caught:
            step()
        assert (type(caught.value), caught.value.reason) == (kind, reason), str(caught.value)
        if isinstance(caught.value, PeerError):
            assert caught.value.culprits == frozenset(culprits)
        for server, memory in before:
            assert _memory_of(server) == memory
        return caught.value

    return check


@pytest.fixture
def refuses(raises_exactly: Callable[..., SecAggError]) -> Callable[..., SecAggError]:
    """Check that a step of a server refuses a message with exactly this error and blame, and changes nothing."""

    def check(step: Callable[[bytes], object], message: bytes, *outcome: Any) -> SecAggError:
        server: Any = getattr(step, "__self__", None)
        return raises_exactly(partial(step, message), *outcome, unchanged=[server])

    return check


@pytest.fixture
def both_refuse(refuses: Callable[..., SecAggError]) -> Callable[..., None]:

    def check(made: InsecureIndexingRound, halves: Iterable[Upload | bytes], *outcome: Any) -> None:
        for server, half in zip(made.servers, halves, strict=True):
            refuses(server.receive, half if isinstance(half, bytes) else half.encode(), *outcome)

    return check


@pytest.fixture
def sum_is_exact() -> Callable[..., None]:
    """Let both servers finish, and check that they release the exact sum of exactly these clients."""

    def check(made: InsecureIndexingRound, *numbers: int) -> None:
        ideal = made.ideal(numbers).encode()
        for result in made.finish():
            assert result.counted == tuple(ClientId(number) for number in numbers)
            assert result.aggregate.encode() == ideal

    return check
