"""Site side: two filters and an executor that replace a training result with protocol messages.

The recipe's script trains as usual. After all other filters of the site and the job, our filter replaces the result
with the protocol's message, so nothing else leaves the site. A job's process runs from the first message of a session
to the last, so sessions stay in its memory.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AlgorithmConstants

from secagg.compression.downlink import HeldModel
from secagg.compression.model_update.arrays import TENSOR, Arrays, is_integer
from secagg.contract import Payload
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.identifiers import CLIENT_ID_BYTES, ClientId
from secagg.platforms import Left, code_of, code_said, log_leaving
from secagg.platforms.client_node import PARTITION
from secagg.platforms.client_round import Node, NodeRound, Trained, Training, begun_app
from secagg.platforms.held_models import followed, is_told, parted
from secagg.platforms.settings import PREFIX
from secagg.platforms.terms import RECORD, Record, Terms, message_in
from secagg.session.roles import ClientSession, LazyUpdate, Subject, Update
from secagg.session.sealed_state import StateDirectory

COMPONENT: Final = "secagg"
"""The id of the component that filters and executor share."""
SITE: Final = "secagg-site"
"""Id of the operator's component in ``privacy.json``; if present, it replaces a job's components."""
TASK_FILE: Final = "secagg_task"
"""File in a job's folder at a site: the only task whose sums the site joins."""
SITE_FILE: Final = "secagg.json"
"""The operator's policy, in the ``local`` folder of the site: the keys of ``secagg.platforms.client_node``."""


@dataclass(slots=True)
class _Open:
    """One session, from its first message to its last."""

    begun: NodeRound
    session: ClientSession | None = None
    training: Training | None = None
    """Set once a model has arrived."""
    message: bytes = b""
    """Message to answer once training has returned."""
    result: Shareable | None = None

    @property
    def due(self) -> Training:
        if self.training is None:
            raise Misuse("the server requested an update before it sent a model")
        return self.training

    def train(self) -> Trained:
        found, self.result = self.result, None
        if found is None:
            raise Misuse("the update was requested before training returned")
        if (code := found.get_return_code()) != ReturnCode.OK:
            raise Misuse(f"training failed: {code}")
        return _trained_in(found, self.due.sent)


class _LateTraining(LazyUpdate):
    """Update whose model arrives after the site joined the session."""

    def __init__(self, found: _Open) -> None:
        charges = found.begun.charges
        super().__init__(self._made, charge=self._charge_now, together=charges.transaction, zero=self._zeros_now)
        self._found = found

    def _zeros_now(self) -> Payload:
        return self._found.due.zero()

    def _made(self) -> Update:
        return self._found.due.made()

    def _charge_now(self) -> None:
        self._found.due.charge()

    def model_for(self, subject: Subject) -> bytes:
        self._model_digest = self._found.due.model_digest
        return super().model_for(subject)


