"""Coded masks in one process, and their entry in the registry of protocols."""

from __future__ import annotations

from functools import partial
from typing import Final

from secagg.contract import RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.identifiers import ClientId
from secagg.session.ledger import SpentUpdates
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Subject

from .configuration import MAXIMUM_CLIENTS
from .costs import costs
from .floors import Floors
from .server import STAGES, Server
from .session import CodedMaskHelpers, CodedMaskMember, CodedMaskSettings, open_session


def describe(session: Server) -> tuple[str, ...]:
    """Return the plan, a line each."""
    configuration = session.configuration
    return (
        (
            f"masks of {configuration.length:,} elements modulo 2^31 - 1 in pieces of {configuration.piece_length:,}; "
            f"semi_honest mode, {configuration.suite.value}"
        ),
        (
            f"any {configuration.target} of {configuration.population} clients recover the sum of the masks, and "
            f"{configuration.privacy} of them with the server learn nothing else"
        ),
    )


class CodedMaskSimulation(Confined):
    """A server and its clients in one process; see ``Simulation``."""

    def __init__(self, settings: CodedMaskSettings, *, coins: Coins, clock: Clock, threads: int = 1) -> None:
        """Know of nobody yet."""
        del clock, threads  # Nothing here expires, or is divided.
        self._settings, self._coins = settings, coins
        self._members = dict[ClientId, CodedMaskMember]()

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> Server:
        """Begin a session."""
        return open_session(subject, self._settings, invited, CodedMaskHelpers(coins=self._coins))

    def member(self, client: ClientId) -> CodedMaskMember:
        """Return a client, which keeps what it suspends."""
        if client not in self._members:
            settings = self._settings
            floors = Floors(
                modes=frozenset({settings.mode}),
                suites=frozenset({settings.suite}),
                minimum_cohort=settings.minimum_cohort,
                assumed_corrupted=settings.corrupted,
                minimum_modulus_bits=1,
                maximum_length=1 << 40,
                maximum_population=settings.population or MAXIMUM_CLIENTS,
            )
            # A simulation may be run again with the updates of before; its rounds go up all the same.
            charge = partial(SpentUpdates().charge, is_repeat_allowed=True)
            self._members[client] = CodedMaskMember(client, floors=floors, coins=self._coins, charge=charge)
        return self._members[client]

    @property
    def bytes_between(self) -> int:
        """Nothing: there are no helpers."""
        return 0

    def close(self) -> None:
        """End, and wipe what clients suspended."""
        for member in self._members.values():
            member.forget()


ENTRY: Final = ProtocolEntry(
    name="coded-mask",
    summary="coded masks (LightSecAgg): one honest-but-curious server, four exchanges; for comparison",
    settings=CodedMaskSettings,
    segments=frozenset({RingSegment}),
    stages=tuple(STAGES.values()),
    takes=CodedMaskSettings.takes,
    describe=describe,
    open_session=open_session,
    helpers=CodedMaskHelpers,
    simulate=CodedMaskSimulation,
    costs=costs,
    trust="a server that follows the protocol, with no more corrupted clients than planned for; a server "
    "that lies learns inputs",
)
