"""Client: secret-shares one update between two servers, and seals each half to its server."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

from secagg.blame import between_servers, signed_by
from secagg.contract.layout import Payload
from secagg.crypto.hpke import ClassicSealingKey, sealing_key
from secagg.crypto.secret import Secret, overwrite
from secagg.errors import NOBODY, InvalidParameters, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ServerId
from secagg.session.certificates import Authority
from secagg.session.one_answer import OneStageClientSession
from secagg.session.standings import require_standing

from .configuration import ENFORCED, IndexingConfiguration, clipped
from .offers import Invitation, RoundStamp, ServerOffer, UploadHalves
from .upload import (
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
    from secagg.session.roles import LazyUpdate, Subject

    from .member import MemberParts


class Client(OneStageClientSession):
    """Client side of one round; see ``ClientSession``."""

    def __init__(
        self, member: MemberParts, subject: Subject, update: LazyUpdate | None, suspended: Secret | None = None
    ) -> None:
        """Prepare to upload once."""
        certificate, policy = member.certificate, member.policy
        if policy.authority is None or policy.server_keys is None:
            raise InvalidParameters("a client pins both servers: set authority and server_keys in its policy")
        if certificate.public_key != member.signing_key.public_key:
            raise InvalidParameters("the certificate does not match the signing key; configure the pair")
        Authority(policy.authority).verify(certificate, culprits=NOBODY)
        super().__init__(certificate.client, subject, update, suspended)
        self._member, self._noise = member, member.noise_for(subject)

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        """Check everything that does not depend on the update, charge the round, and share the update.

        Implements: [PGC+22] Algorithm 1, client, with two servers instead of the enclave. Claim DP-5: a round has one
        upload, and a model at most its attempts.
        """
        invited = Invitation.decode(message)
        configuration, round_number = invited.configuration, invited.round_number
        self._require_subject(invited)
        member, model = self._member, update.model_for(self._subject)
        layout = member.layout_for(self._subject, model)
        if configuration.layout != layout:
            raise _below("the round's codec, model, capacity or terms differ from this client's")
        self._admit(configuration)
        keys = [
            sealing_key(configuration.suite, offer.sealing_key, culprits=signed_by(offer.stamp.server))
            for offer in self._verified(configuration, round_number, invited.shown.offers)
        ]
        member.signing_key.require_usable()
        require_standing(configuration.standing, member, configuration.authority)
        made = update.take(self._subject.layout, charge=partial(member.charge, update.spent(self._subject)))
        # Nothing may refuse after this point.
        payload = Payload(layout, clipped(made.payload, configuration.noise).values)
        indices = SharedIndices(configuration, round_number, self.client, payload, member.coins, threads=member.threads)
        try:
            header = UploadHeader(round_number=round_number, certificate=member.certificate, segments=indices.headers)
            zero, one = self._sealed(configuration, header, indices, payload, keys)
            return UploadHalves(zero.encode(), one.encode()).encode()
        finally:
            indices.wipe()

    def _require_subject(self, invited: Invitation) -> None:
        configuration, subject = invited.configuration, self._subject
        if invited.round_number != subject.round_number:
            raise _below("the servers run a different round from this client's")
        if configuration.task != subject.task:
            raise _below("the servers run a different task from this client's")
        if configuration.layout.segments != subject.layout.segments:
            raise _below("the servers use a different layout from this client's")
        if configuration.noise != self._noise:
            raise _below("the servers' noise is not what this client requires; offer the required noise")
        if invited.shown.is_simulated and not self._member.accepts_simulated:
            raise _below("the first server simulates the second, so it can read all updates")

    def _admit(self, configuration: IndexingConfiguration) -> None:
        member, now = self._member, self._member.clock()
        if type(now) is not datetime or now.utcoffset() is None:
            raise Misuse("the time must be a datetime with a time zone")
        member.policy.admit("the offered round", ENFORCED, configuration.compared())
        if now.timestamp() >= configuration.expiry:
            raise _below("the offered round has expired; start another")
        if configuration.maximum_cohort > self._subject.capacity:
            raise InvalidParameters(
                f"a round of up to {configuration.maximum_cohort} clients exceeds the codec's capacity of "
                f"{self._subject.capacity}; use a wider ring, or a smaller maximum_cohort"
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
            ServerOffer.verified(offer, configuration, stamp) for offer, stamp in zip(offers, stamps, strict=True)
        ]
        if verified[0].sealing_key == verified[1].sealing_key:
            raise PeerMisbehaved(
                "both servers offer the same key, so one party could open both halves",
                reason=Reason.PUBLIC_KEY_REUSED,
                culprits=between_servers(),
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
        """Seal each server's half, and sign both."""
        digest, bodies, seeds = header.digest(configuration), (bytearray(), bytearray()), list[Secret]()
        try:
            bodies = indices.bodies(header)
            seeds += (Secret.random("upload seed", UPLOAD_SEED_BYTES, self._member.coins) for _ in keys)
            if configuration.ring_segments:
                with ring_mask_key(seeds[0], configuration.suite, digest) as key:
                    for packed in masked_rings(configuration, payload, key, threads=self._member.threads):
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
        signature = halves[0].signature_by(self._member.signing_key, configuration)
        return replace(halves[0], signature=signature), replace(halves[1], signature=signature)


def _below(sentence: str) -> InvalidParameters:
    return InvalidParameters(sentence, reason=Reason.BELOW_FLOOR)
