"""Holders and clients of one message a client under a server that deviates as it likes, and what it learns.

The library's own ``Client`` is asked to upload, with its ledger, and its own ``Holder`` is driven with its journal. The
server may hand over each message that exists, at any time and as often as it likes, show every holder other lists,
withhold shares, and have processes end: between two requests, before a record is on the disk, or after it and before
the reply is sent. Every sequence is tried, until nothing new is reached.

What a holder does depends on what it was sent alone, so each holder is searched by itself, with certificates that have
every signature; then what one gave away is put beside what the others did, and an answer counts if the signatures of
its certificate exist. That this could have been in some order is not asked, so the server is rather too strong.

What is learned is linear algebra over the library's field, with its points: which combinations of the shared secrets
follow from the answers and from the shares of the corrupted holders. A combination of secrets opens the same
combination of inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, pairwise, product
from typing import Any, NamedTuple

from one_message_cast import CLIENTS, COHORT, SUM_IDS, Cast, MemoryJournal, Names, Sent, copied, memory_of
from secagg.crypto.labels import Label
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.protocols.one_message.configuration import SumTerms
from secagg.protocols.one_message.holder import Holder
from secagg.protocols.one_message.ledger import ClientRecord
from secagg.protocols.one_message.messages import (
    Answer,
    CertifiedList,
    HolderSignature,
    Listed,
    ListSignature,
    UploadList,
)
from secagg.protocols.one_message.parameters import ThresholdRule
from secagg.protocols.one_message.sharing_field import FIELD, holder_point, slot_points
from secagg.wire import MessageKind, message_kind
from two_servers import STARTS_AGAIN, Report

Need = tuple[int, bytes]
"""How many holders must have signed which list."""
Row = tuple[int, ...]
MOST_FACTS = 4
"""So much is given away by a holder at most: two signatures and two answers. One that gives more is followed no
further, and a search that was cut off and found nothing is a fault itself."""
MOST_UPLOADS = 3
"""So many of a client are enough to go on with, where it makes too many."""


class Request(NamedTuple):
    """Something that a holder is sent."""

    name: str
    message: bytes
    need: Need = (0, b"")


class Fact(NamedTuple):
    """Something that a holder gave away, and cannot take back."""

    kind: str
    what: bytes | Names
    """The digest of a list, or the uploads that an answer adds."""
    need: Need = (0, b"")


Facts = frozenset[Fact]
Story = dict[Facts, tuple[str, ...]]
"""What was given away in the end, and how it came to that."""


# --- Clients ----------------------------------------------------------------------------------------------------------


class Uploaded(NamedTuple):
    """An upload that left its client."""

    place: int
    update: str
    message: bytes


Asked = tuple[tuple[int, str, tuple[int, str] | None], ...]
"""For which sum, with which update, and at which writing the process ends."""


def uploads_of(cast: Cast, client: int, updates: Sequence[str], report: Report) -> dict[frozenset[Uploaded], Asked]:
    """Return what a client can be brought to upload; its process ends wherever it stores something."""
    start = b"", frozenset[Uploaded]()
    reached, frontier = {start: Asked()}, [start]
    ends = (None, (0, "before"), (0, "after"), (1, "after"), (2, "after"))
    while frontier:
        stored, made = frontier.pop()
        for place, update, end in product(cast.places, updates, ends):
            path = (*reached[stored, made], (place, update, end))
            report.calls += 1
            kept, said, refused = _upload(cast, client, stored, made, path[-1])
            report.refused += refused
            if (kept, said) not in reached and len(said) <= MOST_UPLOADS:
                reached[kept, said] = path
                frontier.append((kept, said))
    whole = largest(made for _, made in reached)
    return {made: next(path for (_, said), path in reached.items() if said == made) for made in whole}


def uploads_along(cast: Cast, client: int, path: Asked) -> frozenset[Uploaded]:
    """Ask another client the same."""
    stored, made = b"", frozenset[Uploaded]()
    for asked in path:
        stored, made, _ = _upload(cast, client, stored, made, asked)
    return made


def _upload(
    cast: Cast, client: int, stored: bytes, made: frozenset[Uploaded], asked: tuple[int, str, tuple[int, str] | None]
) -> tuple[bytes, frozenset[Uploaded], bool]:
    """Ask a client that has stored a record; return what is stored then, what has left it, and whether it refused."""
    place, update, ends = asked
    records = [stored]

    def store(record: bytes) -> None:
        if ends == (len(records) - 1, "before"):
            raise OSError
        records.append(record)
        kept = ClientRecord.decode(record).upload
        if kept:
            cast.made_of.setdefault(kept, update)
        if ends == (len(records) - 2, "after"):
            raise OSError

    asking = cast.client(client, stored or None, store, f"{len(made)}{update}")
    try:
        reply = asking.upload(cast.offers[place].encode(), cast.subject(place), cast.update(client, update))
    except SecAggError:
        return records[-1], made, True
    except OSError:
        return records[-1], made, False
    # The same bytes once more are nothing new, whatever was asked.
    of = cast.made_of.setdefault(reply, update)
    return records[-1], made | {Uploaded(place, of, reply)}, False


def largest(sets: Iterable[frozenset[Any]]) -> list[frozenset[Any]]:
    """Return the sets that are in no other one: whoever is told less learns less."""
    found = list[frozenset[Any]]()
    for one in sorted(set(sets), key=len, reverse=True):
        if not any(one < other for other in found):
            found.append(one)
    return found


# --- What holders are sent --------------------------------------------------------------------------------------------


def lists_of(cast: Cast) -> dict[str, UploadList]:
    """Return every list that a server could think of, and some that no holder should take."""
    found = dict[str, UploadList]()
    terms = [offer.terms for offer in cast.offers]
    is_certified = cast.setting.rule is ThresholdRule.CERTIFIED
    for place, again in product(cast.places, (False, True)):
        sent = [one for one in cast.sent.values() if one.place == place and one.name.endswith("'") is again]
        for size in range(1, len(sent) + 1):
            for chosen in combinations(sent, size):
                title = " ".join(one.name for one in chosen)
                # Two sums may be of uploads for one round only if lists are certified.
                for number in sorted({place, 1}) if is_certified and size >= COHORT else (place,):
                    found[f"{title} as sum {number}"] = _list(cast, _named(terms[place], number), chosen)
        if len(sent) > COHORT:
            for chosen in (tuple(sent), tuple(sent[:-1])):
                title = " ".join(one.name for one in chosen)
                found[f"{title} for sum {1 - place}"] = _list(cast, _named(terms[1 - place], 1 - place), chosen)
                if not is_certified:
                    found[f"{title} named {1 - place}"] = _list(cast, _named(terms[place], 1 - place), chosen)
    first = [one for one in cast.sent.values() if one.place == 0]
    if first:
        found["one upload twice"] = _list(cast, _named(terms[0], 0), (first[0], first[0]))
        found["out of order"] = _list(cast, _named(terms[0], 0), tuple(reversed(first)))
        rest = found["out of order"].listed[::-1]
        found["elsewhere"] = UploadList(t0=cast.elsewhere.agree().t0, terms=_named(terms[0], 0), listed=rest)
    return found


def _named(terms: SumTerms, number: int) -> SumTerms:
    return SumTerms(
        sum_id=SUM_IDS[number],
        round_number=terms.round_number,
        model_digest=terms.model_digest,
        application_digest=terms.application_digest,
    )


def _list(cast: Cast, terms: SumTerms, sent: Sequence[Sent]) -> UploadList:
    listed = tuple(Listed(client=ClientId(one.client), upload=one.digest) for one in sent)
    return UploadList(t0=cast.agreement.t0, terms=terms, listed=listed)


class Certificates:
    """Certificates of lists, genuine or not."""

    def __init__(self, cast: Cast) -> None:
        """Sign for everybody."""
        self.cast = cast

    def signature(self, holder: int, digest: bytes, stated: int | None = None) -> HolderSignature:
        """Return a holder's signature on a list, as it stands in a certificate."""
        signed = ListSignature(t0=self.cast.agreement.t0, holder=holder, upload_list=digest)
        made = self.cast.agreement.sign(self.cast.keys[holder], Label.ONE_MESSAGE_SIGNED_LIST, *signed.parts)
        return HolderSignature(holder=holder if stated is None else stated, signature=made)

    def certified(self, named: UploadList, signatures: Iterable[HolderSignature]) -> bytes:
        """Return a list with its certificate."""
        return CertifiedList(upload_list=named.encode(), certificate=tuple(signatures)).encode()

    def least(self, holder: Holder, named: UploadList) -> int | None:
        """Return how many signatures a holder wants on a list; nothing, if it never takes it."""
        everyone = range(self.cast.setting.holders)
        taken = dict[int, set[bool]]()
        for size in range(1, len(everyone) + 1):
            for signers in combinations(everyone, size):
                made = self.certified(named, (self.signature(signer, named.digest) for signer in signers))
                taken.setdefault(size, set()).add(_takes(holder, made))
        if any(len(words) > 1 for words in taken.values()):
            raise NotImplementedError("it matters who signs a certificate; model this")
        sizes = [size for size, words in taken.items() if True in words]
        return min(sizes, default=None)

    def requests(self, lists: dict[str, UploadList], least: dict[str, int | None]) -> Iterator[Request]:
        """Return each list with a certificate that is enough for somebody, and with some that are not."""
        setting = self.cast.setting
        liars = range(setting.corrupted)
        quorum = self.cast.record.quorum
        for (name, named), (_, other) in pairwise([*lists.items(), *list(lists.items())[:1]]):
            size = least[name] or setting.holders
            genuine = [self.signature(signer, named.digest) for signer in range(size)]
            yield Request(f"open {name}", self.certified(named, genuine), (size, named.digest))
            if named is next(iter(lists.values())) or len(named.listed) == len(CLIENTS):
                elsewhere = [self.signature(signer, other.digest) for signer in range(quorum)]
                yield Request(f"open {name}, other signed", self.certified(named, elsewhere), (quorum, other.digest))
                forged = [self.signature(0, named.digest, stated=position) for position in range(quorum)]
                yield Request(f"open {name}, forged", self.certified(named, forged))
                repeated = [self.signature(liar, named.digest) for liar in liars] * quorum
                yield Request(f"open {name}, one signer", self.certified(named, repeated))


