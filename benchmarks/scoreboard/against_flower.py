"""Attacks on Flower's SecAgg+: its own client mod and primitives, and a malicious server written here."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import FitRes, Status, bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt, generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import factor_extract
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.common.typing import Code
from flwr.compat.common import recorddict_compat as compat
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)
from flwr.supercore.task_identity import TaskIdentity

from attacks import Outcome, refused, report, succeeded
from mersenne import outputs_after

CLIP, LEVELS, MODULUS, WEIGHT = 8.0, 1 << 22, 1 << 32, 1000.0
LENGTH = 1000
Answers = dict[int, dict[str, Any]]


class Clients:
    """Clients as in Flower: the mod around an app, and a context that persists between messages."""

    def __init__(self, updates: dict[int, np.ndarray], threshold: int) -> None:
        self.updates, self.threshold = updates, threshold
        self.contexts = {n: Context(1, n, {}, RecordDict(), {}) for n in updates}

    def ask(self, node: int, stage: str, **values: Any) -> dict[str, Any]:
        """Send one message of the server's choice, and return the answer's fields."""
        content = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: stage, **values})})
        message = Message(content=content, dst_node_id=node, message_type="train")
        answer = secaggplus_mod(message, self.contexts[node], lambda got, _: self._train(node, got))
        return dict(answer.content.config_records[RECORD_KEY_CONFIGS])

    def _train(self, node: int, message: Message) -> Message:
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([self.updates[node]]), int(WEIGHT), {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)

    def set_up(self, nodes: list[int]) -> Answers:
        """Run the first stage as the workflow of the library does."""
        return {
            node: self.ask(
                node,
                Stage.SETUP,
                **{
                    Key.SAMPLE_NUMBER: len(nodes),
                    Key.SHARE_NUMBER: len(nodes),
                    Key.THRESHOLD: self.threshold,
                    Key.CLIPPING_RANGE: CLIP,
                    Key.TARGET_RANGE: LEVELS,
                    Key.MOD_RANGE: MODULUS,
                    Key.MAX_WEIGHT: WEIGHT,
                },
            )
            for node in nodes
        }

    def share(self, keys: Answers) -> Answers:
        """Run the second stage."""
        listed = {str(node): [k[Key.PUBLIC_KEY_1], k[Key.PUBLIC_KEY_2]] for node, k in keys.items()}
        return {node: self.ask(node, Stage.SHARE_KEYS, **listed) for node in keys}

    def collect(self, shares: Answers, nodes: list[int]) -> dict[int, np.ndarray]:
        """Run the third stage: each client receives its shares, and uploads."""
        uploads = dict[int, np.ndarray]()
        for node in nodes:
            to_it = {
                source: text
                for source, answer in shares.items()
                for goal, text in zip(answer[Key.DESTINATION_LIST], answer[Key.CIPHERTEXT_LIST], strict=True)
                if goal == node
            }
            answer = self.ask(
                node,
                Stage.COLLECT_MASKED_VECTORS,
                **{Key.CIPHERTEXT_LIST: [*to_it.values()], Key.SOURCE_LIST: [*to_it]},
            )
            uploads[node] = vector(answer[Key.MASKED_PARAMETERS])
        return uploads

    def unmask(self, nodes: list[int], present: list[int], gone: list[int]) -> dict[int, list[bytes]]:
        """Run the fourth stage; return the shares by their owner's position in present and gone."""
        collected: dict[int, list[bytes]] = {index: [] for index in range(len(present) + len(gone))}
        for node in nodes:
            lists = {Key.ACTIVE_NODE_ID_LIST: present, Key.DEAD_NODE_ID_LIST: gone}
            for index, share in enumerate(self.ask(node, Stage.UNMASK, **lists)[Key.SHARE_LIST]):
                collected[index].append(share)
        return collected

    def sum_of(self, invited: list[int], present: list[int]) -> np.ndarray:
        """Run a whole round in which all but these drop out before uploading, and return the mean."""
        keys = self.set_up(invited)
        shares = self.share(keys)
        total = np.sum([*self.collect(shares, present).values()], axis=0)
        gone = [node for node in invited if node not in present]
        opened = self.unmask(present, present, gone)
        for index in range(len(present)):
            total = total - mask(combine_shares(opened[index]))
        for index, node in enumerate(gone, len(present)):
            total = total + pairwise(combine_shares(opened[index]), node, {n: keys[n] for n in present})
        return decoded(total % MODULUS, len(present))


