"""The laws of payloads: determinism, coins, layout, byte count, agreement and version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from secagg.conformance.candidate import (
    Decoder,
    InsecureCountedCoins,
    Leaf,
    Trial,
    Update,
    aggregate,
    assembled,
    children,
    copied,
    decode,
    decode_alone,
    draw_seed,
    encode,
    encode_with,
    leaves,
    require_identical,
    require_refused,
    require_same_form,
    searched,
    with_leaves,
)
from secagg.contract import DIGEST_BYTES, Aggregate, Layout, Payload
from secagg.contract.layout import UNVERSIONED
from secagg.errors import ContractViolation, InvalidParameters, MalformedMessage, Misuse
from secagg.wire import MessageKind, Writer

HEADER_BYTES: Final = len(Writer(MessageKind.PAYLOAD).finish()) + DIGEST_BYTES
"""Bytes of a payload on the wire in addition to its values: the message header and the layout's digest."""


@searched
def determinism(trial: Trial, data: st.DataObject) -> None:
    """Encode one update several times with the same coins."""
    decoder, update, seed = trial.candidate.make(), trial.update(data), draw_seed(data)
    if len({encode(decoder, update, seed).encode() for _ in range(3)}) > 1:
        raise ContractViolation("encoding an update again with the same coins returns another payload")


def coins(trial: Trial) -> None:
    """Encode one update with several coins: some payload must differ if the scheme is stochastic, and none otherwise.

    The law of round trips draws coins and checks that each choice stays within the error.
    """
    candidate = trial.candidate
    coins_mattered = False

    def holds(data: st.DataObject) -> None:
        nonlocal coins_mattered
        decoder, update = candidate.make(), trial.update(data)
        sources = [InsecureCountedCoins(bytes([number])) for number in range(8)]
        sent = {encode_with(decoder, update, source).encode() for source in sources}
        if not candidate.stochastic and any(source.draws for source in sources):
            raise ContractViolation("the scheme draws coins, but the candidate does not declare it stochastic")
        coins_mattered = coins_mattered or len(sent) > 1

    trial.search(holds, "coins")
    if candidate.stochastic and not coins_mattered:
        raise ContractViolation("the candidate declares a stochastic scheme, but coins never changed a payload")


@searched
def layout(trial: Trial, data: st.DataObject) -> None:
    """Require that payloads have the declared layout and decoded updates the expected shapes."""
    candidate = trial.candidate
    declared = candidate.make().layout
    if declared.version == UNVERSIONED:
        raise ContractViolation("the layout has no version")
    decoder, update = candidate.make(), trial.update(data)
    payload = encode(decoder, update, draw_seed(data))
    if not payload.layout == decoder.layout == declared:
        raise ContractViolation("the layout of a payload, or of the scheme, depends on the update")
    decoded = decode_alone(decoder, payload)
    require_same_form(decoded, candidate.expected(update), "the decoded and the expected update")


