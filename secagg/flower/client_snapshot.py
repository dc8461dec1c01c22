"""The parts of a snapshot: what is public, in one message, and behind it the secrets, in the order of their mention."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from secagg.crypto.key_agreement import KEY_BYTES
from secagg.crypto.secret import Secret, overwrite
from secagg.protocols.pairwise_mask.client_set import ClientSet
from secagg.protocols.pairwise_mask.round0_advertise_keys import VerifiedKeySet
from secagg.protocols.pairwise_mask.round2_masked_input import Masked
from secagg.protocols.pairwise_mask.round3_consistency_check import Confirmed
from secagg.protocols.pairwise_mask.suites import SHARES_BYTES
from secagg.wire import MessageKind, Reader, Writer

MOST_BYTES: Final = (1 << 32) - 1


def write_masked(step: Masked, contributors: ClientSet | None, public: Writer, secrets: list[Secret | bytes]) -> None:
    """Write what a client holds that has uploaded, and whom it signed for, if it did."""
    members = step.sharers.encode()
    public.fixed(members, len(members)).integer(contributors is not None, 1)
    if contributors is not None:
        members = contributors.encode()
        public.fixed(members, len(members))
    for held in (step.shares, step.edge_seeds):
        public.integer(len(held), 4)
        for neighbour, secret in held.items():
            public.integer(neighbour, 4)
            secrets.append(secret)


def read_masked(key_set: VerifiedKeySet, reader: Reader, secrets: memoryview) -> Masked | Confirmed:
    """Read what ``write_masked`` wrote."""
    population = key_set.roster.population
    sharers = ClientSet.read(reader, population)
    contributors = ClientSet.read(reader, population) if reader.integer(1) else None
    held, position = list[dict[int, Secret]](), 0
    for name, size in (("shares", SHARES_BYTES), ("pairwise_seed", KEY_BYTES)):
        held.append({})
        for _ in range(reader.integer(4)):
            held[-1][reader.integer(4)] = Secret(name, secrets[position : position + size])
            position += size
    masked = Masked(key_set, sharers, held[0], held[1])
    return masked if contributors is None else Confirmed(masked, contributors)


def write_answers(answered: Mapping[MessageKind, tuple[bytes, list[bytes]]], public: Writer) -> None:
    """Write what was answered, and how."""
    public.integer(len(answered), 1)
    for kind, (digest, replies) in answered.items():
        # The upload is not kept to be given again; it is as large as the model.
        kept = [] if kind is MessageKind.DELIVERED_SHARES else replies
        public.integer(kind, 2).fixed(digest, 32).integer(len(kept), 1)
        for reply in kept:
            public.variable(reply, MOST_BYTES)


def read_answers(reader: Reader) -> dict[MessageKind, tuple[bytes, list[bytes]]]:
    """Read what ``write_answers`` wrote."""
    answered = dict[MessageKind, tuple[bytes, list[bytes]]]()
    for _ in range(reader.integer(1)):
        kind, digest = MessageKind(reader.integer(2)), reader.fixed(32)
        answered[kind] = (digest, [reader.variable(MOST_BYTES) for _ in range(reader.integer(1))])
    return answered


def join_parts(public: bytes, secrets: list[Secret | bytes]) -> Secret:
    """Return the snapshot, behind the length of its public part."""
    parts = [part if isinstance(part, bytes) else part.expose() for part in secrets]
    joined = bytearray(8 + len(public) + sum(map(len, parts)))
    joined[:8] = struct.pack(">Q", len(public))
    position = 8
    for part in (public, *parts):
        joined[position : position + len(part)] = part
        position += len(part)
    try:
        return Secret("client state", joined)
    finally:
        overwrite(joined)


def split_parts(view: memoryview) -> tuple[Reader, memoryview]:
    """Return a reader of the public part, and the secrets."""
    (length,) = struct.unpack(">Q", view[:8])
    return Reader(bytes(view[8 : 8 + length]), MessageKind.CLIENT_SNAPSHOT), view[8 + length :]
