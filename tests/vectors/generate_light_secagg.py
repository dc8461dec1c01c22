"""Make the vectors of LightSecAgg: ``python -m tests.vectors.generate_light_secagg`` writes them.

The library computes the sum with coins derived from its name; recorded pieces are reused, because HPKE draws its own
coins. The expectations of negative vectors are written by hand in ``NEGATIVES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from secagg.contract import Layout, Payload, RingSegment
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.light_secagg.client import Client
from secagg.protocols.light_secagg.configuration import Configuration
from secagg.protocols.light_secagg.server import Server, State
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import HEADER_BYTES
from tests.harness.light_secagg_sums import client_with

from . import generate

Vector = dict[str, Any]
FOLDER: Final = Path(__file__).resolve().parent / "light_secagg"
HEAD: Final[Mapping[str, Any]] = {"schema": 1, "protocol": "coded_mask/1"}
SETTING: Final[Vector] = {"layout": [[20, 4], [33, 2]], "population": 5, "privacy": 1, "target": 3}
INPUTS: Final[Mapping[str, Any]] = {
    "2": [["-524288", "524287", "0", "-1"], ["-4294967296", "4294967295"]],
    "40": [["1", "-1", "77", "-1"], ["0", "-1"]],
    "41": [["-2", "3", "-5", "-1"], ["123456789", "1"]],
    "4294967296": [["9", "9", "9", "-1"], ["2", "-3"]],
    "18446744073709551614": [["5", "5", "5", "-1"], ["7", "7"]],
}
GONE: Final = {State.INPUTS: ["18446744073709551614"], State.ANSWERS: ["4294967296"]}
"""Clients that drop out before answering in a stage."""
STAGES: Final = (
    (State.KEYS, "key", ""),
    (State.PIECES, "pieces", "roster"),
    (State.INPUTS, "input", "delivery"),
    (State.ANSWERS, "answer", "survivors"),
)
T0 = HEADER_BYTES
BODY = HEADER_BYTES + 32
Edit = Callable[[bytes], bytes]


def flipped(at: int) -> Edit:
    """Change one byte."""
    return lambda message: message[:at] + bytes([message[at] ^ 1]) + message[at % len(message) + 1 :]


def cut(message: bytes) -> bytes:
    """Omit the last byte."""
    return message[:-1]


def longer(message: bytes) -> bytes:
    """Add a byte."""
    return message + b"\0"


def large(message: bytes) -> bytes:
    """Make the first element the modulus."""
    return message[: BODY + 4] + (2**31 - 1).to_bytes(4, "little") + message[BODY + 8 :]


def huge(message: bytes) -> bytes:
    """Declare 2^32 - 1 entries or bytes."""
    return message[:BODY] + b"\xff" * 4 + message[BODY + 4 :]


def swapped(message: bytes) -> bytes:
    """Swap the first two clients' ids."""
    size = 12 + int.from_bytes(message[BODY + 12 : BODY + 16], "big")
    first, second = BODY + 4, BODY + 4 + size
    ids = message[first : first + 8], message[second : second + 8]
    return message[:first] + ids[1] + message[first + 8 : second] + ids[0] + message[second + 8 :]


FIRST: Final = "2"
SERVER_CASES: Final[Mapping[str, tuple[str, Edit, str]]] = {
    f"{stage}_{what}": (stage, edit, expect)
    for stage in ("key", "pieces", "input", "answer")
    for what, edit, expect in (
        ("cut_short", cut, "truncated"),
        ("with_a_byte_more", longer, "trailing_bytes"),
        ("of_another_sum", flipped(T0), "wrong_session"),
        ("of_another_kind", flipped(HEADER_BYTES - 1), "wrong_kind"),
        ("of_another_version", flipped(4), "wrong_version"),
    )
} | {
    "pieces_in_another_order": ("pieces", swapped, "not_canonical"),
    "more_pieces_than_clients": ("pieces", huge, "length_over_limit"),
    "input_with_a_word_that_is_no_element": ("input", large, "share_out_of_range"),
    "answer_with_a_word_that_is_no_element": ("answer", large, "share_out_of_range"),
}
CLIENT_CASES: Final[Mapping[str, tuple[str, Edit, str]]] = {
    f"{stage}_{what}": (stage, edit, expect)
    for stage in ("roster", "delivery", "survivors")
    for what, edit, expect in (
        ("cut_short", cut, "truncated"),
        ("with_a_byte_more", longer, "trailing_bytes"),
        ("of_another_sum", flipped(T0), "wrong_session"),
        ("in_another_order", swapped, "not_canonical"),
        ("with_more_entries_than_clients", huge, "length_over_limit"),
    )
} | {
    "roster_with_another_key_of_the_client": ("roster", flipped(BODY + 16), "roster_invalid"),
    "delivery_with_an_altered_piece": ("delivery", flipped(-1), "authentication_failed"),
    "survivors_that_sent_no_pieces": ("survivors", flipped(BODY + 4 + 7), "survivors_invalid"),
}


