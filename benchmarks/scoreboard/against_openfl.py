"""Attacks on OpenFL's secure aggregation: its own collaborator callback and aggregator code."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
from openfl.callbacks.secure_aggregation import SecAggBootstrapping
from openfl.component.collaborator.collaborator import Collaborator
from openfl.databases import TensorDB
from openfl.interface.aggregation_functions.secure_weighted_average import SecureWeightedAverage
from openfl.utilities import LocalTensor, TensorKey
from openfl.utilities.secagg import calculate_shared_mask, generate_key_pair, pseudo_random_generator
from openfl.utilities.secagg.bootstrap import SecAggSetup

from attacks import Outcome, not_applicable, report, succeeded

LENGTH = 1000
NAMES = ("one", "two", "three", "four")


class Aggregator:
    """The aggregator's side: its set-up, and collaborators' requests."""

    def __init__(self) -> None:
        self.db = TensorDB()
        self.setup = SecAggSetup("aggregator", [*NAMES], self.db)
        self.lies = dict[str, Any]()

    def send_local_task_results(self, _round: int, _task: str, _size: int, named_tensors: list[Any]) -> None:
        self.setup.process_secagg_setup_tensors(named_tensors)

    def get_aggregated_tensor(self, name: str, *_: Any) -> Any:
        found = self.lies.get(name, self.kept(name))
        return SimpleNamespace(data_bytes=json.dumps(found, default=np.ndarray.tolist).encode())

    def kept(self, name: str) -> Any:
        return self.db.get_tensor_from_cache(TensorKey(name, "aggregator", -1, report=False, tags=("secagg",)))


def collaborators(aggregator: Aggregator) -> dict[str, SecAggBootstrapping]:
    """Make the collaborators, each with the callback that OpenFL gives it, and let them publish keys."""
    made = dict[str, SecAggBootstrapping]()
    for name in NAMES:
        one = SecAggBootstrapping()
        one.set_params({"origin": name, "client": aggregator})
        one.set_tensor_db(TensorDB())
        one.name, one.client = name, aggregator
        one._generate_keys()
        made[name] = one
    return made


def set_up() -> tuple[Aggregator, dict[str, SecAggBootstrapping]]:
    """Run the whole set-up, as `on_experiment_begin` does at each collaborator, step by step."""
    aggregator = Aggregator()
    made = collaborators(aggregator)
    keys = {name: one._fetch_public_keys() for name, one in made.items()}
    for name, one in made.items():
        one._generate_ciphertexts(keys[name])
    for name, one in made.items():
        one._decrypt_ciphertexts(keys[name])
        one._save_mask_tensors()
    return aggregator, made


def upload(one: SecAggBootstrapping, update: np.ndarray) -> np.ndarray:
    """Mask an update as a collaborator does."""
    key = TensorKey("layer", one.name, 0, report=False, tags=("trained",))
    tensors = {key: update}
    of_it = SimpleNamespace(
        _private_mask=None, _shared_mask=None, tensor_db=one.tensor_db, collaborator_name=one.name
    )  # fmt: skip
    Collaborator._apply_masks(of_it, tensors)
    return tensors[key]


def unmasked(aggregator: Aggregator, name: str, masked: np.ndarray) -> np.ndarray:
    """Remove one collaborator's mask, with the data that the set-up left at the aggregator."""
    kept = aggregator.setup._results
    index = kept["index"][name]
    own = pseudo_random_generator(kept["private_seeds"][index])
    return masked - own - calculate_shared_mask([key for key in kept["agreed_keys"] if key[0] == index])


def mean_of(aggregator: Aggregator, uploads: dict[str, np.ndarray]) -> np.ndarray:
    """Aggregate as OpenFL's aggregator does."""
    tensors = [LocalTensor(name, tensor, 1 / len(uploads)) for name, tensor in uploads.items()]
    items = ({"tags": row["tags"], "tensor_name": row["tensor_name"], "nparray": row["nparray"]}
             for _, row in aggregator.db.tensor_db.iterrows())  # fmt: skip
    return SecureWeightedAverage().call(tensors, items)