class SecAggClient(FLComponent):
    """One site in the sessions of a job."""

    def __init__(self, policy: dict[str, Any] | None = None, scheme: str | None = None) -> None:
        """Set the job's policy, by the names of ``ClientNode``; the site's operator can tighten it.

        Args:
            scheme: custom scheme that the server's compression may name; no other is imported.
        """
        super().__init__()
        self.policy, self.scheme = dict(policy or {}), scheme
        self._settings, self._custom = begun_app(self.policy, scheme)
        self._open: _Open | None = None
        self.held: HeldModel | None = None
        """The model that this site holds, with a compressed downlink."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        del fl_ctx
        if event_type == EventType.END_RUN:
            self.leave()

    def leave(self) -> None:
        found, self._open = self._open, None
        if found is not None and found.session is not None:
            found.session.abort()

    def answered(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Answer a message of a stage without updates; to leave, raise the reason, as the next two methods do."""
        return self._answer(self._found(shareable, fl_ctx), message_in(shareable.get(RECORD)))

    def kept(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Remove the protocol's record from an app's task, and keep it until training is done."""
        if RECORD not in shareable:
            raise InvalidParameters(
                "the server requested an update in the clear; make its job with secagg.nvflare.secure",
                reason=Reason.BELOW_FLOOR,
            )
        found = self._found(shareable, fl_ctx)
        message, begun = message_in(shareable.get(RECORD)), found.begun
        # Copy, because scripts may train in place.
        arrays, dxo = _model_in(shareable)
        if is_told(told := shareable.get(RECORD)):
            names = [name for name in begun.terms.joined if name in arrays]
            forms = {name: (arrays[name].shape[1:], arrays[name].dtype) for name in names}
            self.held = followed(told, self.held, forms, begun.update)
            arrays = {**arrays, **parted(self.held.values, forms)}
            dxo.data = like(dxo.data, arrays)
            dxo.update_shareable(shareable)
        sent = {name: np.array(values) for name, values in {**arrays, **controls_in(dxo.meta)}.items()}
        found.training = Training(begun.terms, begun.update, begun.charges, sent, found.train)
        found.message = message
        del shareable[RECORD]
        return shareable

    def summed(self, result: Shareable) -> Shareable:
        """Return the protocol's answer, which replaces the training's result, even if training failed."""
        found = self._open
        if found is None or not found.message:
            raise Misuse("no session waits for this training result", reason=Reason.ALREADY_SPENT)
        (message, found.message), found.result = (found.message, b""), result
        return self._answer(found, message)

    def _answer(self, found: _Open, message: bytes) -> Shareable:
        if found.session is None:
            digest, update = self._update(found)
            subject = found.begun.terms.subject(found.begun.update, digest)
            found.session = found.begun.member(message).join(subject, update)
        return carrying(found.begun.answer(found.session, message))

    def _found(self, shareable: Shareable, fl_ctx: FLContext) -> _Open:
        """Return the session of a message; the first message of a session brings its terms."""
        terms = Terms.parsed(shareable.get(RECORD))
        if terms is None:
            if self._open is None:
                raise Misuse(
                    "there is no session to resume: this client has not begun it, or has left it; a simulation "
                    "needs one thread per client",
                    reason=Reason.ALREADY_SPENT,
                )
            return self._open
        # A new session ends an unfinished earlier one.
        self.leave()
        begun = self._begun(terms, fl_ctx)
        begun.require_open()
        self._open = _Open(begun)
        return self._open

    def _begun(self, terms: Terms, fl_ctx: FLContext) -> NodeRound:
        return self._node(fl_ctx).begun(terms)

    def _update(self, found: _Open) -> tuple[bytes | None, LazyUpdate]:
        """Return the update and, once the model has arrived, its digest."""
        return found.training.model_digest if found.training else None, _LateTraining(found)

    def _node(self, fl_ctx: FLContext) -> Node:
        workspace, config = fl_ctx.get_engine().get_workspace(), _site_config(fl_ctx)
        run = Path(workspace.get_run_dir(fl_ctx.get_job_id()))
        return Node(
            settings=self._settings.raised_by(config),
            config=config,
            client=client_of(fl_ctx.get_identity_name()),
            run=task_of(fl_ctx),
            task_file=run / TASK_FILE,
            states=StateDirectory(run / COMPONENT, coins=SystemCoins()),
            custom=self._custom,
        )


class SecAggFilter(Filter):
    """Filter on both sides of training: of task data before it, and of results after it."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        if fl_ctx.get_engine().get_component(SITE) is not None:
            return shareable
        return filtered(_client(fl_ctx), shareable, fl_ctx)


class SecAggExecutor(Executor):
    """Executor that answers the stages without training."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        del task_name, abort_signal
        if fl_ctx.get_engine().get_component(SITE) is not None:
            return Shareable()
        return stage_answered(_client(fl_ctx), shareable, fl_ctx)


def filtered(client: SecAggClient, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
    """Return a task without the protocol's message, or a result replaced by the protocol's answer."""
    if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
        try:
            return client.kept(shareable, fl_ctx)
        except Exception:
            client.leave()
            raise
    try:
        return client.summed(shareable)
    except Exception as error:  # noqa: BLE001 -- on any error, the result stays here
        return left(client, error)


def stage_answered(client: SecAggClient, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
    """Return the answer to a message of a stage without training."""
    try:
        return client.answered(shareable, fl_ctx)
    except Exception as error:  # noqa: BLE001 -- a server's message may be malformed in any way
        return left(client, error)


def task_of(fl_ctx: FLContext) -> str:
    """Return a job's name at both ends; the server adds a number from its process, because simulations share a name."""
    return f"nvflare job {fl_ctx.get_job_id()}"


def left(client: SecAggClient, error: Exception) -> Shareable:
    """Return the reply with which this client leaves, with a code."""
    client.leave()
    log_leaving(error)
    return refusal(error)


def _client(fl_ctx: FLContext) -> SecAggClient:
    client = fl_ctx.get_engine().get_component(COMPONENT)
    if not isinstance(client, SecAggClient):
        raise Misuse(f"the job has no component {COMPONENT!r}; make it secure with secagg.nvflare.secure")
    return client


def _site_config(fl_ctx: FLContext) -> dict[str, Any]:
    """Return the operator's policy; with a folder of key files, the site's number selects one."""
    config = dict[str, Any]()
    if number := re.search(r"[0-9]+$", fl_ctx.get_identity_name()):
        config[PARTITION] = int(number[0])
    path = Path(fl_ctx.get_engine().get_workspace().get_site_config_dir()) / SITE_FILE
    if path.exists():
        try:
            given: object = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            given = None
        own = cast("dict[str, Any]", given if isinstance(given, dict) else {"": None})
        if unknown := [key for key in own if not key.startswith(PREFIX)]:
            raise InvalidParameters(f"{path} must have policy keys such as {PREFIX}minimum-cohort; got {unknown[0]!r}")
        config |= own
    return config


def _model_in(shareable: Shareable) -> tuple[Arrays, DXO]:
    try:
        dxo = from_shareable(shareable)
    except ValueError as error:
        raise InvalidParameters(f"the task or the result contains no model: {error}") from None
    if dxo.data_kind not in {DataKind.WEIGHTS, DataKind.WEIGHT_DIFF} or not isinstance(dxo.data, dict):
        raise InvalidParameters(f"expected a model; got {dxo.data_kind}")
    return arrays_in(cast("dict[str, Any]", dxo.data)), dxo


def _trained_in(result: Shareable, sent: Arrays) -> Trained:
    """Return a script's result: parameters, metrics, and its number of steps (default: 1)."""
    dxo = from_shareable(result)
    is_evaluation, is_difference = dxo.data_kind == DataKind.METRICS, dxo.data_kind == DataKind.WEIGHT_DIFF
    models = [] if is_evaluation else [_with_controls(_model_in(result)[0], dxo, sent)]
    metrics: object = dxo.data if is_evaluation else dxo.get_meta_prop(MetaKey.INITIAL_METRICS)
    reported: dict[str, object] = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1, **(metrics if isinstance(metrics, dict) else {})}
    steps = dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND)
    if steps is not None:
        reported[MetaKey.NUM_STEPS_CURRENT_ROUND] = steps

    def number(name: str) -> float | int | None:
        value = reported.get(name)
        return float(value) if isinstance(value, int | float | np.integer | np.floating) else None

    return Trained(models, number, sorted(map(str, reported)), is_difference=is_difference)


