"""Training that outlives its session, on nodes that process two messages at once, as in a simulation."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from .test_rounds_in_memory import CLIENTS, MODEL, MemoryGrid, adding, folders, grid_of, lenient, settings_of

__all__ = ["folders"]
pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SLOW = 4


class Workers(MemoryGrid):
    """Nodes like the workers of Flower's simulation: each message has a copy of the state, which is stored at its end.

    The slow node's training in the first session ends after the node's first answer in the second one.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(lenient(folder), self.slow)
        self.may_end, self.has_begun, self.raised = Event(), Event(), ""
        self.late: Thread | None = None

    def slow(self, model: Any, node: int) -> dict[str, Any]:
        if node == SLOW and not self.has_begun.is_set():
            self.has_begun.set()
            assert self.may_end.wait(60)
        return adding(0.125)(model, node)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        pushed = list[str]()
        for message in messages:
            if message.metadata.dst_node_id != 100 + SLOW:
                pushed += super().push_messages([message])
            elif message.content.array_records and self.late is None:
                self.late = Thread(target=self.worked, args=[message])
                self.late.start()
                assert self.has_begun.wait(60)
                pushed.append("late")
            else:
                pushed += self.worked(message)
                if self.late is not None and not self.may_end.is_set():
                    self.may_end.set()
                    self.late.join()
        return pushed

    def worked(self, message: Any) -> list[str]:
        identity = f"slow {id(message)}"
        message.metadata.__dict__["_message_id"] = identity
        sent, context = copy.deepcopy(message), copy.deepcopy(self.contexts[SLOW])
        try:
            self.replies[identity] = self.mod(sent, context, self.call)
        except RuntimeError as error:
            self.raised = str(error)
            return []
        self.contexts[SLOW] = context
        return [identity]


def test_a_training_that_outlived_its_session_takes_no_client_out_of_the_next_one(folders: Path) -> None:
    inner = Workers(folders)
    grid = grid_of(inner, settings_of(folders, "pairwise"))
    first = list(grid.send_and_receive(inner.messages(MODEL), timeout=1.0))
    assert np.abs(first[0].content.array_records["arrays"]["w"].numpy() - 2.5 * 0.125).max() < 2**-15
    arrays, metrics = inner.round(grid, {name: values + 1 for name, values in MODEL.items()})
    assert "another session" in inner.raised
    assert metrics["num-examples"] == CLIENTS
    assert np.abs(arrays["w"] - 1 - 3 * 0.125).max() < 2**-15
    keys = [path for path in (folders / "states").iterdir() if path.is_file() and path.stat().st_size]
    assert not keys
