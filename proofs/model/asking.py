"""One request for shares to one client: which of the existing signatures it accepts in the request, and its answer.

At each place of a valid request, every other signature of the same client is tried on its own, together with
certificates and views that the server makes up in place of missing ones. A schedule then uses the best request that
exists in it, and the forgeries that a client accepts. Only the client decides what is accepted, not this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from bits import Bits
from knowledge import EDGE, ROOT, SELF, Owner, Share
from paths import Messages, Path, Paths
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import AnsweredFor, Asked, Endorsement, UnmaskingShares
from secagg.protocols.pairwise_mask.suites import SHARES_BYTES
from setups import GENUINE, Set
from showing import NO_SIGNATURE, World, set_on

FREE, TAKEN, OTHER, NOTHING = 3, 2, 1, 0
"""Contents of a place: made by the server, a signature that the client accepts there, another one, nothing."""
FORGED_VIEWS = ("no views", "one view for all")


class Signatures(Bits[tuple[int, bytes]]):
    """Every statement that an honest client can sign in some schedule: the signer and the statement."""

    def __init__(self, world: World) -> None:
        """Start without statements."""
        super().__init__()
        self._world = world
        self.of = dict[int, int]()
        """Return everything that a client can sign."""

    def bit(self, thing: tuple[int, bytes]) -> int:
        """Return the bit of a client's statement."""
        bit = super().bit(thing)
        self.of[thing[0]] = self.of.get(thing[0], 0) | bit
        return bit

    def signature(self, bits: int) -> bytes:
        """Return the signature on the first statement."""
        return self._world.sign(*self.first(bits))


@dataclass(slots=True)
class Place:
    """One place for a signature in a request."""

    signer: int
    exact: bytes
    """The signature that belongs there."""
    free: bytes | None
    """The signatures that the server can make by itself."""
    fits: int = 0
    """The signatures that the client accepts there."""
    others: int = 0
    """All other signatures of the same client."""

    def standing(self, pool: int) -> int:
        """Return the content of the place, among the existing signatures."""
        return FREE if self.free else TAKEN if pool & self.fits else OTHER if pool & self.others else NOTHING

    def signature(self, pool: int, signatures: Signatures) -> bytes:
        """Return the best existing one."""
        best = pool & self.fits or pool & self.others
        return self.free or (signatures.signature(best) if best else NO_SIGNATURE)