def _takes(holder: Holder, request: bytes) -> bool:
    try:
        copied(holder).respond(request)
    except SecAggError:
        return False
    return True


def requests_for(cast: Cast, position: int) -> list[Request]:
    """Return all that one holder is sent, in whatever order."""
    found = [Request("offer", cast.offers[0].encode())]
    batches = dict[tuple[int, bool], list[str]]()
    for one in cast.sent.values():
        batches.setdefault((one.place, one.client == CLIENTS[-1]), []).append(one.name)
    found += [Request(f"shares of {' '.join(names)}", cast.delivery(names, position)) for names in batches.values()]
    names = [one.name for one in cast.sent.values()]
    found.append(Request("shares for another holder", cast.delivery(names[:1], (position + 1) % cast.setting.holders)))
    found.append(Request("shares elsewhere", cast.delivery(names[:1], position, cast.elsewhere.agree().t0)))
    lists = lists_of(cast)
    found += [Request(f"list {name}", named.encode()) for name, named in lists.items()]
    if cast.setting.rule is ThresholdRule.CERTIFIED:
        ready = cast.holder(position, MemoryJournal())
        for request in found[: 1 + len(batches)]:
            ready.respond(request.message)
        certificates = Certificates(cast)
        least = {name: certificates.least(ready, named) for name, named in lists.items()}
        found += certificates.requests(lists, least)
    return found