def vector(arrays: list[bytes]) -> np.ndarray:
    """Flatten a masked upload: the weight, then the values."""
    return np.concatenate([np.ravel(bytes_to_ndarray(one)) for one in arrays])


def mask(seed: bytes) -> np.ndarray:
    """Expand a seed in the shapes of an upload: the weight comes first, as a separate array."""
    return np.concatenate([np.ravel(one) for one in pseudo_rand_gen(seed, MODULUS, [(1,), (LENGTH,)])])


def pairwise(secret: bytes, node: int, keys: Answers) -> np.ndarray:
    """Return the sum of a client's masks with these others, from its secret key."""
    total = np.zeros(LENGTH + 1, np.int64)
    for other, published in keys.items():
        key = generate_shared_key(bytes_to_private_key(secret), bytes_to_public_key(published[Key.PUBLIC_KEY_1]))
        total += (1 if node > other else -1) * mask(key)
    return total


def decoded(total: np.ndarray, clients: int) -> np.ndarray:
    """Decode a sum as the workflow of the library does, as a mean."""
    factor, values = factor_extract([total[:1], total[1:]])
    (mean,) = dequantize([one / clients for one in values], CLIP, LEVELS)
    assert factor == clients * LEVELS
    return mean


def updates(count: int, value: float | None = None) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(7)
    return {n: rng.normal(0, 0.1, LENGTH) if value is None else np.full(LENGTH, value) for n in range(1, count + 1)}


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() < 1e-4)


def honest() -> None:
    everybody, clients = [1, 2, 3, 4, 5], Clients(updates(5), 3)
    assert same(clients.sum_of(everybody, everybody), np.mean([*clients.updates.values()], axis=0))
    assert same(clients.sum_of(everybody, [1, 2, 4]), np.mean([clients.updates[n] for n in (1, 2, 4)], axis=0))


# --- The attacks ------------------------------------------------------------------------------------------------------


def inconsistent_dropouts() -> Outcome:
    clients, everybody = Clients(updates(5), 3), [1, 2, 3, 4, 5]
    keys = clients.set_up(everybody)
    uploads = clients.collect(clients.share(keys), everybody)
    opened = clients.unmask(everybody, everybody, [1])
    own, secret = combine_shares(opened[0]), combine_shares(opened[5])
    others = {node: key for node, key in keys.items() if node != 1}
    found = decoded((uploads[1] - mask(own) - pairwise(secret, 1, others)) % MODULUS, 1)
    assert same(found, clients.updates[1])
    return succeeded("one request with the client in both lists; its update was recovered to 1e-4")


def cohort_of_one() -> Outcome:
    clients = Clients(updates(1), 1)
    assert same(clients.sum_of([1], [1]), clients.updates[1])
    return succeeded("the server chose a round of one client and threshold 1; its update was recovered")


def sum_below_a_floor() -> Outcome:
    clients = Clients(updates(6), 2)
    mean = clients.sum_of([1, 2, 3, 4, 5, 6], [1, 2])
    assert same(mean, (clients.updates[1] + clients.updates[2]) / 2)
    return succeeded("2 of 6 remained at the server's threshold of 2; their sum was released: clients set no minimum")


def the_round_again() -> Outcome:
    everybody, clients = [1, 2, 3, 4, 5], Clients(updates(5), 3)
    total, rest = 5 * clients.sum_of(everybody, everybody), 4 * clients.sum_of(everybody[1:], everybody[1:])
    assert same(total - rest, clients.updates[1])
    return succeeded("five clients uploaded, then four of them the same again; the difference is the fifth's")