@dataclass(frozen=True, slots=True)
class Answer:
    """The shares that one honest client revealed, and for which contributors."""

    owner: Owner
    path: Path
    contributors: Set
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a request."""

    messages: Messages
    """The message sequence including the request."""
    answer: Answer | None
    """Nothing if the request was refused."""
    shares: int = 0
    """The revealed shares, as bits."""


class Request:
    """A request to one client on one path."""

    def __init__(  # noqa: PLR0913, PLR0917 -- its position
        self,
        paths: Paths,
        signatures: Signatures,
        shares: Bits[Share],
        client: int,
        path: Path,
        index: int,
        before: Messages,
    ) -> None:
        """Try every signature at every place, after the valid sequence up to here."""
        self._paths, self._world, self._signatures, self._shares = paths, paths.world, signatures, shares
        self.client, self.path, self.contributors = client, path, path.asked[index]
        self._is_second = index > 0
        shown, world = path.shown, paths.world
        endorsers = paths.endorsers(shown, self.contributors)
        viewers = paths.viewers(client, shown, self.contributors)
        self._endorsers = [
            self._place(member, world.endorsement_statement(shown, member, path.sharers, self.contributors))
            for member in endorsers
        ]
        self._viewers = [self._place(other, world.view_statement(shown, other, path.sharers)) for other in viewers]
        self._places = [*self._endorsers, *self._viewers]
        self._answered = dict[tuple[Messages, tuple[int, ...]], Answered]()
        self._try(before)

    def _place(self, signer: int, statement: bytes) -> Place:
        free = self._world.signed_by_server(self.path.shown, signer, statement)
        all_of_it = 0 if free else self._signatures.of.get(signer, 0)
        return Place(signer, free or self._world.sign(signer, statement), free, others=all_of_it)

    def _try(self, before: Messages) -> None:
        for place in self._places:
            exact = place.exact
            for statement in self._signatures.each(place.others):
                place.exact = self._world.sign(*statement)
                place.fits |= self._signatures.bit(statement) if self._takes(before, self._perfect()) else 0
            place.exact, place.others = exact, place.others & ~place.fits
        quorum = self._world.setup.quorum
        perfect = [(place.signer, place.exact) for place in self._endorsers]
        views = [place.exact for place in self._viewers]
        self._forged = tuple(
            name
            for name in (*self._certificates(()), *FORGED_VIEWS[: len(views)])
            if any(
                self._takes(before, self._forgery(name, self._listed(perfect[:true]), views))
                for true in ((quorum,) if name in FORGED_VIEWS else (quorum - 1, 0))
            )
        )

    def _takes(self, before: Messages, request: bytes) -> bool:
        sequence = (*before, *self._paths.next(request, is_second=self._is_second))
        return self._world.run((self.client, GENUINE), self.path.shown.attempt, sequence).accepted

    # --- Requests -----------------------------------------------------------------------------------------------------

    def _perfect(self) -> bytes:
        endorsements = {place.signer: place.exact for place in self._endorsers}
        views = [place.exact for place in self._viewers]
        return self._world.request_message(self.path.shown, self.contributors, endorsements, views)

    def _listed(self, signed: list[tuple[int, bytes]]) -> tuple[Endorsement, ...]:
        shown = self.path.shown
        found = [self._world.endorsement(shown, member, signature) for member, signature in sorted(signed)]
        return tuple(item for item in found if item is not None)

    def _certificates(self, exact: tuple[Endorsement, ...]) -> dict[str, tuple[Endorsement, ...]]:
        if not self._world.setup.quorum:
            return {}
        return self._world.forged_certificates(self.path.shown, self.path.sharers, self.contributors, exact)

    def _forgery(self, name: str, exact: tuple[Endorsement, ...], views: list[bytes]) -> bytes:
        if name in FORGED_VIEWS:
            views = [views[0]] * len(views) if name == FORGED_VIEWS[1] and views else []
        listed = exact if name in FORGED_VIEWS else self._certificates(exact)[name]
        return self._world.request_of(self.path.shown, self.contributors, listed, views)

    def answer(self, before: Messages, pool: int) -> Answered:
        """Send a request after a message sequence, with a schedule's signatures, and with forgeries if needed."""
        standing = tuple([place.standing(pool) for place in self._places])
        key = before, standing
        if key not in self._answered:
            self._answered[key] = self._asked(before, pool, standing)
        return self._answered[key]

    def _asked(self, before: Messages, pool: int, standing: tuple[int, ...]) -> Answered:
        quorum, sequence = self._world.setup.quorum, before
        there = [
            (-rank, place.signer, place.signature(pool, self._signatures))
            for rank, place in zip(standing, self._endorsers, strict=False)
            if rank
        ]
        best = [(signer, signature) for _, signer, signature in sorted(there)[:quorum]]
        exact = [(signer, signature) for rank, signer, signature in sorted(there) if -rank >= TAKEN]
        views = [place.signature(pool, self._signatures) for place in self._viewers]
        plain = self._world.request_of(self.path.shown, self.contributors, self._listed(best), views)
        for request in (plain, *(self._forgery(name, self._listed(exact[:quorum]), views) for name in self._forged)):
            sequence = (*before, *self._paths.next(request, is_second=self._is_second))
            shares = self._shown_shares(sequence)
            if shares is not None:
                owner = self.client, self.path.shown.attempt
                answer = Answer(owner, self.path, self.contributors, shares)
                return Answered(sequence, answer, self._shares.set_of(shares))
        return Answered(sequence, None)

    # --- Answers ------------------------------------------------------------------------------------------------------

    def _shown_shares(self, sequence: Messages) -> tuple[Share, ...] | None:
        """Return every share, and every seed of an edge, that the answer contains."""
        world, path = self._world, self.path
        owner = self.client, path.shown.attempt
        answers = world.run((self.client, GENUINE), path.shown.attempt, sequence)
        if not answers.accepted:
            return None
        roster, numbers = world.roster(path.shown), sorted(path.shown.clients)
        sets = set_on(path.shown, path.sharers), set_on(path.shown, self.contributors)
        answered = AnsweredFor.by(roster, *sets, numbers.index(self.client))
        reply = UnmaskingShares.decode(answers.replies[-1], Asked(roster, answered))
        half = SHARES_BYTES // 2
        dealers = {numbers[place] for place in answered.neighbours} - self._world.setup.corrupted
        found = [
            Share(secret, (dealer, owner[1]), self.client)
            for dealer in sorted(dealers & path.shown.genuine)
            for both in (world.dealt(path.shown, dealer)[self.client],)
            for secret, value in ((ROOT, both[:half]), (SELF, both[half:]))
            if value in reply.shares
        ]
        edges = [Share(EDGE, (numbers[place], owner[1]), self.client) for place in answered.edges]
        return tuple(chain(found, edges))