def _with_controls(arrays: Arrays, dxo: DXO, sent: Arrays) -> Arrays:
    """Return a model with SCAFFOLD's control variates, if they were sent; untrained ones do not change."""
    names = [name for name in sent if name.startswith(CONTROL)]
    if not names:
        return arrays
    changes: object = dxo.get_meta_prop(AlgorithmConstants.SCAFFOLD_CTRL_DIFF)
    if not isinstance(changes, dict):
        raise InvalidParameters(f"the script returned no meta[{AlgorithmConstants.SCAFFOLD_CTRL_DIFF!r}]")
    found = {CONTROL + name: change for name, change in arrays_in(cast("dict[str, Any]", changes)).items()}
    # Use a wide type, so that the difference from the sent values is the exact change.
    is_difference = dxo.data_kind == DataKind.WEIGHT_DIFF
    before = {name: np.zeros_like(sent[name]) if is_difference else sent[name] for name in names}
    changed = {name: before[name] + found[name].astype(np.float64) for name in found if name in before}
    return {**arrays, **before, **found, **changed}


# --- Records of both ends: one in a Shareable, and a model as NumPy has it --------------------------------------------

STAGE_TASK: Final = "secagg"
"""The task of a stage without updates; the stage with updates is the recipe's own task."""
CONTROL: Final = "scaffold_c/"
"""Name prefix of SCAFFOLD's control variates, which are summed together with the tensors."""
_LEFT: Final = "secagg-left"
_NARROW: Final = ("torch.bfloat16", "torch.float16")
"""Types too coarse for a mean; 32 bits represent all of their values."""


