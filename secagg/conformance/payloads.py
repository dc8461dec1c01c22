"""The laws of payloads: determinism, coins, layout, byte count, agreement and version."""

from __future__ import annotations

from itertools import combinations
from typing import Final

from hypothesis import strategies as st

from secagg.contract import DIGEST_BYTES, Aggregate, Layout, Payload
from secagg.contract.layout import UNVERSIONED
from secagg.errors import ContractViolation, InvalidParameters, MalformedMessage, Misuse
from secagg.wire import MessageKind, Writer

from .coins import InsecureCountedCoins
from .refusals import require_refused
from .trees import require_identical, require_same_form
from .trial import Trial, aggregate, decode, decode_alone, draw_seed, encode, encode_with

HEADER_BYTES: Final = len(Writer(MessageKind.PAYLOAD).finish()) + DIGEST_BYTES
"""What a payload has on the wire beside its values: the header of every message and the layout's digest."""


def determinism(trial: Trial) -> None:
    """Encode one update several times with the same coins."""

    def holds(data: st.DataObject) -> None:
        decoder, update, seed = trial.candidate.make(), trial.update(data), draw_seed(data)
        if len({encode(decoder, update, seed).encode() for _ in range(3)}) > 1:
            raise ContractViolation("encoding an update again, with the same coins, gives another payload")

    trial.search(holds, "determinism")


def coins(trial: Trial) -> None:
    """Encode one update with several coins: some payload must differ if the scheme is stochastic, and none otherwise.

    That every choice of coins stays within the error is for the law of round trips, which draws them.
    """
    candidate = trial.candidate
    coins_mattered = False

    def holds(data: st.DataObject) -> None:
        nonlocal coins_mattered
        decoder, update = candidate.make(), trial.update(data)
        sources = [InsecureCountedCoins(bytes([number])) for number in range(8)]
        sent = {encode_with(decoder, update, source).encode() for source in sources}
        if not candidate.stochastic and any(source.draws for source in sources):
            raise ContractViolation("a scheme that the candidate does not call stochastic draws coins")
        coins_mattered = coins_mattered or len(sent) > 1

    trial.search(holds, "coins")
    if candidate.stochastic and not coins_mattered:
        raise ContractViolation("the candidate calls the scheme stochastic, and other coins never gave another payload")


def layout(trial: Trial) -> None:
    """Hold payloads to the declared layout and decoded updates to the shapes that are expected."""
    candidate = trial.candidate
    declared = candidate.make().layout
    if declared.version == UNVERSIONED:
        raise ContractViolation("the layout has no version")

    def holds(data: st.DataObject) -> None:
        decoder, update = candidate.make(), trial.update(data)
        payload = encode(decoder, update, draw_seed(data))
        if not payload.layout == decoder.layout == declared:
            raise ContractViolation("the layout of a payload, or of the scheme, depends on the update")
        decoded = decode_alone(decoder, payload)
        require_same_form(decoded, candidate.expected(update), "the decoded and the expected update")

    trial.search(holds, "layout")


def byte_count(trial: Trial) -> None:
    """Compare the bytes on the wire with the bits of the segments, and with the author's count."""
    candidate = trial.candidate
    layout = candidate.make().layout
    values = sum(-(-segment.length * segment.ring.modulus_bits // 8) for segment in layout.segments)
    if candidate.payload_bytes not in (None, layout.payload_bytes):
        raise ContractViolation(
            f"the author counts {candidate.payload_bytes} bytes in a payload, and the layout's segments have "
            f"{layout.payload_bytes}"
        )

    def holds(data: st.DataObject) -> None:
        decoder = candidate.make()
        payload = encode(decoder, trial.update(data), draw_seed(data))
        sent = len(payload.encode()) - HEADER_BYTES
        if sent != values:
            raise ContractViolation(f"a payload has {sent} bytes, and the segments of the layout {values}")

    trial.search(holds, "byte_count")


def agreement(trial: Trial) -> None:
    """Let one object encode and another decode, with nothing but bytes between them."""
    candidate = trial.candidate

    def holds(data: st.DataObject) -> None:
        client, other_client, server = candidate.make(), candidate.make(), candidate.make()
        if client.capacity != server.capacity:
            raise ContractViolation("two objects with the same public parameters have two capacities")
        update, seed = trial.update(data), draw_seed(data)
        payload = encode(client, update, seed)
        sent = payload.encode()
        if sent != encode(other_client, update, seed).encode():
            raise ContractViolation("two clients encode the same update, with the same coins, as two payloads")
        try:
            received = Payload.decode(sent, server.layout)
        except MalformedMessage as error:
            raise ContractViolation(f"the server cannot read what a client sent: {error}") from error
        total = Aggregate.decode(aggregate(server, [received]).encode(), server.layout)
        decoded = decode(server, total)
        require_identical(decode_alone(client, payload), decoded, "what the encoder decodes and what a server decodes")

    trial.search(holds, "agreement")


def version(trial: Trial) -> None:
    """Compare the layouts of other parameters, and offer an aggregate of another version."""
    candidate = trial.candidate
    if not candidate.others:
        raise InvalidParameters(
            f"{candidate} cannot show that its version covers its parameters: name in `others`, for each of them, the "
            "scheme with that one changed"
        )
    makers = {str(candidate): candidate.make, **candidate.others}
    for (name, make), (other_name, other_make) in combinations(makers.items(), 2):
        if make().layout.digest == other_make().layout.digest:
            raise ContractViolation(f"{name} and {other_name} have one layout")

    def holds(data: st.DataObject) -> None:
        decoder = candidate.make()
        total = aggregate(decoder, [encode(decoder, trial.update(data), draw_seed(data))])
        stale = Layout(total.layout.segments, bytes(byte ^ 255 for byte in total.layout.version))
        what, foreign = "an aggregate of the same segments and another version", Aggregate(stale, total.values, 1, 1)
        require_refused(what, decoder.decode, foreign, by=(Misuse,), done="decoded")

    trial.search(holds, "version")
