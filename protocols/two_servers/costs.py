"""Bytes that one client of two servers sends and receives, and the servers' work, from configurations alone."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from typing import Final

from secagg.contract import IndexSegment, Layout
from secagg.identifiers import ServerId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.session.certificates import IDENTITY_KEY_BYTES
from secagg.session.simulated import Costs, Work, mask_cipher_calls, ring_length

from .configuration import SERVERS, IndexingConfiguration, SharingMode
from .offers import Invitation, RoundOffers
from .point_functions.shares import CorrectionWords, ExplicitShare
from .server_messages import BATCH, batch_bytes, half_bytes, offers_bytes

_FRAME_BYTES: Final = 7 + 2 * 4
"""Frame of the message in which both halves travel to server 0."""


def costs(layout: Layout, clients: int, suite: Suite) -> Iterator[Costs]:
    """Count the explicit shares of all blocks, and the cheapest trees where these are shorter."""
    if not any(isinstance(segment, IndexSegment) for segment in layout.segments):
        yield _costs(_configured(layout, clients, suite, SharingMode.CHECKED_POINT_FUNCTIONS, None), clients)
        return
    for mode in (SharingMode.UNCHECKED_POINT_FUNCTIONS, SharingMode.CHECKED_POINT_FUNCTIONS):
        for depth in (0, None):
            configuration = _configured(layout, clients, suite, mode, depth)
            if depth == 0 or _depths(configuration) != {0}:
                yield _costs(configuration, clients)


# --- Private ----------------------------------------------------------------------------------------------------------


def _configured(
    layout: Layout, clients: int, suite: Suite, mode: SharingMode, depth: int | None
) -> IndexingConfiguration:
    """Return the configuration of a round, with keys that nobody has."""
    keys = [bytes([number]) * IDENTITY_KEY_BYTES for number in range(1, 4)]
    return IndexingConfiguration(
        task=b"a plan",
        suite=suite,
        authority=keys[0],
        server_keys=(keys[1], keys[2]),
        layout=layout,
        mode=mode,
        depth=depth,
        minimum_cohort=LEAST_COHORT,
        maximum_cohort=clients,
        maximum_rejections=0,
        expiry=1,
    )


def _depths(configuration: IndexingConfiguration) -> set[int]:
    return {configuration.shape(segment).depth for _, segment in configuration.index_segments}


def _costs(configuration: IndexingConfiguration, clients: int) -> Costs:
    """Add the plain parts, which one server expands and the other is sent; envelopes, proofs and signatures."""
    shapes = [(configuration.shape(segment), segment.blocks) for _, segment in configuration.index_segments]
    payload = sum(
        CorrectionWords.encoded_bytes(shape, blocks) if shape.depth else ExplicitShare.encoded_bytes(shape, blocks)
        for shape, blocks in shapes
    )
    operations = sum(shape.codewords * blocks for shape, blocks in shapes)
    if configuration.is_checked:
        # Two products of the whole share, with an element for each codeword and with one for each row.
        operations += sum(
            2 * configuration.check_shape(segment).field.degree * segment.codewords * segment.blocks
            for _, segment in configuration.index_segments
        )
    rings = configuration.ring_segments
    calls = sum((Fraction(shape.cipher_calls) * blocks for shape, blocks in shapes), Fraction(0))
    of_client = ceil(calls) + mask_cipher_calls(rings)
    operations += ring_length(rings)
    full, rest = divmod(clients, BATCH)
    offer = bytes(offers_bytes(configuration) // SERVERS)
    between = full * sum(batch_bytes(configuration, BATCH)) + (sum(batch_bytes(configuration, rest)) if rest else 0)
    return Costs(
        plan=f"between is for batches of {BATCH} uploads; the shares of the sum, exchanged once a round, come on top",
        payload_bytes=payload + sum(segment.payload_bytes for segment in rings),
        up_bytes=_FRAME_BYTES + sum(half_bytes(configuration, ServerId(index)) for index in range(SERVERS)),
        down_bytes=len(Invitation(0, configuration, RoundOffers(is_simulated=False, offers=(offer, offer))).encode()),
        # Server 0 is the one that clients reach, so server 1's half passes through it.
        between_bytes=round(between / clients) + half_bytes(configuration, ServerId(1)),
        client=Work(cipher_calls=2 * of_client, word_operations=operations),
        server=Work(
            cipher_calls=ceil(clients * (calls + mask_cipher_calls(rings))),
            word_operations=clients * operations,
            steps=clients,
        ),
        variant=_variant(configuration),
        is_checked=configuration.is_checked or not shapes,
        reveals_counts=bool(shapes),
    )


def _variant(configuration: IndexingConfiguration) -> str:
    depths = _depths(configuration)
    if not depths:
        return ""
    least, greatest = min(depths), max(depths)
    depth = f"depth {least}" if least == greatest else f"depths {least} to {greatest}"
    return f"{depth}, checked" if configuration.is_checked else depth
