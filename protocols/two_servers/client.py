"""The client: it shares one update between two servers, and seals each its half."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from secagg.contract.layout import Layout, Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import ClassicSealingKey, sealing_key
from secagg.crypto.secret import Confined, Secret, overwrite
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import require_integer
from secagg.session.certificates import Authority, Certificate, SigningKey
from secagg.session.ledger import NO_MODEL

from .configuration import SERVERS, IndexingConfiguration
from .floors import IndexingFloors
from .ledger import UploadLedger
from .offers import RoundStamp, ServerOffer
from .upload import (
    ROUND_BYTES,
    UPLOAD_SEED_BYTES,
    SharedIndices,
    Upload,
    UploadHeader,
    masked_rings,
    ring_mask_key,
    seal_body,
    sealing_info,
)

if TYPE_CHECKING:
    from secagg.crypto.hybrid_key_agreement import HybridPublicKey


class Client(Confined):
    """A client of two servers, from one round to the next.

    Security: each call of ``share`` is an upload, whether it is sent or not; the ledger refuses a second one for a
        round, and an update that was shared before.
    """

    def __init__(  # noqa: PLR0913 -- what a client brings
        self,
        *,
        certificate: Certificate,
        signing_key: SigningKey,
        floors: IndexingFloors,
        layout: Layout,
        capacity: int,
        ledger: UploadLedger,
        coins: Coins,
        threads: int = 1,
    ) -> None:
        """Prepare to take part.

        Args:
            certificate: the authority's word for the signing key.
            floors: what the client insists on: the authority and the two servers among it.
            layout: of the client's own codec, whose version pins its scales and codebooks.
            capacity: of that codec; more weight than that is refused.
            ledger: what this client has uploaded so far, restored from where it was stored.
            coins: ``SystemCoins()`` in production.
        """
        if type(ledger) is not UploadLedger or type(floors) is not IndexingFloors:
            raise Misuse("a client has IndexingFloors and an UploadLedger")
        if certificate.public_key != signing_key.public_key:
            raise InvalidParameters("the certificate is for another key than the signing key")
        Authority(floors.authority).verify(certificate, culprits={certificate.client})
        self._certificate = certificate
        self._signing_key = signing_key
        self._floors = floors
        self._layout = layout
        self._capacity = capacity
        self._ledger = ledger
        self._coins = coins
        self._threads = threads

    @property
    def ledger(self) -> UploadLedger:
        """What this client has uploaded; store its record before an upload is sent."""
        return self._ledger

    @property
    def client(self) -> ClientId:
        """Who this is."""
        return self._certificate.client

    def share(  # noqa: PLR0913 -- all but one are what the round is
        self,
        payload: Payload,
        *,
        configuration: IndexingConfiguration,
        round_number: int,
        offers: tuple[bytes, bytes],
        now: datetime,
        weight: int = 1,
        model_digest: bytes = NO_MODEL,
    ) -> tuple[Upload, Upload]:
        """Share one update, and return the halves for server 0 and for server 1.

        Implements: [PGC+22] Algorithm 1, client, with two servers in the place of the enclave.
        Args:
            payload: the encoded update.
            configuration: as the client fixed or checked it.
            offers: what server 0 and server 1 sent for this round.
            now: the client's own time, with a time zone.
            weight: how often the update counts; the servers see it.
            model_digest: of the model that the update was trained from.
        Raises:
            InvalidParameters: the configuration goes below this client's floors, or the update does not fit it.
            AuthenticationFailed, PeerMisbehaved, MalformedMessage: an offer is not that of the server which the
                configuration names, for this round; or the ledger refuses another upload.
        Security: store ``ledger.encode()`` before either half is sent.
        """
        if type(payload) is not Payload or type(configuration) is not IndexingConfiguration:
            raise Misuse("an update is a Payload, which a codec encodes, for an IndexingConfiguration")
        if type(offers) is not tuple or len(offers) != SERVERS:
            raise Misuse("offers are those of server 0 and of server 1")
        self._admit(configuration, now)
        payload.check()
        if payload.layout != configuration.layout:
            raise InvalidParameters("the update has another layout than the servers count; encode it with its codec")
        if weight not in configuration.weights or type(weight) is not int:
            raise InvalidParameters(f"a weight is one of {configuration.weights}; got {weight!r}")
        keys = self.charge(configuration, round_number, offers, now, model_digest)
        return self.shared(payload, configuration=configuration, round_number=round_number, keys=keys, weight=weight)

    def charge(
        self,
        configuration: IndexingConfiguration,
        round_number: int,
        offers: tuple[bytes, bytes],
        now: datetime,
        model_digest: bytes = NO_MODEL,
    ) -> list[ClassicSealingKey | HybridPublicKey]:
        """Check everything that does not depend on an update, spend its round, and return the servers' keys.

        Raises:
            InvalidParameters, AuthenticationFailed, PeerMisbehaved, MalformedMessage: as for ``share``.
        """
        require_integer("a round number", round_number, 0, (1 << (8 * ROUND_BYTES)) - 1)
        self._admit(configuration, now)
        verified = self._verified(configuration, round_number, offers)
        keys = [
            sealing_key(configuration.suite, offer.sealing_key, culprits={offer.stamp.server}) for offer in verified
        ]
        self._ledger.charge(configuration.task, round_number, model_digest)
        return keys

    def shared(
        self,
        payload: Payload,
        *,
        configuration: IndexingConfiguration,
        round_number: int,
        keys: list[ClassicSealingKey | HybridPublicKey],
        weight: int,
    ) -> tuple[Upload, Upload]:
        """Share an update that was charged; it is of the configuration's layout and weights."""
        indices = SharedIndices(configuration, round_number, self.client, payload, self._coins, threads=self._threads)
        try:
            header = UploadHeader(
                round_number=round_number, certificate=self._certificate, weight=weight, segments=indices.headers
            )
            return self._sealed(configuration, header, indices, payload, keys)
        finally:
            indices.wipe()

    def _admit(self, configuration: IndexingConfiguration, now: datetime) -> None:
        self._floors.admit(configuration, layout=self._layout, now=now)
        if configuration.maximum_total_weight > self._capacity:
            raise InvalidParameters(
                f"a round may reach a weight of {configuration.maximum_total_weight}, and the codec's capacity is "
                f"{self._capacity}; use a wider ring, or smaller cohorts and weights"
            )

    @staticmethod
    def _verified(
        configuration: IndexingConfiguration, round_number: int, offers: tuple[bytes, bytes]
    ) -> list[ServerOffer]:
        stamps = [
            RoundStamp(context=configuration.context, round_number=round_number, server=ServerId(index))
            for index in (0, 1)
        ]
        verified = [
            ServerOffer.decode(offer, configuration, stamp) for offer, stamp in zip(offers, stamps, strict=True)
        ]
        if verified[0].sealing_key == verified[1].sealing_key:
            raise PeerMisbehaved(
                "both servers offer one key, so one party could open both halves",
                reason=Reason.PUBLIC_KEY_REUSED,
                culprits={stamp.server for stamp in stamps},
                round_name="offers",
            )
        return verified

    def _sealed(
        self,
        configuration: IndexingConfiguration,
        header: UploadHeader,
        indices: SharedIndices,
        payload: Payload,
        keys: list[ClassicSealingKey | HybridPublicKey],
    ) -> tuple[Upload, Upload]:
        """Seal each server its half, and sign both."""
        digest, bodies, seeds = header.digest(configuration), (bytearray(), bytearray()), list[Secret]()
        try:
            bodies = indices.bodies(header)
            seeds += (Secret.random("upload seed", UPLOAD_SEED_BYTES, self._coins) for _ in keys)
            if configuration.ring_segments:
                with ring_mask_key(seeds[0], configuration.suite, digest) as key:
                    for packed in masked_rings(configuration, payload, key, threads=self._threads):
                        bodies[1].extend(packed)
            servers = (ServerId(0), ServerId(1))
            sealed = [
                key.seal(seed, sealing_info(server, digest))
                for key, seed, server in zip(keys, seeds, servers, strict=True)
            ]
            halves = [
                Upload(
                    header=header,
                    server=server,
                    sealed_seeds=(sealed[0], sealed[1]),
                    body=seal_body(seed, server, digest, body),
                    public_part=indices.public_part if server.index else b"",
                )
                for server, seed, body in zip(servers, seeds, bodies, strict=True)
            ]
        finally:
            for body in bodies:
                overwrite(body)
            for seed in seeds:
                seed.wipe()
        signature = halves[0].signature_by(self._signing_key, configuration)
        return replace(halves[0], signature=signature), replace(halves[1], signature=signature)

    def __repr__(self) -> str:
        return f"<Client {self.client}, {self._ledger!r}>"