def updates() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {name: rng.normal(0, 0.1, LENGTH) for name in NAMES}


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() < 1e-6)


def honest() -> None:
    aggregator, made = set_up()
    known = updates()
    mean = mean_of(aggregator, {name: upload(made[name], known[name]) for name in NAMES})
    assert same(mean, np.mean([*known.values()], axis=0))


# --- The attacks ------------------------------------------------------------------------------------------------------


def inconsistent_dropouts() -> Outcome:
    aggregator, _ = set_up()
    kept = aggregator.setup._results
    assert len(kept["private_seeds"]) == len(kept["private_keys"]) == len(NAMES)
    return succeeded("an honest set-up suffices: every client submits its shares of both secrets of every client")


def cohort_of_one() -> Outcome:
    aggregator, made = set_up()
    (name, update), *_ = updates().items()
    assert same(unmasked(aggregator, name, upload(made[name], update)), update)
    return succeeded("after an honest set-up the aggregator removed the mask of one client's upload")


def sum_below_a_floor() -> Outcome:
    aggregator, made = set_up()
    known = updates()
    uploads = {name: unmasked(aggregator, name, upload(made[name], known[name])) for name in NAMES[:2]}
    assert same(sum(uploads.values()), known["one"] + known["two"])
    return succeeded("the sum of 2 of 4 was obtained in the same way; clients set no minimum")


def the_round_again() -> Outcome:
    aggregator, made = set_up()
    known = updates()
    first, second = (
        sum(unmasked(aggregator, name, upload(made[name], known[name])) for name in names)
        for names in (NAMES, NAMES[1:])
    )
    assert same(first - second, known["one"])
    return succeeded("the clients uploaded the same updates again; the difference is one client's")


def replayed_messages() -> Outcome:
    _, made = set_up()
    known = updates()
    first, second = (upload(made["one"], known[name]) for name in ("one", "two"))
    assert same(second - first, known["two"] - known["one"])
    return succeeded("no replay is needed: a mask is the same in all rounds, and two uploads reveal their difference")


def key_in_the_middle() -> Outcome:
    """Send one collaborator the aggregator's own keys as those of all the others."""
    aggregator = Aggregator()
    made = collaborators(aggregator)
    private, public = generate_key_pair()
    honest = aggregator.kept("public_keys")
    aggregator.lies["public_keys"] = [row if int(row[0]) == 1 else [row[0], public, public] for row in honest]
    victim = made["one"]
    victim._generate_ciphertexts(victim._fetch_public_keys())
    from openfl.utilities.secagg import generate_agreed_key  # noqa: PLC0415 -- only for this attack

    key = generate_agreed_key(private, victim.params["public_key"][0])
    taken = [agreed for _, other, agreed in victim.params["agreed_keys"] if other != 1]
    assert taken == [key] * (len(NAMES) - 1)
    return succeeded("a client agreed on all its pairwise keys with the aggregator")


def malformed_upload() -> Outcome:
    """Let one collaborator send a share that is not a number; the set-up fails at the last collaborator."""
    aggregator = Aggregator()
    made = collaborators(aggregator)
    keys = {name: one._fetch_public_keys() for name, one in made.items()}
    for name, one in made.items():
        one._generate_ciphertexts(keys[name])
    attacker, *others = made.values()
    shares = [[index, 1, "b'no number'"] for index in range(1, len(NAMES) + 1)]
    attacker._send_to_aggregator({"seed_share": shares, "key_share": shares}, "decrypt_ciphertexts")
    try:
        for one in others:
            one._decrypt_ciphertexts(keys[one.name])
    except ValueError as error:
        return succeeded(f"one client's non-numeric share ended the set-up, in an honest client's call: {error}")
    raise AssertionError("the set-up went on")


def silent_overflow() -> Outcome:
    return not_applicable("values and masks are floats, which do not wrap")


def predictable_masks() -> Outcome:
    _, made = set_up()
    update = updates()["one"]
    masked = upload(made["one"], update)
    assert same(masked - (masked[0] - update[0]), update)
    return succeeded("one known value revealed the other 999: a mask is one float for all values")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    report(
        "openfl",
        "secure aggregation (`SecAggBootstrapping`)",
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
