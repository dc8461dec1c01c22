"""Adversaries with revoked or expired keys, and servers that help them, in each protocol of certified clients.

A server that may fill a cohort with keys that were stolen, and revoked since, has a sum of one honest client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final
from unittest.mock import patch

import pytest

from secagg.contract import Layout, RingSegment
from secagg.errors import AuthenticationFailed, InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.protocols.enclave import client as enclave_client
from secagg.protocols.enclave.client import Invitation as EnclaveInvitation
from secagg.protocols.enclave.remote_enclave import SimulatedEnclave, SimulatedJudge
from secagg.protocols.enclave.seal_ledger import SealLedger
from secagg.protocols.enclave.server import split_upload
from secagg.protocols.enclave.session import EnclaveHelpers, EnclaveMember, EnclaveOptions
from secagg.protocols.enclave.session import open_session as open_enclave
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration
from secagg.protocols.one_message import client as one_message_client
from secagg.protocols.one_message.configuration import Offer
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.requests import Delivery, Receipt, Verdict, verify_upload
from secagg.protocols.one_message.tally import Tally
from secagg.protocols.two_servers import client as two_servers_client
from secagg.protocols.two_servers.offers import Invitation, UploadHalves
from secagg.session.certificates import HOUR, NO_EXPIRY, NO_STANDING, Certificate, SigningKey, Standing
from secagg.session.roles import LazyUpdate, Member, Subject, Update
from secagg.session.signing_keys import issue_certificate
from secagg.session.standings import SeenStandings, Standings
from tests.harness import enclave_buffers, indexing_rounds, one_message_sums
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound, UnboundMember, invitation_of
from tests.harness.one_message_sums import COINS, InsecureSum, SumSetup

DAY: Final = 24 * HOUR
RINGS: Final = Layout((RingSegment(20, 3),))
FIRST: Final = ClientId(1)


class Deployed(ABC):
    """One protocol with one client, whose server shows a standing that a test chooses."""

    now: int
    module: Any
    """Where the client looks at a standing."""
    authority: SigningKey
    key: SigningKey
    subject: Subject
    client: ClientId = FIRST
    standings: Standings

    def __init__(self) -> None:
        self.standings, self.charged, self.longest = SeenStandings(), 0, DAY

    @abstractmethod
    def offer(self, standing: Standing) -> bytes:
        """Begin with a standing, and return what clients are offered."""

    @abstractmethod
    def member(self, certificate: Certificate) -> Member: ...

    @abstractmethod
    def update(self) -> Update: ...

    @abstractmethod
    def takers(self, answer: bytes) -> Iterator[Callable[[], object]]:
        """Yield how each party takes an upload."""

    @abstractmethod
    def context(self, offer: bytes) -> bytes:
        """Return the digest (T0) of an offer."""

    def shown(self, age: int = 0, *revoked: int) -> Standing:
        return Standing(number=self.now - age, revoked=revoked).signed(self.authority)

    def certificate(self, number: int = 0, until: int = NO_EXPIRY) -> Certificate:
        return issue_certificate(self.authority, self.client, self.key.public_key, number=number, until=until)

    @property
    def model(self) -> bytes:
        return self.subject.model_digest or bytes(32)

    def clock(self) -> datetime:
        return datetime.fromtimestamp(self.now, UTC)

    def charge(self, *_: object) -> None:
        self.charged += 1

    def answered(self, standing: Standing, certificate: Certificate | None = None) -> bytes:
        """Have the library's own client answer an offer."""
        update = LazyUpdate(self.made, self.model, charge=self.charge)
        session = self.member(certificate or self.certificate()).join(self.subject, update)
        return session.answer(self.offer(standing))

    def made(self) -> Update:
        assert self.charged
        return self.update()

    def cheated(self, standing: Standing, certificate: Certificate) -> bytes:
        """Have a client answer that looks at no standing."""
        with patch.object(self.module, "require_standing"):
            return self.answered(standing, certificate)