# --- One holder -------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What a request leads to."""

    name: str
    state: int
    facts: Facts


class Driven:
    """One honest holder: every state that it is in, and what each request makes of it."""

    def __init__(self, cast: Cast, position: int, journal: type[MemoryJournal], report: Report) -> None:
        """Begin with a holder to which nothing has happened."""
        self.cast, self.position, self.report = cast, position, report
        self.requests, self.words = requests_for(cast, position), cast.words(position)
        self.fault: str | None = None
        self.is_cut_off = False
        self._holders, self._known = list[Holder](), dict[Any, int]()
        self._steps, self._begun = dict[int, list[Step]](), dict[Any, int]()
        self._needs = dict[bytes, Need]()
        first = cast.holder(position, journal())
        first.respond(cast.elsewhere.encode())
        self.start = self._state_of(first)

    def explore(self) -> Story:
        """Try everything; return the largest sets of what it gives away."""
        start = self.start, Facts()
        came_from: dict[tuple[int, Facts], tuple[tuple[int, Facts], str] | None] = {start: None}
        frontier = [start]
        while frontier:
            following = list[tuple[int, Facts]]()
            for world in frontier:
                for step in self._after(world[0]):
                    after = step.state, world[1] | step.facts
                    if len(after[1]) > MOST_FACTS:
                        self.is_cut_off = True
                    elif after not in came_from:
                        came_from[after] = world, step.name
                        following.append(after)
            frontier = following
        self.report.schedules += len(came_from)
        found = Story()
        for facts in largest(facts for _, facts in came_from):
            world, names = next(world for world in came_from if world[1] == facts), list[str]()
            while (before := came_from[world]) is not None:
                world, name = before
                names.append(f"holder {self.position}: {name}")
            found[facts] = tuple(reversed(names))
        return found

    def _after(self, state: int) -> list[Step]:
        if state not in self._steps:
            steps = [step for request in self.requests for step in self._take(state, request)]
            steps.append(Step(STARTS_AGAIN, self._restarted(self._holders[state]), Facts()))
            self._steps[state] = [step for step in steps if step.facts or step.state != state]
        return self._steps[state]

    def _take(self, state: int, request: Request) -> Iterator[Step]:
        """Send a request; where something is written, have the process end at each point as well."""
        holder = copied(self._holders[state])
        self.report.calls += 1
        try:
            reply = holder.respond(request.message)
        except SecAggError:
            self.report.refused += 1
            after = self._state_of(holder)
            if after != state:
                self.fault = f"holder {self.position} refused a request, and remembers it"
            return
        after = self._state_of(holder)
        yield Step(request.name, after, self._facts(request, reply, is_new=after != state))
        if after == state:
            return
        for fails in ("before", "after"):
            broken: Any = copied(self._holders[state])
            broken._journal.fails = fails  # noqa: SLF001
            try:
                broken.respond(request.message)
            except OSError:
                broken._journal.fails = ""  # noqa: SLF001
                yield Step(f"{request.name}, and ends {fails} it is written", self._restarted(broken), Facts())
                if fails == "before":
                    yield Step(f"{request.name}, which cannot be written", self._state_of(broken), Facts())

    def _facts(self, request: Request, reply: bytes, *, is_new: bool) -> Facts:
        match message_kind(reply):
            case MessageKind.ONE_MESSAGE_LIST_SIGNATURE:
                return Facts({Fact("signed", ListSignature.decode(reply).upload_list)})
            case MessageKind.ONE_MESSAGE_ANSWER:
                answer = Answer.decode(reply)
                names = self.words.get(answer.sums)
                if names is None:
                    self.fault = f"holder {self.position} answered something else than a sum of shares"
                    return Facts()
                # What is stored is given to anybody; it was made for what was asked first.
                if is_new or answer.upload_list not in self._needs:
                    known = self._needs.get(answer.upload_list, request.need)
                    self._needs[answer.upload_list] = min(known, request.need)
                return Facts({Fact("answered", names, self._needs[answer.upload_list])})
            case _:
                return Facts()

    def _restarted(self, holder: Any) -> int:  # noqa: ANN401 -- a holder, with its journal
        journal = holder._journal.on_disk()  # noqa: SLF001
        key = journal.remembered()
        if key not in self._begun:
            self._begun[key] = self._state_of(self.cast.holder(self.position, journal))
        return self._begun[key]

    def _state_of(self, holder: Holder) -> int:
        key = memory_of(holder)
        if key not in self._known:
            self._known[key] = len(self._holders)
            self._holders.append(holder)
        return self._known[key]


