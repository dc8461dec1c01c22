"""A layer between a program and its files: stops the program or fails at any write, and copies the files.

Every change of a file goes through it: creating, writing, truncating, flushing, renaming, removing. Flushes are
skipped, because they are slow and later processes cannot observe them. A stopped program changes nothing more, even
during its exit, as if its process had been killed.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

CALLS: Final = ("open", "write", "ftruncate", "fsync", "replace", "rename", "unlink")
Copy = dict[str, bytes]


class Stopped(BaseException):
    """The end of a process, at once."""


class StoppedFiles:
    """Counts operations on files, and stops or fails at one of them."""

    def __init__(
        self,
        *,
        stop_before: int | None = None,
        fail_at: int | None = None,
        is_partial: bool = False,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare.

        Args:
            stop_before: the number of the call at which the program ends.
            fail_at: the number of the call that fails for lack of space.
            is_partial: whether half of that call's data reaches the file.
            watch: called after each call.
        """
        self.stop_before, self.fail_at, self.is_partial, self.watch = stop_before, fail_at, is_partial, watch
        self.calls = 0
        self._thread, self._is_dead = threading.get_ident(), False

    @contextmanager
    def installed(self) -> Generator[None]:
        with ExitStack() as patched:
            for name in CALLS:
                patched.enter_context(mock.patch.object(os, name, self._passing(name, getattr(os, name))))
            yield

    def _passing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def passing(*args: Any, **named: Any) -> Any:
            is_change = name != "open" or bool(args[1] & os.O_CREAT)
            if threading.get_ident() != self._thread or not is_change:
                return call(*args, **named)
            if self._is_dead:
                raise Stopped
            number, self.calls = self.calls, self.calls + 1
            if number in {self.stop_before, self.fail_at}:
                if self.is_partial and name == "write":
                    call(args[0], bytes(args[1])[: len(args[1]) // 2])
                if number == self.stop_before:
                    self._is_dead = True
                    raise Stopped
                raise OSError(errno.ENOSPC, "no space left on device")
            done = None if name == "fsync" else call(*args, **named)
            self.watch()
            return done

        return passing


def copy_of(folder: Path) -> Copy:
    """Read a folder's files."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def put_back(folder: Path, copy: Copy, *, by_renaming: bool) -> None:
    """Write a copy's files into a folder, in place or by renaming."""
    for name, data in copy.items():
        if by_renaming:
            beside = folder.with_name(f"restored {name}")
            beside.write_bytes(data)
            beside.rename(folder / name)
        else:
            (folder / name).write_bytes(data)
