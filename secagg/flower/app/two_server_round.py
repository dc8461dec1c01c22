"""One round of two servers over a grid: this process is server 0, and hands the other operator's server its halves.

Parameters of a round are part of its configuration, so each round has another one. Server 1 is offered it, and takes
part within floors of its operator's; clients hold both servers to it. Whatever this process does otherwise than the
protocol says, one of those refuses: that is the other operator's and the clients' concern, and no promise of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from flwr.app import Message, RecordDict

from secagg.contract import Aggregate, Layout
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, SecAggError, ThresholdNotMet
from secagg.flower.keys.server_pair import load_server_keys, load_server_pair
from secagg.flower.model_tensors import model_digest
from secagg.flower.settings import PREFIX, SUITES
from secagg.identifiers import ServerId
from secagg.parameters import LEAST_COHORT
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.less_protected import NoJournal, NoRoundFile
from secagg.protocols.two_servers.message_sizes import exchange_bytes
from secagg.protocols.two_servers.operators.process import PeerLink
from secagg.protocols.two_servers.operators.relay_messages import RoundOffers
from secagg.protocols.two_servers.operators.relaying_server import RelayingServer
from secagg.protocols.two_servers.operators.server_keys import OperatorKeys, ServerKeys, trial_server_keys
from secagg.protocols.two_servers.operators.standing_rules import StandingFloors, StandingRounds, lanes_of
from secagg.protocols.two_servers.operators.standing_server import StandingServer, asking
from secagg.protocols.two_servers.server import IndexingServer

from .exchange import Exchange, StageCount
from .logs import LOG
from .records import RECORD, TRAIN_STAGE, message_in
from .round_task import RoundResult, RoundTask, round_result
from .two_server_member import bound_layout

STAGE: Final = "train and share"
_LIFETIME: Final = timedelta(hours=12)
Ask = Callable[[bytes], bytes]


class SecondServerLost(ConnectionError):
    """The second server cannot be reached, or went away; no ``SecAggError``: nobody sent anything wrong."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"{PREFIX}second-server is {path}, and nothing answers there ({cause}); its operator starts `secagg "
            "two-servers serve` with the same keys and journal. This round is over; the next one has another number"
        )