# --- What the server learns -------------------------------------------------------------------------------------------


class Knowledge:
    """What answers tell about the secrets of uploads, and so about inputs."""

    def __init__(self, cast: Cast) -> None:
        """Take the uploads and the points."""
        self.cast = cast
        parameters = cast.agreement.parameters
        self._threshold, self._slots = parameters.threshold, slot_points(parameters.packing)
        self._spare = parameters.threshold + 1 - parameters.packing - cast.setting.corrupted
        self._judged = dict[tuple[tuple[int, frozenset[Names]], ...], tuple[bool, str | None]]()
        self._parts = dict[tuple[tuple[int, Names], ...], list[dict[tuple[str, int], int]]]()

    def judge(self, answers: dict[int, frozenset[Names]]) -> tuple[bool, str | None]:
        """Say whether a sum came out, and what must not have; of the answers of each honest holder."""
        key = tuple(sorted(answers.items()))
        if key not in self._judged:
            self._judged[key] = self._judge(answers)
        return self._judged[key]

    def _judge(self, answers: dict[int, frozenset[Names]]) -> tuple[bool, str | None]:  # noqa: PLR0911 -- each a fault
        given = [
            (position, names) for position, lists in sorted(answers.items()) for names in sorted(lists, key=sorted)
        ]
        learned = [row for part in _parts(given) for row in self._learned(part)]
        if not learned:
            return False, None
        few = self._about_few(learned)
        if few is not None:
            return True, f"a combination of the inputs of only {few}"
        counts = dict[Names, int]()
        for _, names in given:
            counts[names] = counts.get(names, 0) + 1
        lists = [names for names, count in counts.items() if count >= self._spare]
        allowed = [{(name, slot): 1 for name in names} for names in lists for slot in range(len(self._slots))]
        columns = sorted({place for row in (*learned, *allowed) for place in row})
        if _rank(_matrix(allowed, columns)) < _rank(_matrix((*allowed, *learned), columns)):
            return True, "something else than the sums over lists that enough holders answered for"
        if any(one & other for one, other in combinations(lists, 2)):
            return True, "an upload in two sums"
        places = [{self.cast.sent[name].place for name in names} for names in lists]
        if any(len(found) > 1 for found in places):
            return True, "a sum over uploads for two sums"
        if self.cast.setting.rule is ThresholdRule.ONE_ANSWER and len({min(p) for p in places}) < len(places):
            return True, "two sums of one name"
        return True, None

    def _learned(self, given: tuple[tuple[int, Names], ...]) -> list[dict[tuple[str, int], int]]:
        """Return a basis of the combinations of secrets that follow from answers; coins are T coefficients each."""
        if given not in self._parts:
            names = sorted({name for _, added in given for name in added})
            seen = [self._row(added, names, holder_point(position)) for position, added in given]
            seen += [
                self._row({name}, names, holder_point(position))
                for position in range(self.cast.setting.corrupted)
                for name in names
            ]
            places = [(name, slot) for name in names for slot in range(len(self._slots))]
            secrets = [self._row({name}, names, self._slots[slot]) for name, slot in places]
            # A combination that ends in zeros is one of secrets and of what is seen that is nothing.
            rows = [(*row, *([0] * len(secrets))) for row in seen]
            rows += [(*row, *(int(at == number) for at in range(len(secrets)))) for number, row in enumerate(secrets)]
            width = len(names) * self._threshold
            basis = [row[width:] for row in _reduced(rows) if not any(row[:width]) and any(row[width:])]
            self._parts[given] = [
                {place: value for place, value in zip(places, row, strict=True) if value} for row in basis
            ]
        return self._parts[given]

    def _row(self, added: Iterable[str], names: Sequence[str], point: int) -> Row:
        powers = [pow(point, exponent, FIELD) for exponent in range(self._threshold)]
        zeros = [0] * self._threshold
        chosen = frozenset(added)
        return tuple(value for name in names for value in (powers if name in chosen else zeros))

    def _about_few(self, learned: Sequence[dict[tuple[str, int], int]]) -> list[str] | None:
        """Return whose inputs stand alone in some combination; uploads of one update are of one input."""
        rows = list[dict[tuple[str, int], int]]()
        for row in learned:
            mapped = dict[tuple[str, int], int]()
            for (name, slot), value in row.items():
                sent = self.cast.sent[name]
                place = f"client {sent.client} ({sent.update})", slot
                mapped[place] = (mapped.get(place, 0) + value) % FIELD
            rows.append(mapped)
        columns = sorted({place for row in rows for place in row})
        everything = _rank(_matrix(rows, columns))
        inputs = sorted({name for name, _ in columns})
        for size in range(1, COHORT):
            for few in combinations(inputs, size):
                outside = [place for place in columns if place[0] not in few]
                if _rank(_matrix(rows, outside)) < everything:
                    return list(few)
        return None