def replayed_messages() -> Outcome:
    everybody, clients = [1, 2, 3], Clients(updates(3), 2)
    clients.sum_of(everybody, everybody)
    try:
        clients.unmask([2], [2, 3], [1])
    except ValueError as error:
        return refused(f"a client is in another stage: {error}")
    return succeeded("a client revealed a share of the other secret when asked again")


def key_in_the_middle() -> Outcome:
    """Send the victim the server's own keys as those of all others, and read what it shares with them."""
    clients, everybody = Clients(updates(3), 2), [1, 2, 3]
    keys = clients.set_up(everybody)
    own = {node: (generate_key_pairs(), generate_key_pairs()) for node in (2, 3)}
    shown = {node: {Key.PUBLIC_KEY_1: public_key_to_bytes(a[1]), Key.PUBLIC_KEY_2: public_key_to_bytes(b[1])}
             for node, (a, b) in own.items()}  # fmt: skip
    listed = {str(n): [k[Key.PUBLIC_KEY_1], k[Key.PUBLIC_KEY_2]] for n, k in {1: keys[1], **shown}.items()}
    answer = clients.ask(1, Stage.SHARE_KEYS, **listed)
    channel = bytes_to_public_key(keys[1][Key.PUBLIC_KEY_2])
    seeds = list[bytes]()
    forged = list[bytes]()
    for goal, text in zip(answer[Key.DESTINATION_LIST], answer[Key.CIPHERTEXT_LIST], strict=True):
        key = generate_shared_key(own[goal][1][0], channel)
        _, _, seed_share, _ = share_keys_plaintext_separate(decrypt(key, text))
        seeds.append(seed_share)
        forged.append(encrypt(key, share_keys_plaintext_concat(goal, 1, seed_share, b"")))
    lists = {Key.CIPHERTEXT_LIST: forged, Key.SOURCE_LIST: [*answer[Key.DESTINATION_LIST]]}
    upload = vector(clients.ask(1, Stage.COLLECT_MASKED_VECTORS, **lists)[Key.MASKED_PARAMETERS])
    known = sum(pairwise(private_key_to_bytes(a[0]), node, {1: keys[1]}) for node, (a, _) in own.items())
    found = decoded((upload - mask(combine_shares(seeds)) + known) % MODULUS, 1)
    assert same(found, clients.updates[1])
    return succeeded("a client accepted the server's keys as its neighbours'; its shares and update were read")


def malformed_upload() -> Outcome:
    """Let one client share garbage: the workflow combines shares without checking them."""
    clients, everybody = Clients(updates(4), 3), [1, 2, 3, 4]
    clients.collect(clients.share(clients.set_up(everybody)), everybody)
    opened = clients.unmask(everybody, everybody, [])
    opened[0][3] = b"\x00"
    try:
        combine_shares(opened[0])
    except Exception as error:  # noqa: BLE001 -- the library names none
        return succeeded(
            f"with one share of 1 byte, `combine_shares` over all shares raises {type(error).__name__}: no sum"
        )
    return refused("the share was ignored")


def silent_overflow() -> Outcome:
    """Add the quantized values of 1100 clients, which equals the protocol's result."""
    from flwr.common.secure_aggregation.quantization import quantize  # noqa: PLC0415 -- only for this attack

    (values,) = quantize([np.full(4, 7.9)], CLIP, LEVELS)
    total = np.concatenate([[LEVELS], values]) * 1100 % MODULUS
    (mean,) = dequantize([total[1:] / 1100], CLIP, LEVELS)
    assert mean.max() < 0
    return succeeded(f"1100 clients with 7.9, below the limit of 8.0, decode to {mean[0]:.2f}; no error is raised")


def predictable_masks() -> Outcome:
    """Compute a mask from 624 of its values: it is a Mersenne Twister's output."""
    (drawn,) = pseudo_rand_gen(bytes(range(32)), MODULUS, [(LENGTH,)])
    found = outputs_after([int(word) for word in drawn[:624]], LENGTH - 624)
    assert found == [int(word) for word in drawn[624:]]
    return succeeded("624 values of a mask predicted the other 376; a seed has 32 bits")


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    report(
        "flwr",
        "SecAgg+ (`secaggplus_mod`)",
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
