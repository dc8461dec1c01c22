"""Every message that a server can send to a client: rosters, deliveries, survivors, requests, and forgeries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

import ideal
from secagg.crypto.labels import Label, bind
from secagg.crypto.merkle import MerkleTree
from secagg.errors import SecAggError
from secagg.protocols.pairwise_mask import round2_masked_input, rounds3_4_unmasking
from secagg.protocols.pairwise_mask.configuration import ClientSet, Roster, Seat
from secagg.protocols.pairwise_mask.relay import PublishedRoster, RelayedShares
from secagg.protocols.pairwise_mask.round0_advertise_keys import KeyAdvertisement
from secagg.protocols.pairwise_mask.round1_share_keys import (
    DeliveredEntry,
    DeliveredShares,
    EncryptedShares,
    EntryForm,
    signature_bytes,
)
from secagg.protocols.pairwise_mask.rounds3_4_unmasking import Endorsement
from secagg.session.certificates import SIGNATURE_BYTES, SigningKey
from secagg.session.signing_keys import issue_certificate
from sessions import Clients, client_id, new_update
from setups import GENUINE, IMPOSTOR, Party, Set, Setup, Shown, shown_as

NO_SIGNATURE = bytes(SIGNATURE_BYTES)


class World(Clients):
    """The clients of a setup, and what a server can send to them."""

    def __init__(self, setup: Setup) -> None:
        """Start without messages."""
        super().__init__(setup)
        self._published = dict[Shown, PublishedRoster]()
        self._dealt = dict[tuple[Shown, int], dict[int, bytes]]()

    def draw_committee(self, wanted: Set) -> None:
        """Choose openings for which these clients are the committee, as if the server was lucky."""
        for attempt in range(self.setup.attempts):
            while self.committee(self.whole_roster(attempt)) != wanted:
                self.forget(attempt)
                self._published.clear()

    def keeps_its_input(self, client: int) -> bool:
        """Whether an input uploaded in the first attempt can be uploaded again in the second."""
        kept = new_update()
        try:
            for attempt in (0, 1):
                shown, uploading = self.whole_roster(attempt), self.client((client, GENUINE), attempt, kept)
                messages = (self.roster_message(shown, client), self.shares_message(shown, client, self.setup.everyone))
                for message in (self.offers[attempt], *messages):
                    uploading.answer(message)
        except SecAggError:
            return False
        return True

    # --- Messages of the server -------------------------------------------------------------------------------------

    def whole_roster(self, attempt: int) -> Shown:
        """Return the roster of all clients with their own keys."""
        return shown_as(attempt, tuple((client, GENUINE) for client in sorted(self.setup.everyone)))

    def published(self, shown: Shown) -> PublishedRoster:
        """Return a roster with all entries, and the hash tree over them."""
        if shown not in self._published:
            configuration = self.configurations[shown.attempt]
            advertised = {client_id(number): self._advertisement(shown, number, kind) for number, kind in shown.keys}
            self._published[shown] = PublishedRoster(configuration, self.opening(shown.attempt), advertised)
        return self._published[shown]

    def roster(self, shown: Shown) -> Roster:
        """Return the session that follows from a roster."""
        return self.published(shown).roster

    def committee(self, shown: Shown) -> Set:
        """Return the committee; empty in semi-honest mode."""
        if not self.setup.quorum:
            return frozenset()
        numbers = sorted(shown.clients)
        return frozenset(numbers[position] for position in self.roster(shown).committee)

    def roster_message(self, shown: Shown, client: int) -> bytes:
        """Return the part of a roster that a client receives."""
        return self.published(shown).message_to(shown.place(client)).encode()

    def shares_message(self, shown: Shown, client: int, sharers: Set, junk: Set = frozenset()) -> bytes:
        """Return the neighbours' entries for a client; junk for an entry that does not exist or is replaced."""
        roster, receiver = self.roster(shown), shown.place(client)
        entries = list[DeliveredEntry]()
        for number in sorted((sharers & shown.clients) - {client}):
            relayed = None if number in junk else self.relayed(shown, number)
            entries.append(
                _junk(roster, shown.place(number), receiver) if relayed is None else relayed.deliver_to(receiver)
            )
        return DeliveredShares(
            context=roster.context.tag, sharers=set_on(shown, sharers), entries=tuple(entries)
        ).encode()

    def relayed(self, shown: Shown, number: int) -> RelayedShares | None:
        """Return the shares sent by the holder of the keys listed for a name; nothing if it refuses the roster."""
        kind = shown.kind(number)
        if kind not in {GENUINE, IMPOSTOR}:
            return None
        answers = self.run((number, kind), shown.attempt, (self.roster_message(shown, number),))
        if not answers.accepted:
            return None
        roster, place = self.roster(shown), shown.place(number)
        return RelayedShares(roster, place, EncryptedShares.decode(answers.replies[1], Seat(roster, place)), None)

    def dealt(self, shown: Shown, number: int) -> dict[int, bytes]:
        """Return the two shares, one after the other, that a client sealed to each neighbour."""
        if (shown, number) not in self._dealt:
            self._dealt[shown, number] = self._opened(shown, number)
        return self._dealt[shown, number]

    def _opened(self, shown: Shown, number: int) -> dict[int, bytes]:
        relayed, roster = self.relayed(shown, number), self.roster(shown)
        if relayed is None:
            return {}
        size = EntryForm.between(roster, shown.place(number), 0 if shown.place(number) else 1).sealed_bytes
        return {
            other: ideal.sealed_plaintext(relayed.entry_to(shown.place(other)).sealed[:size])
            for other in shown.clients - {number}
        }

    def survivors_message(self, shown: Shown, sharers: Set, contributors: Set) -> bytes:
        """Return the two sets that a committee member is to sign."""
        return rounds3_4_unmasking.SurvivorSet(
            context=self.roster(shown).context.tag,
            sharers=set_on(shown, sharers),
            contributors=set_on(shown, contributors),
        ).encode()

    def endorsement(self, shown: Shown, number: int, signature: bytes) -> Endorsement | None:
        """Return a client's signature on the roster and its identity in it."""
        credential = self.published(shown).advertisements[shown.place(number)].credential
        return credential and Endorsement(
            position=shown.place(number),
            identity_key=credential.identity_key,
            certificate=credential.certificate,
            signature=signature,
        )

    def request_message(
        self, shown: Shown, contributors: Set, endorsements: Mapping[int, bytes], views: Iterable[bytes]
    ) -> bytes:
        """Return a request for shares."""
        listed = [self.endorsement(shown, number, signature) for number, signature in sorted(endorsements.items())]
        return self.request_of(shown, contributors, [item for item in listed if item is not None], views)

    def request_of(
        self, shown: Shown, contributors: Set, endorsements: Iterable[Endorsement], views: Iterable[bytes]
    ) -> bytes:
        """Return a request with any endorsements, in the given order."""
        return rounds3_4_unmasking.UnmaskingRequest(
            context=self.roster(shown).context.tag,
            contributors=set_on(shown, contributors),
            endorsements=tuple(endorsements),
            views=tuple(rounds3_4_unmasking.SignedView(upload=ideal.UPLOADED, signature=view) for view in views),
        ).encode()

    def forged_certificates(
        self, shown: Shown, sharers: Set, contributors: Set, exact: tuple[Endorsement, ...]
    ) -> dict[str, tuple[Endorsement, ...]]:
        """Return, by name, what a server can make of too few endorsements: duplicates, strangers', its own."""
        committee, quorum = self.committee(shown), self.setup.quorum
        have = {item.position for item in exact}
        absent = [member for member in sorted(committee) if shown.place(member) not in have]
        outside = sorted((shown.clients - committee) & self.setup.corrupted)

        def signed(member: int, key: SigningKey, *, is_certified: bool) -> Endorsement:
            issuer = self.authority if is_certified else self.rogue
            certificate = issue_certificate(issuer, client_id(member), key.public_key).grant
            statement = self.endorsement_statement(shown, member, sharers, contributors)
            signature = ideal.IdealSignatureKey(key.public_key).sign(statement)
            return Endorsement(
                position=shown.place(member), identity_key=key.public_key, certificate=certificate, signature=signature
            )

        own = [signed(member, self.impostor_keys[member], is_certified=False) for member in absent]
        added = {
            "too few endorsements": [],
            "endorsements of identities that nobody certified": own,
            "signatures of the server under members' identities": [
                replace(true, signature=item.signature)
                for member, item in zip(absent, own, strict=True)
                if (true := self.endorsement(shown, member, b"")) is not None
            ],
            "endorsements from outside of the committee": [
                signed(member, self.keys[member], is_certified=True) for member in outside
            ],
            "an endorsement twice": list(exact[:1] * quorum),
            "an endorsement under others' names": [
                replace(item, position=shown.place(member)) for member in absent for item in exact[:1]
            ],
        }
        return {
            name: tuple(sorted((*exact, *more)[: max(quorum, len(exact))], key=lambda item: item.position))
            for name, more in added.items()
        }

    # --- Signatures -------------------------------------------------------------------------------------------------

    def endorsement_statement(self, shown: Shown, signer: int, sharers: Set, contributors: Set) -> bytes:
        """Return the message that a committee member signs, in the library's format."""
        parts = rounds3_4_unmasking.signed_survivors(
            self.roster(shown).context, client_id(signer), set_on(shown, sharers), set_on(shown, contributors)
        )
        return bind(Label.SIGNED_SURVIVORS, *parts)

    def view_statement(self, shown: Shown, signer: int, sharers: Set) -> bytes:
        """Return what a client signs about the sharers that it masked for."""
        parts = round2_masked_input.signed_view(
            self.roster(shown).context, client_id(signer), set_on(shown, sharers), ideal.UPLOADED
        )
        return bind(Label.SIGNED_VIEW, *parts)

    def sign(self, signer: int, statement: bytes) -> bytes:
        """Sign anything, as an adversary can with a corrupted client's key."""
        return ideal.IdealSignatureKey(self.keys[signer].public_key).sign(statement)

    def signed_by_server(self, shown: Shown, signer: int, statement: bytes) -> bytes | None:
        """Sign for a corrupted client, or for one whose identity the server has replaced."""
        if signer in self.setup.corrupted:
            return self.sign(signer, statement)
        if shown.kind(signer) == IMPOSTOR:
            return ideal.IdealSignatureKey(self.impostor_keys[signer].public_key).sign(statement)
        return None

    # --- Private ----------------------------------------------------------------------------------------------------

    def _advertisement(self, shown: Shown, number: int, kind: str) -> KeyAdvertisement:
        def own(party: Party, attempt: int) -> KeyAdvertisement:
            answers = self.run(party, attempt, ())
            return KeyAdvertisement.decode(answers.replies[0], self.configurations[attempt])

        genuine = own((number, GENUINE), shown.attempt)
        match kind:
            case "genuine":
                return genuine
            case "replayed":
                return own((number, GENUINE), 1 - shown.attempt)
            case "impostor":
                return own((number, IMPOSTOR), shown.attempt)
            case _:
                false = own((number, IMPOSTOR), shown.attempt)
                return KeyAdvertisement(
                    attempt=genuine.attempt,
                    client=genuine.client,
                    channel_key=false.channel_key,
                    mask_key=false.mask_key,
                    self_mask_commitment=genuine.self_mask_commitment,
                    credential=genuine.credential,
                )


@cache
def set_on(shown: Shown, members: Set) -> ClientSet:
    """Return a set of clients in the format of a roster, without clients that are not on it."""
    return ClientSet.of(len(shown.keys), [shown.place(number) for number in members & shown.clients])


def _junk(roster: Roster, sender: int, receiver: int) -> DeliveredEntry:
    count, place = roster.graph.degree, roster.graph.point_of(receiver, sender) - 1
    signed = signature_bytes(roster)
    path = tuple(MerkleTree([bytes(32)] * count).prove([place])) if signed else None
    size = EntryForm.between(roster, sender, receiver).size
    return DeliveredEntry(entry=bytes(size), signature=bytes(signed), path=path)
