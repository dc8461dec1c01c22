"""A whole session, computed at once from all parties' coins: every message, and the sum.

It is a second implementation for comparison: plain integers and bytes, nothing shared with the library. It holds no
state and makes none of the checks of the protocol's parties; its input is vectors of honest sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import encoding
from .encoding import client_id, digest_of_set, encode_list, encode_set, message, number, prove, variable
from .keys import Pair, keys_of
from .masks import Frame, Vectors
from .primitives import digest, ed25519_public, hash_secret, sign
from .roster import Roster
from .sharing import CoinReader, deal, interpolate

ADVERTISE, SHARE, UPLOAD, CONFIRM, UNMASK, NEVER = range(6)
_TAG = 8
_START = 7 + _TAG


@dataclass
class Person:
    """A client: its coins, and its draws from them."""

    client: int
    coins: CoinReader
    signing_seed: bytes
    channel: Pair
    mask: Pair
    mask_root: bytes
    self_mask_seed: bytes
    entry: bytes = b""
    root_shares: list[bytes] = field(default_factory=list[bytes])
    seed_shares: list[bytes] = field(default_factory=list[bytes])
    sent: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Its message in round 1 to each neighbour."""
    leaves: list[bytes] = field(default_factory=list[bytes])
    signatures: dict[str, bytes] = field(default_factory=dict[str, bytes])


