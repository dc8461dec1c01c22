"""Attacks on declearn's masking: its own clients and set-up, and an in-memory network for its server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from declearn.messaging import SerializedMessage
from declearn.metrics._mean import MeanState
from declearn.secagg.masking import (
    MaskingDecrypter,
    MaskingEncrypter,
    MaskingSecaggConfigClient,
    MaskingSecaggConfigServer,
)
from declearn.secagg.utils import IdentityKeys
from declearn.secagg.x3dh.messages import X3DHRequests

from attacks import Outcome, not_applicable, not_shown, refused, report, succeeded

LENGTH, CLIP = 1000, 8.0
Router = Callable[[str, Any], Any]


class Network:
    """Both ends of declearn's network; an adversary may change each message to a client."""

    def __init__(self, names: list[str], route: Router = lambda _, message: message) -> None:
        self.client_names, self.route = {*names}, route
        self.to_client = {name: asyncio.Queue[Any]() for name in names}
        self.to_server = {name: asyncio.Queue[Any]() for name in names}

    async def send_messages(self, messages: dict[str, Any]) -> None:
        for name, message in messages.items():
            await self.to_client[name].put(self.route(name, message))

    async def broadcast_message(self, message: Any, clients: set[str] | None = None) -> None:
        await self.send_messages(dict.fromkeys(clients or self.client_names, message))

    async def wait_for_messages(self, clients: set[str] | None = None) -> dict[str, Any]:
        return {name: await self.to_server[name].get() for name in clients or self.client_names}


class End:
    """One client's end of the network."""

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.name = network, name

    async def send_message(self, message: Any) -> None:
        await self.network.to_server[self.name].put(serialized(message))

    async def recv_message(self) -> Any:
        return serialized(await self.network.to_client[self.name].get())


def serialized(message: Any) -> Any:
    return SerializedMessage.from_bin_message(message.serialize())


def identities(names: list[str]) -> dict[str, IdentityKeys]:
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    return {name: IdentityKeys(key, [k.public_key() for k in keys.values()]) for name, key in keys.items()}


def set_up(
    who: dict[str, IdentityKeys], names: list[str], route: Router = lambda _, message: message
) -> tuple[dict[str, MaskingEncrypter], MaskingDecrypter]:
    """Run declearn's set-up with these clients, as its server's `clients` option allows."""

    async def run() -> tuple[dict[str, MaskingEncrypter], MaskingDecrypter]:
        network = Network(names, route)

        async def one(name: str) -> MaskingEncrypter:
            end = End(network, name)
            return await MaskingSecaggConfigClient(who[name]).setup_encrypter(end, await end.recv_message())

        server = MaskingSecaggConfigServer(bitsize=64, clipval=CLIP)
        *made, decrypter = await asyncio.gather(*map(one, names), server.setup_decrypter(network, {*names}))
        return dict(zip(names, made, strict=True)), decrypter

    return asyncio.run(asyncio.wait_for(run(), 60))


def updates(names: list[str]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {name: rng.normal(0, 0.1, LENGTH) for name in names}


def summed(who: dict[str, IdentityKeys], names: list[str], known: dict[str, np.ndarray]) -> np.ndarray:
    """Set up with these clients, let each upload, and decode the sum as declearn's server does."""
    encrypters, decrypter = set_up(who, names)
    uploads = [encrypters[name].encrypt_numpy_array(known[name]) for name in names]
    total = [decrypter.sum_encrypted(list(column)) for column in zip(*(one for one, _ in uploads), strict=True)]
    return decrypter.decrypt_numpy_array(total, uploads[0][1])


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() < 1e-6)


FIVE = ["one", "two", "three", "four", "five"]


def honest() -> None:
    known = updates(FIVE)
    assert same(summed(identities(FIVE), FIVE, known), sum(known.values()))


# --- The attacks ------------------------------------------------------------------------------------------------------


def inconsistent_dropouts() -> Outcome:
    return not_applicable("clients hold no shares: a dropout ends the round")


def cohort_of_one() -> Outcome:
    known = updates(FIVE)
    assert same(summed(identities(FIVE), ["one"], known), known["one"])
    return succeeded("a set-up with one of five clients, which `clients` allows, gave an upload without a mask")