def _parts(given: Sequence[tuple[int, Names]]) -> Iterator[tuple[tuple[int, Names], ...]]:
    """Divide answers so that those with an upload in common stay together; no two parts have a coin in common."""
    left = list(given)
    while left:
        part, names = [left.pop(0)], set[str]()
        while True:
            names |= {name for _, added in part for name in added}
            near = [one for one in left if one[1] & names]
            if not near:
                break
            part += near
            left = [one for one in left if one not in near]
        yield tuple(sorted(part, key=lambda one: (one[0], sorted(one[1]))))


def _matrix(rows: Iterable[dict[tuple[str, int], int]], columns: Sequence[tuple[str, int]]) -> list[Row]:
    return [tuple(row.get(column, 0) for column in columns) for row in rows]


def _rank(rows: Sequence[Row]) -> int:
    return sum(any(row) for row in _reduced(rows))


def _reduced(rows: Sequence[Row]) -> list[Row]:
    """Return rows in echelon form."""
    rest, done = [list(row) for row in rows], 0
    for column in range(len(rest[0]) if rest else 0):
        pivot = next((at for at in range(done, len(rest)) if rest[at][column]), None)
        if pivot is None:
            continue
        rest[done], rest[pivot] = rest[pivot], rest[done]
        inverse = pow(rest[done][column], -1, FIELD)
        for at in range(done + 1, len(rest)):
            if factor := rest[at][column] * inverse % FIELD:
                rest[at] = [(value - factor * other) % FIELD for value, other in zip(rest[at], rest[done], strict=True)]
        done += 1
    return [tuple(row) for row in rest]


