"""Everything that a server can send to a holder of one message, under names in which clients can be permuted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import permutations, product
from typing import Any, NamedTuple

from one_message_cast import Cast, Name, Names
from secagg.crypto.labels import Label
from secagg.protocols.one_message.configuration import HolderSignature
from secagg.protocols.one_message.requests import CertifiedList, ListSignature, UploadList

Renaming = Mapping[int, int]


class ListName(NamedTuple):
    """A list, as described by the server."""

    place: int
    """The round that it claims for its uploads."""
    names: Names
    how: str = ""

    def __str__(self) -> str:
        shown = " ".join(map(str, sorted(self.names)))
        return f"{shown} as round {self.place}{self.how and f', {self.how}'}"


class Asked(NamedTuple):
    """A request to a holder."""

    kind: str
    what: ListName | Names
    how: str = ""

    def __str__(self) -> str:
        what = str(self.what) if isinstance(self.what, ListName) else " ".join(map(str, sorted(self.what)))
        return f"{self.kind} {what}{self.how and f' ({self.how})'}".strip()


Need = tuple[int, ListName]
"""Number of holders that must have signed which list."""
OFFER = Asked("offer", frozenset())


def renamed(token: Any, clients: Renaming) -> Any:  # noqa: ANN401 -- anything that names uploads
    """Return the same for permuted clients."""
    match token:
        case Name():
            return token._replace(client=clients[token.client])
        case frozenset():
            return frozenset(renamed(part, clients) for part in token)
        case tuple():
            parts = [renamed(part, clients) for part in token]
            return type(token)(*parts) if hasattr(token, "_fields") else tuple(parts)
        case _:
            return token


class Catalogue:
    """Everything that the server can send to a holder, by name."""

    def __init__(self, cast: Cast, position: int) -> None:
        """Make all of it."""
        self.cast, self.position = cast, position
        self.lists = {name: self._list(name) for name in dict.fromkeys(self._list_names())}
        self.named = {made.digest: name for name, made in self.lists.items()}
        self.uploads = {one.digest: name for name, one in cast.sent.items()}
        self.words = cast.words(position)
        self.requests = {OFFER: cast.offers[0].encode(), **dict(self._deliveries())}
        self.requests |= {Asked("list", name): made.encode() for name, made in self.lists.items()}
        self.needs = dict[Asked, Need]()
        self.requests |= dict(self._certificates())
        self.asked = {message: asked for asked, message in self.requests.items()}
        self.renamings = self._renamings()

    def _list_names(self) -> Iterator[ListName]:
        """Return every list that a server could make, including some that no holder should accept."""
        sent = self.cast.sent
        places = sorted({name.place for name in sent})
        clients = sorted({name.client for name in sent})
        by_client = [[name for name in sent if name.client == client] for client in clients]
        choices = [frozenset(name for name in chosen if name) for chosen in product(*([None, *n] for n in by_client))]
        for place in places:
            for names in filter(None, choices):
                is_whole = len(names) == len(clients)
                if {name.place for name in names} == {place} or is_whole:
                    yield ListName(place, names)
                if is_whole:
                    yield ListName(place, names, "out of order")
                    yield ListName(place, names, "under another T0")
        yield from (ListName(name.place, frozenset({name}), "twice") for name in sent)

    def _list(self, name: ListName) -> UploadList:
        chosen = sorted(name.names, reverse=name.how == "out of order") * (2 if name.how == "twice" else 1)
        t0 = self.cast.elsewhere.agree().t0 if name.how == "under another T0" else b""
        return self.cast.upload_list(name.place, chosen, t0)

    def _deliveries(self) -> Iterator[tuple[Asked, bytes]]:
        sent, elsewhere = self.cast.sent, self.cast.elsewhere.agree().t0
        together = {name: frozenset({name}) for name in sent}
        if self.cast.setting.at_once:
            together = {name: frozenset(one for one in sent if one.place == name.place) for name in sent}
        for names in dict.fromkeys(together.values()):
            shares = [sent[name].shares[self.position] for name in sorted(names)]
            yield Asked("shares of", names), self.cast.delivery(shares)
            yield Asked("shares of", names, "under another T0"), self.cast.delivery(shares, elsewhere)
        for name, one in sent.items():
            share, neighbour = one.shares[self.position], one.shares[self.position - 1]
            yield Asked("shares of", frozenset({name}), "of another holder"), self.cast.delivery([neighbour])
            for offer in self.cast.offers:
                if offer.terms != share.header.terms:
                    moved = replace(share, header=replace(share.header, terms=offer.terms))
                    how = f"for round {offer.terms.round_number}"
                    yield Asked("shares of", frozenset({name}), how), self.cast.delivery([moved])

    def _certificates(self) -> Iterator[tuple[Asked, bytes]]:
        """Return each list with a valid certificate and with invalid ones."""
        quorum = self.cast.record.quorum
        largest = [name for name in self.lists if len(name.names) > 1 and not name.how]
        for name, made in self.lists.items():
            for how, size in (("", quorum), ("one signature short", quorum - 1)):
                genuine = [self._signature(signer, name) for signer in range(size)]
                yield self._certified(name, how, made, genuine, (size, name))
            if name.how or len({one.place for one in name.names}) > 1:
                continue
            other = next(one for one in largest if one != name)
            elsewhere = [self._signature(at, other) for at in range(quorum)]
            yield self._certified(name, "another was signed", made, elsewhere, (quorum, other))
            forged = [self._signature(at, name, by=0) for at in range(quorum)]
            yield self._certified(name, "forged", made, forged, (0, name))
            repeated = [self._signature(0, name)] * quorum
            yield self._certified(name, "one signer", made, repeated, (1, name))

    def _certified(
        self, name: ListName, how: str, made: UploadList, signed: Iterable[HolderSignature], need: Need
    ) -> tuple[Asked, bytes]:
        asked = Asked("open", name, how)
        self.needs[asked] = need
        return asked, CertifiedList(upload_list=made.encode(), certificate=tuple(signed)).encode()

    def _signature(self, position: int, name: ListName, by: int | None = None) -> HolderSignature:
        signed = ListSignature(t0=self.cast.agreement.t0, holder=position, upload_list=self.lists[name].digest)
        key = self.cast.keys[position if by is None else by]
        made = self.cast.agreement.sign(key, Label.ONE_MESSAGE_SIGNED_LIST, *signed.parts)
        return HolderSignature(holder=position, signature=made)

    def _renamings(self) -> list[Renaming]:
        """Return the permutations of clients under which the server can send the same as before."""
        kinds = dict[object, list[int]]()
        for client in sorted({name.client for name in self.cast.sent}):
            own = frozenset((name.place, name.is_forged) for name in self.cast.sent if name.client == client)
            is_bad = client in self.cast.setting.bad_clients
            kinds.setdefault((own, client if is_bad else 0), []).append(client)
        found = list[Renaming]()
        for orders in product(*(permutations(kind) for kind in kinds.values())):
            clients = dict(
                pair
                for kind, order in zip(kinds.values(), orders, strict=True)
                for pair in zip(kind, order, strict=True)
            )
            if all(renamed(asked, clients) in self.requests for asked in self.requests):
                found.append(clients)
        return found