class Session:
    """One session of a vector; ``run`` fills ``messages``."""

    def __init__(self, vector: Mapping[str, Any]) -> None:
        """Read a vector; of its messages only an encapsulation's draws are used (hybrid suite)."""
        self.parameters: Mapping[str, Any] = vector["parameters"]
        self.messages = dict[str, bytes]()
        self._recorded: Mapping[str, str] = vector.get("messages", {})
        self._coins = {_id(role): bytes.fromhex(drawn) for role, drawn in vector["coins"].items() if role != "server"}
        self._opening = bytes.fromhex(vector["coins"]["server"])[:32]
        identities: Mapping[str, str] = vector.get("identities", {})
        self._authority = bytes.fromhex(identities.get("authority", ""))
        self._signing = {_id(role): bytes.fromhex(key) for role, key in identities.items() if role != "authority"}
        self._inputs = {_id(role): values for role, values in vector["inputs"].items()}
        self._gone_by = {_id(role): int(at) for role, at in vector["dropouts"].items()}
        self._is_active = self.parameters["mode"] == "active"
        self._people = dict[int, Person]()

    def run(self) -> dict[str, Any]:
        """Compute every message and the result."""
        offer = encoding.encode_offer(self.parameters)
        self.messages["offer"] = offer
        self._attempt = digest("configuration", offer)
        self._keys = keys_of(self.parameters["suite"], self._attempt)
        self._advertise()
        entries = {client: person.entry for client, person in self._people.items()}
        self._roster = Roster(self.parameters, self._attempt, self._opening, entries)
        self._context = self._roster.context
        self._frame = Frame(self.parameters, self._context)
        self._show_roster()
        self._sharers = self._still(self._roster.clients, SHARE)
        for client in self._sharers:
            self._share(self._people[client])
        self._deliver()
        self._contributors = self._still(self._sharers, UPLOAD)
        for client in self._contributors:
            self._upload(self._people[client])
        if self._is_active:
            self._confirm()
        self._request()
        answering = self._still(self._contributors, UNMASK)
        for client in answering:
            self._answer(self._people[client])
        return self._unmask(answering)

    @property
    def coins_left(self) -> dict[str, int]:
        """Number of unused bytes of coins, for each role that took part."""
        return {f"client/{client}": person.coins.left for client, person in self._people.items()}

    # --- Round 0 ------------------------------------------------------------------------------------------------------

    def _advertise(self) -> None:
        for client in self._still(sorted(self._coins), ADVERTISE):
            coins = CoinReader(self._coins[client])
            channel, mask_root = self._keys.pair("channel", coins.take(32)), coins.element()
            mask, seed = self._keys.pair("mask", mask_root), coins.element()
            signing = self._signing.get(client, b"")
            person = Person(client, coins, signing, channel, mask, mask_root, seed)
            name = client_id(client)
            commitment = hash_secret(seed, "commitment-to-self-mask", self._attempt, name)
            credential = b""
            if self._is_active:
                identity = ed25519_public(signing)
                certificate = self._certificate(client, identity)
                parts = (self._attempt, name, channel.public, mask.public, commitment)
                credential = identity + certificate + sign(signing, "signed-advertisement", *parts)
            keys = channel.public + mask.public
            person.entry = keys + commitment + credential if self._is_active else keys
            self._people[client] = person
            self.messages[f"client/{client}/key_advertisement"] = message(
                encoding.ADVERTISEMENT, self._attempt[:_TAG], name, keys, commitment, credential
            )

    def _certificate(self, client: int, identity: bytes) -> bytes:
        authority = ed25519_public(self._authority)
        about = bytes(4) + b"\xff" * 4
        return about + sign(self._authority, "certificate", authority, client_id(client), identity, about)

    def _show_roster(self) -> None:
        roster = self._roster
        for client in roster.clients:
            neighbours = roster.neighbours(client)
            known = [roster.position_of(each) for each in (client, *neighbours)]
            proof = prove(roster.leaves, known)
            self.messages[f"client/{client}/advertised_keys"] = message(
                encoding.ADVERTISED,
                self._attempt[:_TAG],
                variable(encode_list(roster.clients)),
                roster.root,
                self._opening,
                number(len(neighbours), 4),
                *(self._people[each].entry for each in neighbours),
                number(len(proof), 4),
                *proof,
            )

    # --- Round 1 ------------------------------------------------------------------------------------------------------

    def _share(self, person: Person) -> None:
        neighbours = self._roster.neighbours(person.client)
        drawn = [[person.coins.element() for _ in range(self.parameters["threshold"] - 1)] for _ in range(2)]
        person.root_shares = deal(person.mask_root, drawn[0], len(neighbours))
        person.seed_shares = deal(person.self_mask_seed, drawn[1], len(neighbours))
        name = f"client/{person.client}/encrypted_shares"
        signature_bytes = 64 if self._is_active else 0
        recorded = bytes.fromhex(self._recorded.get(name, ""))[_START + signature_bytes :]
        for neighbour, shares in zip(neighbours, zip(person.root_shares, person.seed_shares, strict=True), strict=True):
            peer = self._people[neighbour]
            entry = self._keys.seal_shares(self._context, _end(person), _end(peer), shares, recorded)
            if self._keys.has_edges and self._roster.sends_edge(person.client, neighbour):
                seed = self._keys.sent_seed(self._context, person.mask_root, person.client, neighbour)
                ends = client_id(person.client), client_id(neighbour)
                entry += hash_secret(seed, "commitment-to-edge-seed", self._context, *ends)
                rest = recorded[len(entry) :]
                entry += self._keys.seal_edge(self._context, seed, person.client, (neighbour, peer.mask), rest)
            if self._is_active:
                entry += self._commitment(person, neighbour)
            recorded = recorded[len(entry) :]
            person.sent[neighbour] = entry
        signature = b""
        if self._is_active:
            person.leaves = [digest("shares-entry", client_id(to), entry) for to, entry in person.sent.items()]
            root = encoding.root_of(person.leaves)
            parts = (self._context, client_id(person.client), number(len(neighbours), 4), root)
            signature = sign(person.signing_seed, "signed-shares", *parts)
            person.signatures["shares"] = signature
        self.messages[name] = message(encoding.SHARES, self._context[:_TAG], signature, *person.sent.values())

    def _commitment(self, dealer: Person, holder: int) -> bytes:
        root_digest = self._share_digest(dealer, holder, "mask root")
        seed_digest = self._share_digest(dealer, holder, "self-mask seed")
        return digest("commitment-to-shares", *self._place(dealer.client, holder), root_digest, seed_digest)

    def _share_digest(self, dealer: Person, holder: int, name: str) -> bytes:
        shares = dealer.root_shares if name == "mask root" else dealer.seed_shares
        share = shares[self._roster.point_of(holder, dealer.client) - 1]
        return hash_secret(share, "share-digest", name.encode(), *self._place(dealer.client, holder))

    def _place(self, dealer: int, holder: int) -> tuple[bytes, ...]:
        point = self._roster.point_of(holder, dealer)
        return self._context, client_id(dealer), client_id(holder), number(point, 2)

    def _deliver(self) -> None:
        for client in self._sharers:
            parts = [self._context[:_TAG], self._set_of(self._sharers)]
            for neighbour in self._among(self._sharers, client):
                sender = self._people[neighbour]
                parts.append(sender.sent[client])
                if self._is_active:
                    path = prove(sender.leaves, [self._roster.point_of(client, neighbour) - 1])
                    parts += [sender.signatures["shares"], number(len(path), 1), *path]
            self.messages[f"client/{client}/delivered_shares"] = message(encoding.DELIVERED, *parts)

    # --- Round 2 ------------------------------------------------------------------------------------------------------

    def _upload(self, person: Person) -> None:
        frame, client = self._frame, person.client
        values = [[int(value) for value in segment] for segment in self._inputs[client]]
        masked = frame.of_input(values)
        masked = frame.add(masked, frame.self_mask(person.self_mask_seed, client))
        for neighbour in self._among(self._sharers, client):
            seed = self._edge_seed(client, neighbour)
            mask = frame.pairwise_mask(seed, client, neighbour)
            masked = frame.add(masked, mask, 1 if client > neighbour else -1)
        signature, packed = b"", frame.pack(masked)
        if self._is_active:
            uploaded = hash_secret(packed, "upload-digest")
            parts = (self._context, client_id(client), self._digest_of_set(self._sharers), uploaded)
            signature = sign(person.signing_seed, "signed-view", *parts)
            person.signatures["view"] = uploaded + signature
        self.messages[f"client/{client}/masked_input"] = message(
            encoding.UPLOAD, self._context[:_TAG], signature, packed
        )

    def _edge_seed(self, one: int, other: int) -> bytes:
        """Return the seed that two neighbours share, each of whom knows its own secrets."""
        if self._keys.has_edges:
            sender, receiver = (one, other) if self._roster.sends_edge(one, other) else (other, one)
            return self._keys.sent_seed(self._context, self._people[sender].mask_root, sender, receiver)
        own, peer = self._people[one], self._people[other]
        return self._keys.agreed_seed(self._context, (one, own.mask), (other, peer.mask.public))

    # --- Round 3 ------------------------------------------------------------------------------------------------------

    def _confirm(self) -> None:
        shown = message(
            encoding.SURVIVORS, self._context[:_TAG], self._set_of(self._sharers), self._set_of(self._contributors)
        )
        committee = [self._roster.clients[position] for position in self._roster.committee]
        members = [client for client in self._contributors if client in committee]
        for client in members:
            self.messages[f"client/{client}/survivor_set"] = shown
        self._signers = self._still(members, CONFIRM)
        for client in self._signers:
            sets = (self._digest_of_set(self._sharers), self._digest_of_set(self._contributors))
            sizes = (number(len(self._sharers), 4), number(len(self._contributors), 4))
            person, parts = self._people[client], (self._context, client_id(client), *sets, *sizes)
            signature = sign(person.signing_seed, "signed-survivors", *parts)
            person.signatures["survivors"] = signature
            self.messages[f"client/{client}/survivor_signature"] = message(
                encoding.SIGNATURE, self._context[:_TAG], signature
            )

    # --- Round 4 ------------------------------------------------------------------------------------------------------

    def _request(self) -> None:
        signers = self._signers[: self.parameters["quorum"]] if self._is_active else []
        endorsements = list[bytes]()
        for client in signers:
            person = self._people[client]
            identity = ed25519_public(person.signing_seed)
            position = number(self._roster.position_of(client), 4)
            certificate = self._certificate(client, identity)
            endorsements.append(position + identity + certificate + person.signatures["survivors"])
        for client in self._contributors:
            present = self._among(self._contributors, client) if self._is_active else []
            self.messages[f"client/{client}/unmasking_request"] = message(
                encoding.REQUEST,
                self._context[:_TAG],
                self._set_of(self._contributors),
                number(len(endorsements), 4),
                *endorsements,
                number(len(present), 4),
                *(self._people[neighbour].signatures["view"] for neighbour in present),
            )

    def _answer(self, person: Person) -> None:
        shown, seeds = list[bytes](), list[bytes]()
        dealers = self._among(self._sharers, person.client)
        for dealer in (self._people[neighbour] for neighbour in dealers):
            has_contributed = dealer.client in self._contributors
            shares = dealer.seed_shares if has_contributed else dealer.root_shares
            shown.append(shares[self._roster.point_of(person.client, dealer.client) - 1])
            if self._is_active:
                hidden = "mask root" if has_contributed else "self-mask seed"
                shown.append(self._share_digest(dealer, person.client, hidden))
            if self._keys.has_edges and not has_contributed:
                seeds.append(self._edge_seed(dealer.client, person.client))
        held, signature = encode_set(len(dealers), range(len(dealers))), b""
        if self._is_active:
            parts = (self._context, client_id(person.client), self._digest_of_set(self._contributors))
            entries = (self._people[dealer].sent[person.client] for dealer in dealers)
            leaves = [digest("shares-entry", client_id(person.client), entry) for entry in entries]
            revealed = (encoding.root_of(leaves), held, b"".join(shown), b"".join(seeds))
            signature = sign(person.signing_seed, "signed-unmasking", *parts, *revealed)
        self.messages[f"client/{person.client}/unmasking_shares"] = message(
            encoding.ANSWER, self._context[:_TAG], signature, held, *shown, *seeds
        )

    def _unmask(self, answering: Sequence[int]) -> dict[str, Any]:
        """Compute the sum only from the messages to the server."""
        frame, start = self._frame, _START + (64 if self._is_active else 0)
        uploads = [self.messages[f"client/{client}/masked_input"][start:] for client in self._contributors]
        total = frame.unpack(uploads[0])
        for upload in uploads[1:]:
            total = frame.add(total, frame.unpack(upload))
        for client in self._contributors:
            seed = self._reconstruct(client, answering)
            total = frame.add(total, frame.self_mask(seed, client), -1)
        for dropped in self._sharers:
            masked_with = self._among(self._contributors, dropped)
            if dropped not in self._contributors and masked_with:
                total = self._remove(total, dropped, self._reconstruct(dropped, answering), masked_with)
        for index, (vector, (_, length)) in enumerate(zip(total, frame.segments, strict=True)):
            if frame.check_words(index, vector[:length]) != vector[length:]:
                raise ValueError("the sum does not agree with its check words")
        if total[-1][0] != len(self._contributors):
            raise ValueError("the contributors do not count once each")
        values = [vector[:length] for vector, (_, length) in zip(total, self.parameters["layout"], strict=False)]
        return {
            "values": [[str(value) for value in segment] for segment in values],
            "contributors": str(len(self._contributors)),
        }

    def _remove(self, total: Vectors, dropped: int, root: bytes, masked_with: Sequence[int]) -> Vectors:
        pair = self._keys.pair("mask", root)
        for client in masked_with:
            peer = self._people[client]
            if not self._keys.has_edges:
                seed = self._keys.agreed_seed(self._context, (dropped, pair), (client, peer.mask.public))
            elif self._roster.sends_edge(dropped, client):
                seed = self._keys.sent_seed(self._context, root, dropped, client)
            else:
                sealed = peer.sent[dropped][self._keys.sealed_shares_bytes + 32 :]
                seed = self._keys.open_edge(self._context, client, (dropped, pair), sealed)
            mask = self._frame.pairwise_mask(seed, dropped, client)
            total = self._frame.add(total, mask, -1 if client > dropped else 1)
        return total

    def _reconstruct(self, dealer: int, answering: Sequence[int]) -> bytes:
        """Read a share of the dealer's secret out of every answer, and interpolate."""
        size, begin, shares = (
            (64, _START + 64, dict[int, bytes]()) if self._is_active else (32, _START, dict[int, bytes]())
        )
        for holder in self._among(answering, dealer):
            dealers = self._among(self._sharers, holder)
            start = begin + (len(dealers) + 7) // 8 + dealers.index(dealer) * size
            answer = self.messages[f"client/{holder}/unmasking_shares"]
            shares[self._roster.point_of(holder, dealer)] = answer[start : start + 32]
        enough = sorted(shares)[: self.parameters["threshold"]]
        if len(enough) < self.parameters["threshold"]:
            raise ValueError("the vector leaves too few shares")
        return interpolate({point: shares[point] for point in enough})

    # --- Sets ---------------------------------------------------------------------------------------------------------

    def _still(self, clients: Sequence[int], stage: int) -> list[int]:
        return [client for client in clients if self._gone_by.get(client, NEVER) > stage]

    def _among(self, clients: Sequence[int], client: int) -> list[int]:
        """Return which neighbours of a client are among some clients."""
        return [neighbour for neighbour in self._roster.neighbours(client) if neighbour in clients]

    def _set_of(self, clients: Sequence[int]) -> bytes:
        roster = self._roster
        return encode_set(len(roster.clients), (roster.position_of(client) for client in clients))

    def _digest_of_set(self, clients: Sequence[int]) -> bytes:
        roster = self._roster
        return digest_of_set(self._context, len(roster.clients), [roster.position_of(client) for client in clients])


def _id(role: str) -> int:
    return int(role.removeprefix("client/"))


def _end(person: Person) -> tuple[int, Pair]:
    return person.client, person.channel
