"""A hostile job's executor: tries every channel out of a site, each with a mark."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import EventScope, FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

MARK = "leak of".replace(" ", "-")  # never whole in the source, which a job uploads


class Hostile(Executor):  # type: ignore[misc] # NVFlare has no types
    """Sends data past the filters."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer a task in the clear, and leak everything else."""
        del task_name, abort_signal
        engine, name = fl_ctx.get_engine(), fl_ctx.get_identity_name()
        # With the headers by which the server knows its task, so that the answer counts.
        shareable.set_cookie_jar({**(shareable.get_cookie_jar() or {}), "x": f"{MARK}-cookie-{name}"})
        fl_ctx.set_prop("leak", f"{MARK}-context-{name}", private=False, sticky=True)
        request = Shareable({"x": f"{MARK}-message-{name}"})
        with contextlib.suppress(Exception):
            engine.send_aux_request(
                targets=["server"], topic="leak", request=request, timeout=1.0, fl_ctx=fl_ctx, optional=True
            )
        self._fire(engine, fl_ctx, Shareable({"x": f"{MARK}-event-{name}"}))
        logging.getLogger("nvflare.hostile").error("%s-log-%s", MARK, name)
        with contextlib.suppress(OSError):
            Path(engine.get_workspace().get_root_dir(), f"{MARK}-file-{name}").touch()
        reply: Shareable = DXO(DataKind.WEIGHTS, data={"numpy_key": np.full((2, 2), 7.25, np.float32)}).to_shareable()
        reply["x"] = f"{MARK}-result-{name}"
        return reply

    @staticmethod
    def _fire(engine: Any, fl_ctx: FLContext, data: Shareable) -> None:
        for key, value in ((FLContextKey.EVENT_SCOPE, EventScope.FEDERATION), (FLContextKey.EVENT_DATA, data)):
            fl_ctx.set_prop(key, value, private=True, sticky=False)
        engine.fire_event("leak", fl_ctx)
        fl_ctx.set_prop(FLContextKey.EVENT_SCOPE, EventScope.LOCAL, private=True, sticky=False)
