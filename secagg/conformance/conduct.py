"""The laws of conduct: what is refused, what is clamped, what is left alone, and what is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import strategies as st

from secagg.errors import ContractViolation, Misuse

from .candidate import Update
from .coins import InsecureCountedCoins
from .trees import Leaf, assembled, children, copied, leaves, require_identical, with_leaves
from .trial import Decoder, Trial, aggregate, decode, draw_seed, encode


def refusal(trial: Trial) -> None:
    """Give a valid update every form that is wrong for every scheme, and offer what the candidate names."""
    for name, update in trial.candidate.bad_updates.items():
        _require_refused(trial.candidate.make(), update, name)

    def holds(data: st.DataObject) -> None:
        decoder, update = trial.candidate.make(), trial.update(data)
        for name, spoiled in _of_another_form(data, update):
            _require_refused(decoder, spoiled, name)

    trial.search(holds, "refusal")


def totality(trial: Trial) -> None:
    """Encode NaN and infinity: as zero and as the largest float, so that no server learns of them by a refusal."""

    def holds(data: st.DataObject) -> None:
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
                raise ContractViolation(f"{bad} at position {position} of {spoiled} is not clamped to 0 or its limit")

    trial.search(holds, "totality")


def no_mutation(trial: Trial) -> None:
    """Encode what must not be written to, overwrite it afterwards, and do the same with what was decoded."""

    def holds(data: st.DataObject) -> None:
        decoder, original, seed = trial.candidate.make(), trial.update(data), draw_seed(data)
        update = copied(original)
        payload = encode(decoder, update, seed)
        require_identical(update, original, "the update after encoding and before")
        sent = payload.encode()
        if encode(decoder, with_leaves(original, _read_only), seed).encode() != sent:
            raise ContractViolation("a read-only update is encoded as another payload")
        _overwrite(update)
        if payload.encode() != sent:
            raise ContractViolation("a payload changes when the update that it was made from does")
        total = aggregate(decoder, [payload])
        received = total.encode()
        decoded = decode(decoder, total)
        kept = copied(decoded)
        if total.encode() != received:
            raise ContractViolation("decode changes the aggregate")
        _overwrite(decoded)
        require_identical(decode(decoder, total), kept, "what is decoded after overwriting a result and before")

    trial.search(holds, "no_mutation")


def statelessness(trial: Trial) -> None:
    """Let one object refuse, encode and decode in several orders, and compare it with new ones."""

    def holds(data: st.DataObject) -> None:
        make = trial.candidate.make
        updates = [trial.update(data), trial.update(data)]
        seeds = [draw_seed(data), draw_seed(data)]
        fresh = [encode(make(), update, seed) for update, seed in zip(updates, seeds, strict=True)]
        totals = [aggregate(make(), [payload]) for payload in fresh]
        decoded = [decode(make(), total) for total in totals]
        used = make()
        for _, spoiled in _of_another_form(data, updates[0]):
            # How it is refused is for another law.
            with suppress(Exception):
                used.encode(spoiled, InsecureCountedCoins(b""))
        for which in (0, 1, 1, 0):
            if encode(used, updates[which], seeds[which]).encode() != fresh[which].encode():
                raise ContractViolation("an update is encoded differently after others")
            for position in (1 - which, which):
                again = decode(used, totals[position])
                require_identical(again, decoded[position], "one aggregate decoded by a used and by a new object")

    trial.search(holds, "statelessness")


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

        def replace(place: str, leaf: Leaf, other: Any = other) -> Any:  # noqa: ANN401 -- hostile on purpose
            return other if place == spoiled else leaf

        yield f"{name} as {spoiled}", with_leaves(update, replace)
    parts = children(update)
    if parts is None:
        yield "a list of numbers", leaf.tolist()
    else:
        yield "a tensor too few", assembled(update, dict(list(parts.items())[1:]))
        yield "a tensor too many", assembled(update, {**parts, "a tensor that no model has": leaf})


def _require_refused(decoder: Decoder, update: Any, name: str) -> None:  # noqa: ANN401
    try:
        decoder.encode(update, InsecureCountedCoins(b""))
    except Misuse:
        return
    except Exception as error:
        raise ContractViolation(f"{name} is refused by {error!r} instead of Misuse") from error
    raise ContractViolation(f"{name} is encoded instead of being refused by Misuse")


# --- Copies ----------------------------------------------------------------------------------------------------------


def _read_only(_: str, leaf: Leaf) -> Leaf:
    copy = leaf.copy()
    copy.flags.writeable = False
    return copy


def _overwrite(update: Update) -> None:
    for leaf in leaves(update).values():
        if leaf.flags.writeable:
            leaf[...] = 1