class TwoServers(Deployed):
    """Both servers take halves."""

    now, module = int(indexing_rounds.NOW.timestamp()), two_servers_client

    def __init__(self) -> None:
        super().__init__()
        self.round = InsecureIndexingRound(IndexingSetup(population=1, layout=RINGS))
        setup = self.round.setup
        self.authority, self.key = setup.signing_key_of("authority"), setup.signing_key_of("client 1")
        self.subject = Subject(task=setup.task, round_number=setup.round_number, layout=RINGS, capacity=setup.capacity)

    def offer(self, standing: Standing) -> bytes:
        made = self.round
        made.configuration = replace(made.configuration, standing=standing)
        made.servers[:] = (made.new_server(index) for index in (0, 1))
        return invitation_of(made.configuration, made.setup.round_number, (made.zero.offer, made.one.offer))

    def member(self, certificate: Certificate) -> Member:
        return UnboundMember(
            certificate=certificate,
            signing_key=self.key,
            policy=replace(self.round.policy, maximum_standing_age=self.longest),
            charge=self.charge,
            clock=self.clock,
            coins=self.round.setup.coins_of("client 1"),
            standings=self.standings,
        )

    def update(self) -> Update:
        return Update(self.round.setup.payload_of(1), bytes(32))

    def takers(self, answer: bytes) -> Iterator[Callable[[], object]]:
        for server, half in zip(self.round.servers, UploadHalves.decode(answer).both, strict=True):
            yield lambda server=server, half=half: server.receive(half)  # type: ignore[misc]

    def context(self, offer: bytes) -> bytes:
        return Invitation.decode(offer).configuration.context.digest


class OneMessage(Deployed):
    """The server and each holder take an upload."""

    now, module = one_message_sums.NOW, one_message_client

    def __init__(self) -> None:
        super().__init__()
        self.sum = InsecureSum(SumSetup())
        self.client = self.sum.setup.clients[0]
        self.authority, self.key = self.sum.authority, self.sum.setup.key_of(str(self.client))
        self.subject = self.sum.setup.subject

    def offer(self, standing: Standing) -> bytes:
        with patch.object(InsecureSum, "standing", standing):
            self.offered = self.sum.offer()
        return self.offered.encode()

    def member(self, certificate: Certificate) -> Member:
        return self.sum.member(
            self.client,
            certificate=certificate,
            signing_key=self.key,
            policy=replace(self.sum.policy, maximum_standing_age=self.longest),
            clock=self.clock,
            standings=self.standings,
        )

    def update(self) -> Update:
        return Update(self.sum.setup.values_of(self.client), self.sum.setup.model)

    def takers(self, answer: bytes) -> Iterator[Callable[[], object]]:
        server = Tally(self.offered, COINS)
        self.sum.ask(server, server.introduce())
        yield lambda: server.receive_upload(self.client, answer)
        with patch.object(Standing, "require_valid"):
            agreement, upload = self.offered.agree(), Upload.decode(answer)
            _, shares = verify_upload(agreement, self.offered.terms, self.client, upload)
        for position, holder in self.sum.holders.items():
            delivery = Delivery(t0=agreement.t0, shares=(shares[position],)).encode()

            def hold(answered: Callable[[bytes], bytes] = holder.respond, delivery: bytes = delivery) -> None:
                if Receipt.decode(answered(delivery)).judged[0].verdict is Verdict.NOT_AUTHENTIC:
                    raise AuthenticationFailed(culprits=())

            yield hold

    def context(self, offer: bytes) -> bytes:
        return Offer.decode(offer).agree().t0


class Enclave(Deployed):
    """The enclave takes what its host relays."""

    now, module = int(enclave_buffers.NOW.timestamp()), enclave_client

    def __init__(self) -> None:
        super().__init__()
        self.made_of = InsecureEnclaveSession(EnclaveSetup(layout=RINGS))
        self.authority, self.key = self.made_of.authority, self.made_of.setup.signing_key_of("client 1")
        self.subject = self.made_of.subject

    def offer(self, standing: Standing) -> bytes:
        made, setup = self.made_of, self.made_of.setup
        made.configuration = replace(made.configuration, standing=standing)
        made.enclave = SimulatedEnclave(made.configuration, coins=setup.coins_of("enclave"))
        helpers = EnclaveHelpers(
            configuration=made.configuration,
            connection=made.enclave,
            offer=made.enclave.offer,
            evidence=made.enclave.evidence,
        )
        return open_enclave(made.subject, EnclaveOptions(minimum_cohort=3), None, helpers).invitation

    def member(self, certificate: Certificate) -> Member:
        setup = self.made_of.setup
        return EnclaveMember(
            certificate=certificate,
            signing_key=self.key,
            policy=replace(self.made_of.policy, maximum_standing_age=self.longest),
            judge=SimulatedJudge(),
            ledger=SealLedger,
            clock=self.clock,
            coins=setup.coins_of("client 1"),
            standings=self.standings,
        )

    def update(self) -> Update:
        return Update(self.made_of.setup.payload_of(1), bytes(32))

    def takers(self, answer: bytes) -> Iterator[Callable[[], object]]:
        sealed, _ = split_upload(answer, self.made_of.configuration)
        yield lambda: self.made_of.enclave.receive(sealed.encode())

    def context(self, offer: bytes) -> bytes:
        invited = EnclaveInvitation.decode(offer)
        return EnclaveConfiguration.decode(invited.configuration, ()).context.digest


