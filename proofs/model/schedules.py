"""Every schedule of a case: what the server shows to each honest client, and what it has learned in the end.

First each client is offered every message of the catalogue in every order that its state takes, with all signatures
that could ever exist; what it refuses even so it refuses in every schedule. Then every combination of what is left is
played, with the signatures and shares that exist in that combination, against the library's own clients. A request
that lacks a signature is made with another of the same signer, from whichever set or attempt. Nothing is lost by asking
every client for everything: whoever answers less tells less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, combinations, product

from knowledge import ROOT, SELF, Owner, Share, Upload, fault, known_secrets, leaked_to_corrupted
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedInput
from secagg.protocols.pairwise_mask.round3_consistency_check import SurvivorSignature
from secagg.protocols.pairwise_mask.round4_unmasking import AnsweredFor, UnmaskingShares
from secagg.protocols.pairwise_mask.suites import SHARES_BYTES
from secagg.session.certificates import SIGNATURE_BYTES
from sessions import GENUINE, IMPOSTOR, REPLAYED, TRANSPLANTED, Set, Setup, Shown, World, set_on, shown_as

NO_SIGNATURE = bytes(SIGNATURE_BYTES)
Signatures = tuple[tuple[tuple[int, bytes], ...], tuple[bytes, ...]]
"""The endorsements of a request, with their signers, and its views."""
Statements = list[tuple[int, bytes]]
"""Who would sign what."""


@dataclass(frozen=True, slots=True, eq=False)
class Path:
    """What the server shows to one client in one attempt; each is made once, and known by itself."""

    shown: Shown
    sharers: Set
    signed: tuple[Set, ...]
    """The contributors that it is asked to sign, one set after another."""
    asked: tuple[Set, ...]
    """The contributors for whom it is asked for shares."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """How much the server may vary; everything else it does as a server that follows the protocol."""

    rosters: str = "everyone"
    """``everyone``; ``subsets``: any clients; ``keys``: also any other keys beside any names."""
    sharers: Callable[[Setup, int, int], bool] | None = None
    """Of which client, in which attempt, the set of sharers is varied; of all if this is missing."""
    lists: Callable[[Setup, int, int], bool] | None = None
    """The same for the sets of contributors that it is shown; otherwise it is shown that everybody contributed."""
    sizes: frozenset[int] | None = None
    """How large these sets may be; any size if this is missing."""
    agreed: bool = False
    """The server follows the protocol: one roster, one set of sharers, one of contributors."""


@dataclass(slots=True)
class Report:
    """What came out of a case."""

    schedules: int = 0
    revealing: int = 0
    """In how many of them some sum came out; if it is none, nothing was tried."""
    refused: int = 0
    """How many single messages some client refused whatever else existed."""
    runs: int = 0
    """How many sequences of messages were given to a client of the library."""
    fault: str | None = None
    trace: tuple[Path, ...] = ()


class Explorer:
    """All schedules of one setup."""

    def __init__(self, setup: Setup, catalogue: Catalogue) -> None:
        self.setup, self.catalogue, self.world = setup, catalogue, World(setup)
        if 0 < setup.committee < setup.population:
            self.world.draw_committee(frozenset(range(setup.committee)))
        self.report = Report()
        self._outcomes = dict[tuple[int, Path, Set], Outcome]()
        self._asked = dict[tuple[tuple[bytes, ...], Set, Signatures], tuple[tuple[bytes, ...], tuple[Share, ...]]]()
        self._statements = dict[tuple[int, Path, Set], tuple[Statements, Statements]]()
        self._verdicts = dict[tuple[tuple[Upload, ...], frozenset[Share]], tuple[bool, str | None]]()
        self._keeps_input = {c: setup.attempts > 1 and self.world.keeps_its_input(c) for c in setup.honest}

    def explore(self) -> Report:
        """Play every schedule, up to the first that tells the server too much."""
        choices = self._agreed() if self.catalogue.agreed else self._free()
        for schedule in choices:
            self.report.schedules += 1
            revealing, found = self._play(schedule)
            self.report.revealing += revealing
            if found is not None:
                self.report.fault, self.report.trace = found, tuple(schedule.values())
                break
        self.report.runs = self.world.runs
        return self.report

    def _free(self) -> Iterator[dict[Owner, Path]]:
        owners = [(client, attempt) for attempt in range(self.setup.attempts) for client in self.setup.honest]
        for paths in product(*_useful([self._paths(*owner) for owner in owners])):
            yield dict(zip(owners, paths, strict=True))

    def _agreed(self) -> Iterator[dict[Owner, Path]]:
        """Yield the schedules of a server that follows the protocol: dropouts wherever they can happen."""
        shown, honest = self.world.whole_roster(0), self.setup.honest
        made = dict[tuple[Set, tuple[Set, ...]], Path]()
        for sharers in subsets(self.setup.everyone):
            for contributors in subsets(sharers):
                for answering in subsets(contributors - self.setup.corrupted):
                    asked = {client: (contributors,) if client in answering else () for client in honest}
                    for once in asked.values():
                        made.setdefault((sharers, once), Path(shown, sharers, (), once))
                    yield {(c, 0): made[sharers, once] for c, once in asked.items() if c in contributors}

    # --- What one client takes --------------------------------------------------------------------------------------

    def _paths(self, client: int, attempt: int) -> list[Path]:
        """Return every path that the client follows to its end if all signatures exist, and no part of another."""
        taken = list[Path]()
        for shown in self._rosters(client, attempt):
            messages = (self.world.roster_message(shown, client),)
            if self._takes(client, attempt, messages):
                taken.extend(self._after_roster(client, shown, messages))
        # A client that takes no roster at all has still advertised its keys.
        return taken or [Path(self.world.whole_roster(attempt), frozenset(), (), ())]

    def _rosters(self, client: int, attempt: int) -> Iterator[Shown]:
        setup, kind_of = self.setup, self.catalogue.rosters
        if kind_of == "everyone":
            yield self.world.whole_roster(attempt)
            return
        for clients in subsets(setup.everyone):
            if client in clients and len(clients) > 1:
                yield shown_as(attempt, tuple((number, GENUINE) for number in sorted(clients)))
        if kind_of == "keys":
            kinds = [IMPOSTOR, TRANSPLANTED, *([REPLAYED] if setup.attempts > 1 else [])]
            for replaced in subsets(setup.everyone - {client}):
                for kind in kinds if replaced else ():
                    keys = {number: kind if number in replaced else GENUINE for number in setup.everyone}
                    yield shown_as(attempt, tuple(sorted(keys.items())))

    def _after_roster(self, client: int, shown: Shown, messages: tuple[bytes, ...]) -> Iterator[Path]:
        varied = self.catalogue.sharers is None or self.catalogue.sharers(self.setup, client, shown.attempt)
        for sharers in subsets(shown.clients) if varied else (shown.clients,):
            delivered = (*messages, self.world.shares_message(shown, client, sharers))
            if not self._takes(client, shown.attempt, delivered):
                continue
            for other in sorted(sharers - {client}):
                junk = self.world.shares_message(shown, client, sharers, frozenset({other}))
                self._takes(client, shown.attempt, (*messages, junk))
            yield from self._after_upload(client, Path(shown, sharers, (), ()), delivered)

    def _after_upload(self, client: int, path: Path, messages: tuple[bytes, ...]) -> Iterator[Path]:
        shown, attempt = path.shown, path.shown.attempt
        candidates = self._lists(client, shown)
        if client not in self.world.committee(shown):
            yield from self._after_signing(client, path, messages, candidates)
            return
        signable = list[Set]()
        for contributors in candidates:
            survivors = self.world.survivors_message(shown, path.sharers, contributors)
            if self._takes(client, attempt, (*messages, survivors)):
                signable.append(contributors)
            for other in shown.clients:
                # Other sharers than before: one more, or one fewer.
                survivors = self.world.survivors_message(shown, path.sharers ^ {other}, contributors)
                if contributors == path.sharers and self._takes(client, attempt, (*messages, survivors)):
                    raise NotImplementedError("a client signs other sharers than it masked under; model this")
        for first in signable:
            sequence, again = (*messages, self.world.survivors_message(shown, path.sharers, first)), False
            for second in signable:
                longer = (*sequence, self.world.survivors_message(shown, path.sharers, second))
                if second != first and self._takes(client, attempt, longer):
                    signed, again = Path(shown, path.sharers, (first, second), ()), True
                    yield from self._after_signing(client, signed, longer, signable)
            if not again:
                yield from self._after_signing(client, Path(shown, path.sharers, (first,), ()), sequence, signable)

    def _lists(self, client: int, shown: Shown) -> list[Set]:
        """Return the sets of contributors that a client is shown."""
        varied, sizes = self.catalogue.lists, self.catalogue.sizes
        if varied is not None and not varied(self.setup, client, shown.attempt):
            return [shown.clients]
        return [members for members in subsets(shown.clients) if sizes is None or len(members) in sizes]

    def _after_signing(
        self, client: int, path: Path, messages: tuple[bytes, ...], candidates: list[Set]
    ) -> Iterator[Path]:
        asked = list[Path]()
        for first in candidates:
            sequence = (*messages, self._perfect_request(client, path, first))
            if not self._takes(client, path.shown.attempt, sequence):
                continue
            pairs = [
                Path(path.shown, path.sharers, path.signed, (first, second))
                for second in candidates
                if second != first
                and self._takes(client, path.shown.attempt, (*sequence, self._perfect_request(client, path, second)))
            ]
            asked += pairs or [Path(path.shown, path.sharers, path.signed, (first,))]
        yield from asked or [path]

    def _takes(self, client: int, attempt: int, messages: tuple[bytes, ...]) -> bool:
        accepted = self.world.run((client, GENUINE), attempt, messages).accepted
        self.report.refused += not accepted
        return accepted

    def _perfect_request(self, client: int, path: Path, contributors: Set) -> bytes:
        """Return the request that has every signature, whether or not it exists in a schedule."""
        world, shown = self.world, path.shown
        endorsements = {
            member: world.sign(member, world.endorsement_statement(shown, member, path.sharers, contributors))
            for member in self._endorsers(shown, contributors)
        }
        views = [
            world.sign(other, world.view_statement(shown, other, path.sharers))
            for other in self._viewers(client, shown, contributors)
        ]
        return world.request_message(shown, contributors, endorsements, views)

    def _endorsers(self, shown: Shown, contributors: Set) -> list[int]:
        """Return who could sign: members that contributed, and corrupted ones."""
        return sorted(self.world.committee(shown) & (contributors | self.setup.corrupted))

    def _viewers(self, client: int, shown: Shown, contributors: Set) -> list[int]:
        return sorted((contributors & shown.clients) - {client}) if self.setup.quorum else []

    # --- What a schedule tells --------------------------------------------------------------------------------------

    def _play(self, schedule: Mapping[Owner, Path]) -> tuple[bool, str | None]:
        """Return whether a sum came out, and what the server must not have learned."""
        shares, uploads = list[Share](), list[Upload]()
        pool = dict[int, dict[bytes, bytes]]()
        outcomes = dict[Owner, Outcome]()
        for owner, path in schedule.items():
            client, attempt = owner
            shares += leaked_to_corrupted(self.setup, owner, path.shown)
            missing = frozenset(
                other
                for other in path.sharers - self.setup.corrupted - {client}
                if other in path.shown.genuine
                and (other, attempt) in schedule
                and schedule[other, attempt].shown != path.shown
            )
            outcome = outcomes[owner] = self._outcome(client, path, missing)
            pool.setdefault(client, {}).update(outcome.signatures)
            if outcome.uploaded:
                first = 0 if attempt and self._keeps_input[client] and (client, 0) in outcomes else attempt
                uploads.append(Upload(owner, path.shown, path.sharers, (client, first)))
        for owner, path in schedule.items():
            if path.asked and len(outcomes[owner].signatures) == outcomes[owner].due:
                shares += self._answers(owner[0], path, outcomes[owner].messages, pool)
        key = tuple(uploads), frozenset(shares)
        if key not in self._verdicts:
            seeds, roots = known_secrets(self.setup, shares)
            self._verdicts[key] = bool(seeds), fault(self.setup, uploads, seeds, roots)
        return self._verdicts[key]

    def _outcome(self, client: int, path: Path, missing: Set) -> Outcome:
        key = client, path, missing
        if key not in self._outcomes:
            self._outcomes[key] = self._upload_and_sign(client, path, missing)
        return self._outcomes[key]

    def _upload_and_sign(self, client: int, path: Path, missing: Set) -> Outcome:
        world, shown = self.world, path.shown
        delivered = world.shares_message(shown, client, path.sharers, missing)
        messages = [world.roster_message(shown, client), delivered]
        messages += [world.survivors_message(shown, path.sharers, contributors) for contributors in path.signed]
        answers = world.run((client, GENUINE), shown.attempt, tuple(messages))
        signatures = dict[bytes, bytes]()
        uploaded = len(answers.replies) > 2  # noqa: PLR2004 -- the advertisement, the shares, the upload
        if uploaded and self.setup.quorum:
            view = MaskedInput.decode(answers.replies[2], world.roster(shown)).signature
            signatures[world.view_statement(shown, client, path.sharers)] = view
            for contributors, reply in zip(path.signed, answers.replies[3:], strict=False):
                statement = world.endorsement_statement(shown, client, path.sharers, contributors)
                signatures[statement] = SurvivorSignature.decode(reply).signature
        due = len(signatures) if answers.accepted else -1
        return Outcome(tuple(messages), uploaded, signatures, due)

    def _answers(
        self, client: int, path: Path, messages: tuple[bytes, ...], pool: Mapping[int, Mapping[bytes, bytes]]
    ) -> list[Share]:
        """Ask for everything on the path, and return the shares that come."""
        sequence, shares = messages, list[Share]()
        for contributors in path.asked:
            with_what = self._signatures(client, path, contributors, pool)
            key = sequence, contributors, with_what
            if key not in self._asked:
                request = self.world.request_message(path.shown, contributors, dict(with_what[0]), with_what[1])
                longer = (*sequence, request)
                self._asked[key] = longer, self._ask(client, path, contributors, longer)
            sequence, shown = self._asked[key]
            shares += shown
        return shares

    def _signatures(
        self, client: int, path: Path, contributors: Set, pool: Mapping[int, Mapping[bytes, bytes]]
    ) -> Signatures:
        """Return the endorsements and views to ask with; where one lacks, another of the same signer."""
        if (client, path, contributors) not in self._statements:
            world, shown = self.world, path.shown
            endorsers, viewers = self._endorsers(shown, contributors), self._viewers(client, shown, contributors)
            self._statements[client, path, contributors] = (
                [(m, world.endorsement_statement(shown, m, path.sharers, contributors)) for m in endorsers],
                [(v, world.view_statement(shown, v, path.sharers)) for v in viewers],
            )
        to_endorse, to_view = self._statements[client, path, contributors]
        exact, others = list[tuple[int, bytes]](), list[tuple[int, bytes]]()
        for member, statement in to_endorse:
            found = self._signature(member, path.shown, statement, pool)
            if found is not None:
                (exact if found[1] else others).append((member, found[0]))
        views = list[bytes]()
        for other, statement in to_view:
            found = self._signature(other, path.shown, statement, pool)
            views.append(found[0] if found is not None else NO_SIGNATURE)
        return tuple([*exact, *others][: self.setup.quorum]), tuple(views)

    def _signature(
        self, signer: int, shown: Shown, statement: bytes, pool: Mapping[int, Mapping[bytes, bytes]]
    ) -> tuple[bytes, bool] | None:
        """Return a signature on a statement, and whether it is on that one or on another of the kind."""
        if signer in self.setup.corrupted:
            return self.world.sign(signer, statement), True
        if shown.kind(signer) != GENUINE:
            return self.world.sign_as_impostor(signer, statement), True
        made = pool.get(signer, {})
        if statement in made:
            return made[statement], True
        # Statements begin with their label, whose length comes first.
        alike = [signature for other, signature in made.items() if other[:24] == statement[:24]]
        return (alike[0], False) if alike else None

    def _ask(self, client: int, path: Path, contributors: Set, sequence: tuple[bytes, ...]) -> tuple[Share, ...]:
        world, shown, owner = self.world, path.shown, (client, path.shown.attempt)
        answers = world.run((client, GENUINE), shown.attempt, sequence)
        if not answers.accepted:
            return ()
        roster, numbers = world.roster(shown), sorted(shown.clients)
        place = numbers.index(client)
        sets = set_on(shown, path.sharers), set_on(shown, contributors)
        answered = AnsweredFor.by(roster, *sets, place)
        reply = UnmaskingShares.decode(answers.replies[-1], roster, answered)
        half = SHARES_BYTES // 2
        step, found = len(reply.shares) // max(1, len(reply.held)), list[Share]()
        for index, position in enumerate(reply.held):
            dealer = numbers[answered.neighbours[position]]
            if dealer in self.setup.corrupted or shown.kind(dealer) != GENUINE:
                continue
            both = world.dealt(shown, dealer)[client]
            value = reply.shares[index * step : index * step + half]
            secret = {both[:half]: ROOT, both[half:]: SELF}[value]
            found.append(Share(secret, (dealer, owner[1]), client))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client gave out before it was asked for shares."""

    messages: tuple[bytes, ...]
    uploaded: bool
    signatures: dict[bytes, bytes]
    due: int
    """How many signatures there are if it took every message; -1 if it refused one."""


def _useful(choices: list[list[Path]]) -> list[list[Path]]:
    """Leave out who signs what nobody would unmask and is asked for nothing, if it can also be asked for something."""
    unmasked = {contributors for paths in choices for path in paths for contributors in path.asked}
    useful = list[list[Path]]()
    for paths in choices:
        asked = {(path.shown, path.sharers) for path in paths if path.asked}
        useful.append(
            [
                path
                for path in paths
                if path.asked or unmasked & {*path.signed} or (path.shown, path.sharers) not in asked
            ]
        )
    return useful


def subsets(members: Set) -> Iterator[Set]:
    """Yield every subset, the largest first."""
    ordered = sorted(members)
    sizes = range(len(ordered), -1, -1)
    return map(frozenset, chain.from_iterable(combinations(ordered, size) for size in sizes))


def described(path: Path) -> str:
    """Say in words what a client was shown."""
    keys = [client if kind == GENUINE else f"{client} ({kind})" for client, kind in path.shown.keys]
    lists = [sorted(contributors) for contributors in path.signed], [sorted(asked) for asked in path.asked]
    seen = f"attempt {path.shown.attempt}: roster {keys}, sharers {sorted(path.sharers)}"
    return f"{seen}, signs {lists[0]}, asked {lists[1]}"
