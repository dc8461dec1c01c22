"""What of a node stands in ``Context.state``: the sealed client of a session, and which round it took part in last."""

from __future__ import annotations

from typing import Final

from flwr.app import ConfigRecord, Context

from secagg.errors import InvalidParameters, Reason
from secagg.session.sealed_state import StateDirectory

STATE_RECORD: Final = "secagg.state"


def state_of(context: Context) -> ConfigRecord:
    """Return the plug-in's own record of a node's state."""
    if STATE_RECORD not in context.state.config_records:
        context.state[STATE_RECORD] = ConfigRecord()
    return context.state.config_records[STATE_RECORD]


def take_sealed(context: Context) -> bytes:
    """Take the sealed client out of the state; what is gone on from must not stay there."""
    record = state_of(context)
    sealed = record.get("sealed", b"")
    record["sealed"] = b""
    return sealed if isinstance(sealed, bytes) else b""


def claim_round(context: Context, states: StateDirectory, round_number: int) -> None:
    """Take part in a round of the run, once.

    The same update in two sums, of which one has a client fewer, is that client's update.

    Raises:
        InvalidParameters: this node took part in it before, or in one after it.
    """
    record = state_of(context)
    if record.get("run") == str(context.run_id) and round_number <= int(str(record.get("round", -1))):
        raise InvalidParameters(
            f"round {round_number} was taken part in before; an update goes into one sum alone",
            reason=Reason.BELOW_FLOOR,
        )
    states.claim_round(context.run_id, context.node_id, round_number)
    record["run"], record["round"] = str(context.run_id), round_number