def sum_below_a_floor() -> Outcome:
    known = updates(FIVE)
    assert same(summed(identities(FIVE), ["one", "two"], known), known["one"] + known["two"])
    return succeeded("a set-up with 2 of 5 clients gave their sum; clients set no minimum")


def the_round_again() -> Outcome:
    who, known = identities(FIVE), updates(FIVE)
    assert same(summed(who, FIVE, known) - summed(who, FIVE[1:], known), known["one"])
    return succeeded("five clients uploaded, then four of them the same again; the difference is the fifth's")


def replayed_messages() -> Outcome:
    """Record one set-up's messages to a client, replay them in another, and look for a repeated mask."""
    who, names = identities(FIVE), ["one", "two"]
    known = updates(FIVE)["one"]
    kept = dict[str, Any]()

    def keep(name: str, message: Any) -> Any:
        if isinstance(message, X3DHRequests) and message.requests:
            kept.setdefault(name, message)
        return message

    def again(name: str, message: Any) -> Any:
        return kept[name] if isinstance(message, X3DHRequests) and message.requests else message

    encrypters, _ = set_up(who, names, keep)
    first, _ = encrypters["one"].encrypt_numpy_array(known)
    try:
        encrypters, _ = set_up(who, names, again)
    except (KeyError, RuntimeError) as error:
        return refused(f"one-time keys are deleted, and the set-up ended with {type(error).__name__}")
    second, _ = encrypters["one"].encrypt_numpy_array(known)
    assert first != second
    return refused("the client answered with fresh keys and another mask")


def key_in_the_middle() -> Outcome:
    """Let the server pose as the second client, with its own identity."""
    who = identities(["one", "two"])
    stranger = Ed25519PrivateKey.generate()
    posing = {"one": who["one"], "two": IdentityKeys(stranger, [who["one"].pub_key])}
    try:
        set_up(posing, ["one", "two"])
    except KeyError as error:
        return refused(f"identities are known beforehand: {error.args[0]}")
    raise AssertionError("a stranger's key was accepted")


def malformed_upload() -> Outcome:
    """Let one client upload half of its values."""
    encrypters, decrypter = set_up(identities(FIVE), FIVE)
    uploads = [encrypters[name].encrypt_aggregate(MeanState(1.0, 1.0)) for name in FIVE]
    uploads[1].encrypted = uploads[1].encrypted[:1]
    total = uploads[0]
    for one in uploads[1:]:
        total += one
    try:
        found = decrypter.decrypt_aggregate(total)
    except Exception as error:  # noqa: BLE001 -- the library names none
        return succeeded(f"a truncated upload was added, and the sum of all ended with {type(error).__name__}")
    return succeeded(f"a truncated upload was added without an error; the sum of five ones was {found}")


def silent_overflow() -> Outcome:
    names = [f"client {n}" for n in range(20)]
    found = summed(identities(names), names, dict.fromkeys(names, np.full(4, 0.99 * CLIP)))
    assert np.abs(found - 20 * 0.99 * CLIP).max() < 1e-6
    return refused("20 clients near the limit had the right sum: a value's range is divided by the number of clients")


def predictable_masks() -> Outcome:
    encrypters, _ = set_up(identities(FIVE), FIVE)
    (rng, *_) = [*encrypters["one"]._pos_rng, *encrypters["one"]._neg_rng]
    kind = type(rng.bit_generator).__name__
    assert kind == "PCG64"
    return not_shown(f"masks are outputs of {kind}, which is not cryptographic; no attack on it was run")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    report(
        "declearn",
        "masking (`MaskingSecaggConfigClient`)",
        honest,
        {
            "inconsistent dropouts": inconsistent_dropouts,
            "cohort of one": cohort_of_one,
            "sum below a floor": sum_below_a_floor,
            "the round again": the_round_again,
            "replayed messages": replayed_messages,
            "key in the middle": key_in_the_middle,
            "malformed upload": malformed_upload,
            "silent overflow": silent_overflow,
            "predictable masks": predictable_masks,
        },
    )