@searched
def byte_count(trial: Trial, data: st.DataObject) -> None:
    """Compare the bytes on the wire with the bits of the segments, and with the author's count."""
    candidate, decoder = trial.candidate, trial.candidate.make()
    layout = decoder.layout
    values = sum(-(-segment.length * segment.ring.modulus_bits // 8) for segment in layout.segments)
    if candidate.payload_bytes not in (None, layout.payload_bytes):
        raise ContractViolation(
            f"the author counts {candidate.payload_bytes} bytes in a payload, but the layout's segments have "
            f"{layout.payload_bytes}"
        )
    payload = encode(decoder, trial.update(data), draw_seed(data))
    sent = len(payload.encode()) - HEADER_BYTES
    if sent != values:
        raise ContractViolation(f"a payload has {sent} bytes, but the layout's segments have {values}")


@searched
def agreement(trial: Trial, data: st.DataObject) -> None:
    """Encode with one object and decode with another, which receives only bytes."""
    candidate = trial.candidate
    client, other_client, server = candidate.make(), candidate.make(), candidate.make()
    if client.capacity != server.capacity:
        raise ContractViolation("two objects with the same public parameters have different capacities")
    update, seed = trial.update(data), draw_seed(data)
    payload = encode(client, update, seed)
    sent = payload.encode()
    if sent != encode(other_client, update, seed).encode():
        raise ContractViolation("two clients encode the same update and coins as different payloads")
    try:
        received = Payload.decode(sent, server.layout)
    except MalformedMessage as error:
        raise ContractViolation(f"the server cannot read what a client sent: {error}") from error
    total = Aggregate.decode(aggregate(server, [received]).encode(), server.layout)
    decoded = decode(server, total)
    require_identical(decode_alone(client, payload), decoded, "the results of decoding at the encoder and at a server")


def version(trial: Trial) -> None:
    """Compare the layouts of other parameters, and decode an aggregate of another version."""
    candidate = trial.candidate
    if not candidate.others:
        raise InvalidParameters(
            f"{candidate} cannot show that its version covers its parameters: in `others`, give for each parameter "
            "the scheme with that parameter changed"
        )
    makers = {str(candidate): candidate.make, **candidate.others}
    for (name, make), (other_name, other_make) in combinations(makers.items(), 2):
        if make().layout.digest == other_make().layout.digest:
            raise ContractViolation(f"{name} and {other_name} have the same layout")

    def holds(data: st.DataObject) -> None:
        decoder = candidate.make()
        total = aggregate(decoder, [encode(decoder, trial.update(data), draw_seed(data))])
        stale = Layout(total.layout.segments, bytes(byte ^ 255 for byte in total.layout.version))
        what, foreign = "an aggregate of the same segments and another version", Aggregate(stale, total.values, 1)
        require_refused(what, decoder.decode, foreign, by=(Misuse,), done="decoded")

    trial.search(holds, "version")


# --- Conduct of a scheme ----------------------------------------------------------------------------------------------


def refusal(trial: Trial) -> None:
    """Try every update that is malformed for all schemes, and those that the candidate names."""
    for name, update in trial.candidate.bad_updates.items():
        _refuse(trial.candidate.make(), update, name)

    def holds(data: st.DataObject) -> None:
        decoder, update = trial.candidate.make(), trial.update(data)
        for name, spoiled in _of_another_form(data, update):
            _refuse(decoder, spoiled, name)

    trial.search(holds, "refusal")


@searched
def totality(trial: Trial, data: st.DataObject) -> None:
    """Require that NaN is encoded as zero and infinity as the largest float, so that no refusal reveals them."""
    make, update, seed = trial.candidate.make, trial.update(data), draw_seed(data)
    places = {place: leaf for place, leaf in leaves(update).items() if leaf.dtype.kind == "f"}
    if not places:
        return
    spoiled = data.draw(st.sampled_from(list(places)), label="spoiled array")
    position = data.draw(st.integers(0, places[spoiled].size - 1), label="spoiled position")

    def sent(value: Any) -> bytes:  # noqa: ANN401 -- a float of the array's dtype
        changed = with_leaves(update, lambda _, leaf: leaf.copy())
        leaves(changed)[spoiled].flat[position] = value
        return encode(make(), changed, seed).encode()

    for bad in map(places[spoiled].dtype.type, ("nan", "inf", "-inf")):
        try:
            found = sent(bad)
        except Exception as error:
            raise ContractViolation(f"{bad} at position {position} of {spoiled} is refused by {error!r}") from error
        if found != sent(np.nan_to_num(bad)):
            raise ContractViolation(f"{bad} at position {position} of {spoiled} is not clamped to 0 or the limit")


@searched
def no_mutation(trial: Trial, data: st.DataObject) -> None:
    """Encode a read-only update and overwrite the update afterwards; do the same with a decoded sum."""
    decoder, original, seed = trial.candidate.make(), trial.update(data), draw_seed(data)
    update = copied(original)
    payload = encode(decoder, update, seed)
    require_identical(update, original, "the update after encoding and before")
    sent = payload.encode()
    if encode(decoder, with_leaves(original, _read_only), seed).encode() != sent:
        raise ContractViolation("a read-only update is encoded as another payload")
    _overwrite(update)
    if payload.encode() != sent:
        raise ContractViolation("a payload changes when its update is overwritten")
    total = aggregate(decoder, [payload])
    received = total.encode()
    decoded = decode(decoder, total)
    kept = copied(decoded)
    if total.encode() != received:
        raise ContractViolation("decode changes the aggregate")
    _overwrite(decoded)
    require_identical(decode(decoder, total), kept, "the results of decoding after and before overwriting a result")


@searched
def statelessness(trial: Trial, data: st.DataObject) -> None:
    """Refuse, encode and decode with one object in several orders, and compare it with new ones."""
    make = trial.candidate.make
    updates = [trial.update(data), trial.update(data)]
    seeds = [draw_seed(data), draw_seed(data)]
    fresh = [encode(make(), update, seed) for update, seed in zip(updates, seeds, strict=True)]
    totals = [aggregate(make(), [payload]) for payload in fresh]
    decoded = [decode(make(), total) for total in totals]
    used = make()
    for _, spoiled in _of_another_form(data, updates[0]):
        # Another law checks which error is raised.
        with suppress(Exception):
            used.encode(spoiled, InsecureCountedCoins(b""))
    for which in (0, 1, 1, 0):
        if encode(used, updates[which], seeds[which]).encode() != fresh[which].encode():
            raise ContractViolation("an update is encoded differently after other updates")
        for position in (1 - which, which):
            again = decode(used, totals[position])
            require_identical(again, decoded[position], "one aggregate decoded by a used and by a new object")


# --- Spoiling --------------------------------------------------------------------------------------------------------


def _of_another_form(data: st.DataObject, update: Update) -> Iterator[tuple[str, Any]]:
    spoiled = data.draw(st.sampled_from(list(leaves(update))), label="spoiled array")
    leaf = leaves(update)[spoiled]
    others: dict[str, Any] = {
        "one dimension more": leaf[np.newaxis],
        "one element more": np.concatenate([leaf.reshape(-1), np.zeros(1, leaf.dtype)]),
        "no element": leaf.reshape(-1)[:0],
        "complex numbers": leaf.astype(np.complex128),
        "objects": leaf.astype(object),
        "texts": leaf.astype(str),
        "nothing": None,
    }
    if leaf.ndim:
        others["one row more"] = np.concatenate([leaf, leaf[:1]])
        others["one row fewer"] = leaf[1:]
    for name, other in others.items():

        def replace(place: str, leaf: Leaf, other: Any = other) -> Any:  # noqa: ANN401 -- malformed on purpose
            return other if place == spoiled else leaf

        yield f"{name} as {spoiled}", with_leaves(update, replace)
    parts = children(update)
    if parts is None:
        yield "a list of numbers", leaf.tolist()
    else:
        yield "one tensor too few", assembled(update, dict(list(parts.items())[1:]))
        yield "one tensor too many", assembled(update, {**parts, "a tensor that the model does not have": leaf})


def _refuse(decoder: Decoder, update: Any, name: str) -> None:  # noqa: ANN401 -- malformed on purpose
    coins, done = InsecureCountedCoins(b""), "encoded, but must raise Misuse"
    require_refused(name, decoder.encode, update, coins, by=(Misuse,), done=done)


# --- Copies ----------------------------------------------------------------------------------------------------------


def _read_only(_: str, leaf: Leaf) -> Leaf:
    copy = leaf.copy()
    copy.flags.writeable = False
    return copy


def _overwrite(update: Update) -> None:
    for leaf in leaves(update).values():
        if leaf.flags.writeable:
            leaf[...] = 1