# --- All of it --------------------------------------------------------------------------------------------------------


def explore(cast: Cast, updates: Sequence[str], journal: type[MemoryJournal]) -> Report:
    """Let clients upload, then holders answer; up to the first fault."""
    report = Report()
    made = dict[tuple[tuple[int, int], ...], tuple[Asked, tuple[str, ...]]]()
    for found, path in uploads_of(cast, CLIENTS[0], updates, report).items():
        kind = sorted((one.place, one.update) for one in found)
        made.setdefault(_renamed(kind), (path, tuple(f"{update} for sum {place}" for place, update in kind)))
    for kind, (path, shown) in sorted(made.items(), reverse=True):
        cast.sent.clear()
        for client in CLIENTS:
            for one in sorted(uploads_along(cast, client, path)):
                cast.remember(client, one.update, one.place, one.message)
        _explore_holders(cast, journal, report)
        if report.fault:
            if len({update for _, update in kind}) < len(kind):
                report.trace = (f"clients upload {', '.join(shown)}", *report.trace)
            break
    return report


def _renamed(kind: Sequence[tuple[int, str]]) -> tuple[tuple[int, int], ...]:
    """Return which uploads are of one update, whichever it is."""
    names = list(dict.fromkeys(update for _, update in kind))
    return tuple((place, names.index(update)) for place, update in kind)


def _explore_holders(cast: Cast, journal: type[MemoryJournal], report: Report) -> None:
    stories = list[list[tuple[Facts, tuple[str, ...]]]]()
    positions, is_cut_off = cast.setting.honest, False
    for position in positions:
        driven = Driven(cast, position, journal, report)
        stories.append(list(driven.explore().items()))
        is_cut_off |= driven.is_cut_off
        if driven.fault:
            report.fault = driven.fault
            return
    knowledge = Knowledge(cast)
    signed = [
        [frozenset(fact.what for fact in facts if fact.kind == "signed") for facts, _ in told] for told in stories
    ]
    answered = [[[fact for fact in facts if fact.kind == "answered"] for facts, _ in told] for told in stories]
    for chosen in product(*(range(len(told)) for told in stories)):
        counts = dict[Any, int]()
        for holder, number in enumerate(chosen):
            for digest in signed[holder][number]:
                counts[digest] = counts.get(digest, 0) + 1
        answers = {
            position: frozenset(
                fact.what
                for fact in answered[holder][chosen[holder]]
                if isinstance(fact.what, frozenset)
                and counts.get(fact.need[1], 0) + cast.setting.corrupted >= fact.need[0]
            )
            for holder, position in enumerate(positions)
        }
        report.schedules += 1
        revealing, fault = knowledge.judge(answers)
        report.revealing += revealing
        if fault is not None:
            report.fault = fault
            steps = (told[number][1] for told, number in zip(stories, chosen, strict=True))
            report.trace = tuple(step for names in steps for step in names)
            return
    if is_cut_off:
        report.fault = "the search was cut off"