class Play:
    """The parties of the sum."""

    def __init__(self, vector: Vector) -> None:
        """Prepare them with coins derived from their names."""
        setting = vector["setting"]
        self.layout = Layout(tuple(RingSegment(*row) for row in setting["layout"]))
        numbers = {key: setting[key] for key in ("population", "privacy", "target")}
        self.configuration = Configuration(
            task=b"a task",
            round_number=7,
            nonce=bytes(range(16)),
            model_digest=b"\1" * 32,
            application_digest=b"\2" * 32,
            suite=Suite.CLASSIC,
            layout=self.layout,
            **numbers,
        )
        self.inputs, self.server = vector["inputs"], Server(self.configuration, None)

    def client(self, name: str) -> Client:
        """Return a client that has sent nothing."""
        rows = self.inputs[name]
        rings = self.layout.require_rings()
        vectors = tuple(one.ring.from_integers([int(v) for v in row]) for one, row in zip(rings, rows, strict=True))
        payload, coins = Payload(self.layout, vectors), InsecureSeededCoins(f"coded_mask/1/{name}".encode())
        return client_with(self.configuration, ClientId(int(name)), payload, coins)

    def run(self, recorded: Mapping[str, str]) -> tuple[dict[str, str], Vector]:
        """Return every message by its name, and the sum."""
        said, clients = dict[str, str](), {name: self.client(name) for name in self.inputs}
        present = list(clients)
        for state, answers, asked in STAGES:
            present = [name for name in present if name not in GONE.get(state, [])]
            for name in present:
                if (message := self.server.message_to(ClientId(int(name)))) is None:
                    continue
                if asked:
                    said[asked if asked != "delivery" else f"delivery/{name}"] = message.hex()
                answer = clients[name].answer(message)
                if answers == "pieces":
                    answer = bytes.fromhex(recorded.get(f"pieces/{name}", answer.hex()))
                said[f"{answers}/{name}"] = answer.hex()
                self.server.receive(ClientId(int(name)), answer)
            self.server.close_stage()
        total = self.server.release().aggregate
        values = [[str(value) for value in vector] for vector in total.values]
        return said, {"values": values, "contributors": total.contributors}


def negatives(messages: Mapping[str, str]) -> Iterator[tuple[str, Vector]]:
    """Return cases with one change to the sum each, and the expected outcome."""
    for to, cases in (("server", SERVER_CASES), (f"client/{FIRST}", CLIENT_CASES)):
        for name, (stage, edit, expect) in cases.items():
            own = to == "server" or stage == "delivery"
            takes = f"{stage}/{FIRST}" if own else stage
            yield (
                name,
                {
                    "party": to,
                    "takes": takes,
                    "hands_over": edit(bytes.fromhex(messages[takes])).hex(),
                    "expect": expect,
                },
            )


def vectors(recorded: Mapping[str, Vector]) -> Iterator[tuple[str, Vector]]:
    """Make both files; ``recorded`` are those of an earlier run."""
    vector: Vector = {**HEAD, "comment": "5 clients, one gone before it uploads, one after", "setting": SETTING}
    vector["inputs"] = dict(INPUTS)
    messages, result = Play(vector).run(recorded.get("sum", {}).get("messages", {}))
    yield "sum", vector | {"messages": messages, "result": result}
    yield "negative", {**HEAD, "comment": "one change to the sum each", "vectors": dict(negatives(messages))}


def main() -> None:
    """Write the files."""
    generate.write_folder(FOLDER, dict(vectors(generate.read_folder(FOLDER) if FOLDER.exists() else {})))


if __name__ == "__main__":
    main()
