"""Attacks on APPFL's secure aggregation: its own masks and its own aggregator.

Its documentation promises protection against an honest-but-curious server, in rounds without dropouts.
"""

from __future__ import annotations

import hmac
import logging
import struct
from typing import Any

import numpy as np
import torch
from appfl.algorithm.aggregator import FedAvgAggregator
from appfl.privacy import SecureAggregator
from omegaconf import OmegaConf

from attacks import Outcome, not_applicable, refused, report, succeeded
from mersenne import outputs_after

LENGTH = 1000
NAMES = ["one", "two", "three", "four"]
SECRET = bytes(range(32))
CPU = torch.device("cpu")


def upload(name: str, names: list[str], update: np.ndarray, round_id: int = 0) -> dict[str, Any]:
    """Mask an update as a trainer does, with its caller's list of clients."""
    masks = SecureAggregator(name, names, SECRET, CPU)
    flat, shapes = masks.mask_update({"layer": torch.tensor(update, dtype=torch.float32)}, round_id)
    return {"type": "masked_update_flat", "flat": flat, "shapes": shapes, "num_examples": 1}


def mean_of(payloads: dict[str, dict[str, Any]]) -> np.ndarray:
    """Aggregate as APPFL's server does, with equal weights."""
    configuration = OmegaConf.create({"use_secure_agg": True, "client_weights_mode": "equal"})
    aggregator = FedAvgAggregator(aggregator_configs=configuration, logger=logging.getLogger("appfl"))
    return aggregator.aggregate(payloads)["layer"].numpy()


def updates() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {name: rng.normal(0, 0.1, LENGTH) for name in NAMES}


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() < 1e-5)


def summed(names: list[str], known: dict[str, np.ndarray]) -> np.ndarray:
    return len(names) * mean_of({name: upload(name, names, known[name]) for name in names})


def honest() -> None:
    known = updates()
    assert same(summed(NAMES, known), sum(known.values()))


# --- The attacks ------------------------------------------------------------------------------------------------------


def inconsistent_dropouts() -> Outcome:
    return not_applicable("clients hold no shares: a dropout spoils the round, as its documentation says")


def cohort_of_one() -> Outcome:
    known = updates()["one"]
    assert same(upload("one", ["one"], known)["flat"].numpy(), known)
    return succeeded("with a list of one client the upload is the update: a trainer does not check the list")


def sum_below_a_floor() -> Outcome:
    known = updates()
    assert same(summed(NAMES[:2], known), known["one"] + known["two"])
    return succeeded("a list of 2 of 4 clients gave their sum; clients set no minimum")


def the_round_again() -> Outcome:
    known = updates()
    assert same(summed(NAMES, known) - summed(NAMES[1:], known), known["one"])
    return succeeded("four clients uploaded, then three of them the same again; the difference is the fourth's")


def replayed_messages() -> Outcome:
    known = updates()
    first, second = (upload("one", NAMES, known[name])["flat"].numpy() for name in ("one", "two"))
    assert same(second - first, known["two"] - known["one"])
    return succeeded("asked twice for one round, a client reused its mask: two uploads reveal their difference")


def key_in_the_middle() -> Outcome:
    """Read one client's upload as any other client can, or a server to which a client reveals the secret."""
    known = updates()["one"]
    masked = upload("one", NAMES, known)["flat"]
    mask = SecureAggregator("one", NAMES, SECRET, CPU).make_pairwise_mask(LENGTH, 0)
    assert same((masked - mask).numpy(), known)
    return not_applicable("no keys are exchanged: all clients hold one secret, and each can compute every other's mask")


def malformed_upload() -> Outcome:
    known = updates()
    payloads = {name: upload(name, NAMES, known[name]) for name in NAMES}
    payloads["two"]["flat"] = payloads["two"]["flat"][:-1]
    try:
        mean_of(payloads)
    except RuntimeError as error:
        return succeeded(f"one upload with a value missing ended the aggregation with {type(error).__name__}")
    raise AssertionError("the round went on")


def silent_overflow() -> Outcome:
    return not_applicable("values and masks are floats, which do not wrap")


def predictable_masks() -> Outcome:
    """Treat the words behind a mask as a Mersenne Twister's; the attack fails, because they are HMAC-SHA256's."""
    blocks = (hmac.digest(bytes(32), struct.pack(">Q", number), "sha256") for number in range(100))
    words = [word for block in blocks for word in struct.unpack(">8I", block)]
    first = float(SecureAggregator("one", NAMES, SECRET, CPU)._seed_to_normals(1, bytes(32))[0])
    one, other = ((word + 1.0) / (2**32 + 1.0) for word in words[:2])
    assert abs(first - np.sqrt(-2 * np.log(one)) * np.cos(2 * np.pi * other)) < 1e-6
    assert outputs_after(words, 100) != words[624:724]
    return refused("masks are normal values from HMAC-SHA256; 624 words of it do not predict the next")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    report(
        "appfl",
        "secure aggregation (`SecureAggregator`)",
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