@pytest.fixture(params=[TwoServers, OneMessage, Enclave], ids=lambda each: each.__name__)
def deployed(request: pytest.FixtureRequest) -> Deployed:
    made: Deployed = request.param()
    return made


# --- Who takes an upload ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hours", "revoked", "is_valid"),
    [(1, (), True), (1, (4, 6), True), (1, (4, 5, 6), False), (0, (), False)],
    ids=["valid", "others revoked", "revoked", "expired"],
)
def test_an_upload_under_a_revoked_or_expired_key_is_nobodys(
    deployed: Deployed, hours: int, revoked: tuple[int, ...], *, is_valid: bool
) -> None:
    """Its signature is right, so every party that takes uploads has to look at the standing."""
    shown = deployed.shown(0, *revoked)
    stolen = deployed.certificate(5, deployed.now // HOUR + hours)
    parties = list(deployed.takers(deployed.cheated(shown, stolen)))
    assert parties
    for take in parties:
        if is_valid:
            take()
            continue
        with pytest.raises(AuthenticationFailed):
            take()


def test_the_standing_is_in_the_digest_of_the_offer(deployed: Deployed) -> None:
    """Else a server would judge uploads by another standing than clients were shown."""
    contexts = {deployed.context(deployed.offer(deployed.shown(0, *revoked))) for revoked in ((), (9,))}
    assert len(contexts) == 2


# --- What a client is shown -------------------------------------------------------------------------------------------


def test_a_client_answers_under_a_fresh_standing(deployed: Deployed) -> None:
    deployed.answered(deployed.shown(DAY, 4))
    assert deployed.charged


def _none(_: Deployed) -> Standing:
    return NO_STANDING


def _with_less(it: Deployed) -> Standing:
    return replace(it.shown(0, 3), revoked=())


def _of_another(it: Deployed) -> Standing:
    return Standing(number=it.now).signed(it.key)


def _old(it: Deployed) -> Standing:
    return it.shown(DAY + 1)


def _early(it: Deployed) -> Standing:
    return it.shown(-HOUR - 1)


def _against_it(it: Deployed) -> Standing:
    return it.shown(0, 7)


@pytest.mark.parametrize(
    ("saying", "standing"),
    [
        ("missing", _none),
        ("not signed", _with_less),
        ("not signed", _of_another),
        ("hours old", _old),
        ("future", _early),
        ("revokes this client's own", _against_it),
    ],
    ids=["missing", "altered", "another authority's", "old", "from the future", "against itself"],
)
def test_a_client_makes_and_charges_nothing_under_a_standing_that_it_refuses(
    deployed: Deployed, saying: str, standing: Callable[[Deployed], Standing]
) -> None:
    with pytest.raises(InvalidParameters, match=saying) as caught:
        deployed.answered(standing(deployed), deployed.certificate(7))
    assert caught.value.reason is Reason.BELOW_FLOOR
    assert not deployed.charged


def test_a_replayed_standing_is_refused(deployed: Deployed) -> None:
    """A server that kept an older roster brings a revoked key back for as long as the policy allows."""
    deployed.standings.see_standing(deployed.authority.public_key, deployed.shown(60, 3))
    with pytest.raises(InvalidParameters, match="has seen one of"):
        deployed.answered(deployed.shown(61))
    assert not deployed.charged


def test_a_client_whose_key_has_expired_takes_part_no_more(deployed: Deployed) -> None:
    with pytest.raises(InvalidParameters, match="ask for a new one"):
        deployed.answered(deployed.shown(), deployed.certificate(7, deployed.now // HOUR))
    assert not deployed.charged


def test_a_client_that_refuses_an_offer_remembers_no_standing(deployed: Deployed) -> None:
    """A refusal for another reason comes first, as a check that changes nothing."""
    deployed.key.wipe()
    with patch.object(deployed.standings, "see_standing") as remembered, pytest.raises(Misuse):
        deployed.answered(deployed.shown())
    assert not remembered.called
    assert not deployed.charged


def test_a_client_with_a_shorter_limit_on_age_keeps_it(deployed: Deployed) -> None:
    deployed.longest = 120
    deployed.answered(deployed.shown(120))
    with pytest.raises(InvalidParameters, match="hours old"):
        deployed.answered(deployed.shown(121))
