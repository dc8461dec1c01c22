"""The dealer of index sharing: it makes random votes for clients that are yet to come, and knows nobody's index.

For every client and block it draws a random index m, shares m between the servers, and shares the vector that is 1 at
m. A client shares its index a; the servers learn a - m, and turn their shares of the vector by it. So whoever knows m
and what the servers say to each other knows a.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from secagg.contract.layout import IndexSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import sealing_key
from secagg.crypto.secret import Confined, Secret, overwrite
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.envelope import SEED_BYTES, seal_body, sealing_info
from secagg.protocols.two_servers.one_hot.proof import prove
from secagg.protocols.two_servers.point_functions.explicit_share import ExplicitShare, SeedShare
from secagg.protocols.two_servers.point_functions.generation import ServerShare, generate_shares
from secagg.protocols.two_servers.server_messages import RoundStamp, ServerOffer
from secagg.session.certificates import SigningKey

from .dealt_correlations import DEALER, DealtCorrelations, DealtHeader, most_clients, signed_dealing
from .index_shares import Indices, add_indices, uniform_indices

_BOTH = (ServerId(0), ServerId(1))


class SemiHonestDealer(Confined):
    """The dealer of one round of semi-honest index sharing.

    It takes no data: what it makes depends on its coins, the configuration and the list of clients. In a deployment it
    may be a third party, or an enclave that no client ever sends anything to.

    Security: indices stay private only while the dealer and both servers follow the protocol, and none of the three
    tells another what it knows. The channel between the servers must be hidden from the dealer: with what the servers
    say to each other it reads every index. So would either server with what the dealer drew. A dealer that deals votes
    for something else than it shares the indices of moves the votes of chosen clients, and nothing notices; one whose
    votes are no votes for one codeword is refused.
    """

    def __init__(  # noqa: PLR0913 -- what a dealer brings
        self,
        configuration: IndexingConfiguration,
        *,
        round_number: int,
        offers: tuple[bytes, bytes],
        signing_key: SigningKey,
        coins: Coins,
        threads: int = 1,
    ) -> None:
        """Begin a round.

        Args:
            offers: what server 0 and server 1 sent for this round.
            signing_key: the dealer's own, which neither server has.
            coins: ``SystemCoins()`` in production.
        Raises:
            InvalidParameters: the configuration is for another mode, or names another dealer.
            AuthenticationFailed, PeerMisbehaved, MalformedMessage: an offer is not that of the server which the
                configuration names, for this round.
        """
        if type(configuration) is not IndexingConfiguration:
            raise Misuse("a dealer has an IndexingConfiguration")
        if configuration.mode is not SharingMode.SEMI_HONEST_INDEX_SHARING:
            raise InvalidParameters(f"mode {configuration.mode.name.lower()} has no dealer")
        if signing_key.public_key != configuration.dealer_key:
            raise InvalidParameters("the signing key is not the one that the configuration names for the dealer")
        self._configuration = configuration
        self._round_number = round_number
        self._signing_key = signing_key
        self._coins = coins
        self._threads = threads
        self._dealt = set[ClientId]()
        stamps = [
            RoundStamp(context=configuration.context, round_number=round_number, server=server) for server in _BOTH
        ]
        verified = [
            ServerOffer.decode(offer, configuration, stamp) for offer, stamp in zip(offers, stamps, strict=True)
        ]
        self._keys = [
            sealing_key(configuration.suite, offer.sealing_key, culprits={offer.stamp.server}) for offer in verified
        ]

    def deal(self, clients: Iterable[ClientId]) -> tuple[DealtCorrelations, DealtCorrelations]:
        """Deal for some of the invited clients, and return the halves for server 0 and for server 1.

        One batch has one proof for all of its clients; memory grows with clients x blocks x codewords.

        Raises:
            InvalidParameters: there is nobody in the list, somebody twice, or more than one batch can be for.
            Misuse: somebody was dealt for before; a client has one correlation in a round.
        """
        configuration, listed = self._configuration, tuple(sorted(clients))
        self._require_new(listed)
        self._dealt.update(listed)
        seeds = [Secret.random("dealt seed", SEED_BYTES, self._coins) for _ in _BOTH]
        bodies = (bytearray(), bytearray())
        try:
            header = self._fill(DealtHeader(self._round_number, listed), seeds, bodies)
            digest = header.digest(configuration)
            sealed = [
                key.seal(seed, sealing_info(server, digest))
                for key, seed, server in zip(self._keys, seeds, _BOTH, strict=True)
            ]
            zero, one = (
                seal_body(seed, server, digest, body) for seed, server, body in zip(seeds, _BOTH, bodies, strict=True)
            )
        finally:
            for body in bodies:
                overwrite(body)
            for seed in seeds:
                seed.wipe()
        return signed_dealing(header, configuration, (sealed[0], sealed[1]), (zero, one), self._signing_key)

    def _require_new(self, clients: tuple[ClientId, ...]) -> None:
        if any(type(client) is not ClientId for client in clients):
            raise Misuse("a dealer deals for ClientIds")
        most = most_clients(self._configuration)
        if not 1 <= len(clients) <= most:
            raise InvalidParameters(f"a batch is for 1 to {most} clients; got {len(clients)}, so deal several batches")
        if any(one == other for one, other in pairwise(clients)):
            raise InvalidParameters("a batch lists each client once")
        if not self._dealt.isdisjoint(clients):
            raise Misuse(
                "a client has one correlation in a round, and of two whoever deals badly would choose",
                reason=Reason.ALREADY_SPENT,
            )

    def _fill(self, header: DealtHeader, seeds: list[Secret], bodies: tuple[bytearray, bytearray]) -> DealtHeader:
        """Write what each server is sent, before it is sealed; return the header with all nonces."""
        configuration, nonces = self._configuration, list[bytes]()
        for number, segment in configuration.index_segments:
            masks = self._masks(header, number, segment, seeds)
            shares = self._vote_shares(header, number, segment, masks)
            nonces.append(shares[0].binding.nonce)
            context = header.check_context(configuration, number, segment, nonces[-1])
            digests = (shares[0].digest, shares[1].digest)
            proofs = prove(context, masks, digests, self._coins)
            for body, share, proof in zip(bodies, shares, proofs, strict=True):
                body.extend(_sent(share))
                with proof.seed:
                    body.extend(proof.encode(context.shape))
            masks.fill(0)
        return DealtHeader(header.round_number, header.clients, tuple(nonces))

    def _masks(self, header: DealtHeader, number: int, segment: IndexSegment, seeds: list[Secret]) -> Indices:
        """Return the random indices of one segment: what both servers' shares add up to."""
        shares = list[Indices]()
        for server, seed in zip(_BOTH, seeds, strict=True):
            with header.mask_key(self._configuration, server, number, seed) as key:
                shares.append(uniform_indices(key, segment.codewords, 0, len(header.clients) * segment.blocks))
        masks: Indices = add_indices(shares[0], shares[1], segment.codewords)
        for share in shares:
            share.fill(0)
        return masks

    def _vote_shares(
        self, header: DealtHeader, number: int, segment: IndexSegment, masks: Indices
    ) -> tuple[ServerShare, ServerShare]:
        """Return shares of the vectors that are 1 at these indices."""
        return generate_shares(
            self._configuration.shape(segment),
            masks,
            context=header.segment_context(self._configuration, number),
            client=DEALER,
            coins=self._coins,
            threads=self._threads,
        )

    def wipe(self) -> None:
        """Give up the signing key."""
        self._signing_key.wipe()

    def __repr__(self) -> str:
        return f"<SemiHonestDealer, round {self._round_number}, dealt for {len(self._dealt)} clients>"


def _sent(share: ServerShare) -> bytes:
    """Return what a server is sent of its shares of one segment."""
    match share:
        case ExplicitShare():
            return share.encode()
        case SeedShare():
            with share.seed as seed:
                return bytes(seed.expose())
        case _:
            raise Misuse("votes are dealt without trees")