def client_of(site: str) -> ClientId:
    """Return the client id of a site without a key; NVFlare has authenticated the site's name."""
    digest = hashlib.sha256(bind(Label.PLATFORM_CLIENT, site.encode())).digest()
    return ClientId(int.from_bytes(digest[:CLIENT_ID_BYTES], "big"))


def carrying(record: Record, content: Shareable | None = None) -> Shareable:
    """Return a record as a Shareable, with a model if there is one."""
    shareable = Shareable() if content is None else content
    shareable[RECORD] = dict(record)
    return shareable


def emptied(content: Shareable, names: Iterable[str]) -> Shareable:
    """Return a task with shapes and types but no values of some tensors."""
    dxo = from_shareable(content)
    dxo.data = {**dxo.data, **{name: dxo.data[name][None][:0] for name in names}}
    return cast("Shareable", dxo.update_shareable(content))


def refusal(error: Exception) -> Shareable:
    """Return the reply of a client that leaves: an error with one of a few codes."""
    reply = make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
    reply.set_header(_LEFT, str(code_of(error)))
    return cast("Shareable", reply)


def failure_in(reply: Shareable) -> Left | None:
    """Return why a client left; None if it answered."""
    code = reply.get_return_code()
    if code == ReturnCode.OK:
        return None
    said = reply.get_header(_LEFT)
    # A site may send anything, such as unhashable values.
    return code_said(said) if said else (Left.TERMS if code == ReturnCode.TASK_DATA_FILTER_ERROR else Left.LEFT)


def arrays_in(model: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return a model's tensors as NumPy arrays; PyTorch tensors become views, and only 16-bit ones are copied."""
    found = dict[str, npt.NDArray[Any]]()
    for name, value in model.items():
        tensor = value.detach().cpu() if hasattr(value, "detach") else value
        if _is_narrow(tensor):
            tensor = tensor.float()
        try:
            array = tensor.numpy() if hasattr(tensor, "numpy") else tensor
        except TypeError as error:
            raise InvalidParameters(f"tensor {name!r} cannot be read ({error}); send it as float32") from None
        if not isinstance(array, np.ndarray | np.generic):
            raise InvalidParameters(f"{name!r} is a {type(value).__name__}, not a tensor; send NumPy arrays or tensors")
        # This is ml_dtypes' bfloat16.
        found[name] = np.asarray(array, dtype=np.float32 if array.dtype.name == "bfloat16" else None)
    return found


def controls_in(meta: Mapping[str, Any] | None) -> dict[str, npt.NDArray[Any]]:
    """Return SCAFFOLD's control variates from a model's metadata, under their names in the sum.

    NVFlare also has variates for integer counters, but never uses them.
    """
    found = arrays_in((meta or {}).get(AlgorithmConstants.SCAFFOLD_CTRL_GLOBAL) or {})
    return {CONTROL + name: array for name, array in found.items() if not is_integer(array)}


def changes_of(means: Arrays, sent: Arrays, names: Iterable[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the mean changes of some tensors, in their original types."""
    found = {name: means[TENSOR + name] for name in names if TENSOR + name in means}
    return {
        name: (np.rint(change) if is_integer(sent[name]) else change).astype(sent[name].dtype)
        for name, change in found.items()
    }


def like(before: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return arrays as tensors of a model's library; 16 bits become 32, as everywhere here."""
    models = {name: tensor.float() if _is_narrow(tensor) else tensor for name, tensor in before.items()}
    return {
        name: models[name].new_tensor(array) if hasattr(models[name], "new_tensor") else array
        for name, array in arrays.items()
    }


def _is_narrow(tensor: object) -> bool:
    return str(getattr(tensor, "dtype", "")) in _NARROW