class TwoServerRound:
    """One round of two servers, of which this is server 0."""

    def __init__(self, task: RoundTask, exchange: Exchange, coins: Coins) -> None:
        """Hold everything for one round; ``run`` once."""
        self._task = task
        self._exchange = exchange
        self._coins = coins
        self.stages = list[tuple[str, StageCount]]()
        """What each stage carried, so far."""

    def run(self, invited: Sequence[Message], timeout: float | None) -> RoundResult:
        """Carry a round through, and return the means.

        Raises:
            ThresholdNotMet: too few uploaded; nothing is learned, and the model stays as it was.
            SecondServerLost: the second server's process ended, and the round with it.
            SecAggError: the second server takes no part, or the servers do not release.
        """
        try:
            with ExitStack() as stack:
                return self._run(invited, timeout, stack)
        except (SecAggError, SecondServerLost) as error:
            LOG.error("round %d failed, and nothing of it was learned: %s", self._task.round_number, error)
            raise

    def _run(self, invited: Sequence[Message], timeout: float | None, stack: ExitStack) -> RoundResult:
        task, carrier, settings = self._task, list[Message](), self._task.settings
        zero, one = self._keys(stack)
        peer = one.public if isinstance(one, ServerKeys) else one
        # The layout of the configuration binds the model and the terms as well; clients compute the same one.
        unbound = task.invitation(b"")
        layout = bound_layout(task.update.layout, model_digest(task.sent), unbound)
        public_keys = zero.public.signing_key, peer.signing_key
        configuration = self._configuration(len(invited), layout, public_keys)
        pair_key = stack.enter_context(zero.pair_key(peer))
        if isinstance(one, ServerKeys):
            ask = self._simulated(one, zero.public, configuration, stack)
        else:
            ask = self._linked(pair_key, configuration, stack)
        server = IndexingServer(
            configuration,
            ServerId(0),
            round_number=task.round_number,
            signing_key=zero.signing_key(),
            pair_key=pair_key,
            # A round that this process forgets is over; its clients answer no more, and the next has another number.
            journal=NoJournal(),
            coins=self._coins,
        )
        stack.callback(server.wipe)
        relaying = RelayingServer(server, ask)
        offers = RoundOffers(is_simulated=not settings.second_server, offers=relaying.begin())
        invitation = replace(unbound, offer=configuration.encode(), evidence=offers.encode())
        record = invitation.to_record(TRAIN_STAGE)

        def accept(reply: Message) -> None:
            relaying.receive(message_in(reply.content))
            reply.content = RecordDict()
            carrier[:] = [reply]

        contents = {
            message.metadata.dst_node_id: RecordDict({**message.content, RECORD: record}) for message in invited
        }
        count = self._exchange.run(contents, accept, timeout=timeout)
        failures, count.failures = count.failures, []
        self.stages.append((STAGE, count))
        LOG.info("round %d, %s: %s", task.round_number, STAGE, count)
        if not carrier:
            raise ThresholdNotMet(needed=configuration.minimum_cohort, present=0, what="shared updates")
        result = relaying.finish()
        for client, reason in result.rejected.items():
            LOG.warning("%s is left out: %s", client, reason)
        found = result.aggregate
        aggregate = Aggregate(task.update.layout, found.values, found.contributors, found.total_weight)
        return round_result(task, aggregate, carrier[0], failures)

    def _configuration(self, invited: int, layout: Layout, server_keys: tuple[bytes, bytes]) -> IndexingConfiguration:
        task, settings = self._task, self._task.settings
        if task.roster is None:
            raise InvalidParameters(
                f"{PREFIX}roster names the clients of two servers; make one with `secagg flower keys`"
            )
        least = settings.minimum_cohort or max(LEAST_COHORT, invited - settings.tolerated_dropouts(invited))
        if least > invited:
            raise InvalidParameters(
                f"{PREFIX}minimum-cohort is {least}, and the strategy invites {invited} clients; let it sample more"
            )
        return IndexingConfiguration(
            task=task.task.encode(),
            suite=SUITES[settings.suite],
            authority=task.roster.authority,
            server_keys=server_keys,
            layout=layout,
            minimum_cohort=least,
            maximum_cohort=invited,
            maximum_rejections=invited - least,
            expiry=int((datetime.now(UTC) + _LIFETIME).timestamp()),
        )

    def _keys(self, stack: ExitStack) -> tuple[ServerKeys, ServerKeys | OperatorKeys]:
        """Return the keys of server 0, and those of server 1: the public ones if there is a second operator."""
        settings = self._task.settings
        if not settings.second_server:
            LOG.warning(
                "a simulated second server protects no client from this one; %ssecond-server names another's", PREFIX
            )
            zero, one = (stack.enter_context(keys) for keys in trial_server_keys(self._coins))
            return zero, one
        pair = load_server_pair(Path(settings.servers))
        zero = stack.enter_context(load_server_keys(Path(settings.server_keys), 0))
        if zero.public != pair.operators[0]:
            raise InvalidParameters(
                f"{PREFIX}server-keys is not the key file of the server 0 that {settings.servers} names"
            )
        return zero, pair.operators[1]

    def _linked(self, pair_key: Secret, configuration: IndexingConfiguration, stack: ExitStack) -> Ask:
        """Return what asks the second operator's server."""
        path = Path(self._task.settings.second_server)
        link = PeerLink(path, pair_key, self._coins, answer_bytes=exchange_bytes(configuration))
        stack.callback(link.close)

        def ask(request: bytes) -> bytes:
            try:
                return link.ask(request)
            except OSError as error:
                raise SecondServerLost(path, str(error)) from error

        return ask

    def _simulated(
        self, keys: ServerKeys, peer: OperatorKeys, configuration: IndexingConfiguration, stack: ExitStack
    ) -> Ask:
        """Return what asks a second server in this process, for which any configuration will do."""
        floors = StandingFloors(
            task_prefix=configuration.task,
            authority=configuration.authority,
            server_keys=configuration.server_keys,
            minimum_cohort=LEAST_COHORT,
            maximum_cohort=configuration.maximum_cohort,
            maximum_lanes=lanes_of(configuration),
            maximum_lifetime=2 * _LIFETIME,
        )
        rounds = StandingRounds(floors, NoJournal())
        standing = StandingServer(keys, peer, rounds, NoRoundFile(), coins=self._coins)
        stack.callback(standing.end_round)
        return asking(standing.answer)
