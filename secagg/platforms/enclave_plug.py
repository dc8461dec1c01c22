"""Enclave on platforms: a fresh epoch for each round, behind a socket or simulated, and the judge of its evidence.

The parameters of a round are part of the enclave's configuration, so each round has a separate epoch. The clients'
ledgers, not the enclave, remember earlier uploads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from secagg.errors import InvalidParameters, Reason
from secagg.protocols.enclave import (
    EnclaveHelpers,
    EnclaveMember,
    EnclaveOptions,
    HardwareJudge,
    Judge,
    Judgement,
    RemoteEnclave,
    SealLedger,
    SimulatedEnclave,
    SimulatedEvidence,
    SimulatedJudge,
    Verifier,
    open_session,
    read_collateral,
    read_endorsement,
    read_policy,
)
from secagg.session.certificates import Authority
from secagg.session.roles import ServerSession
from secagg.session.store import Store

from . import LOG
from .client_node import ClientNode, state_folder
from .plugs import NodeSide, ServerSide
from .settings import PREFIX


def opened(side: ServerSide) -> ServerSession:
    """Start an epoch, in the process behind the socket or simulated in this one, and open its buffer."""
    settings: EnclaveOptions = side.chosen
    configuration = settings.plan(side.subject, Authority(side.authority), side.clock(), side.standing)
    connection: RemoteEnclave | SimulatedEnclave
    if path := side.settings.enclave_socket:
        try:
            connection = side.resources.enter_context(RemoteEnclave(path, timeout=side.settings.stage_timeout))
        except OSError as error:
            raise InvalidParameters(
                f"nothing answers at {PREFIX}enclave-socket = {path} ({error}); start `secagg enclave serve` there"
            ) from None
        offer, evidence = connection.start(configuration)
    else:
        LOG.warning(
            "a simulated enclave protects no client from this server; set %senclave-socket to a real one", PREFIX
        )
        connection = SimulatedEnclave(configuration, coins=side.coins)
        offer, evidence = connection.offer, connection.evidence
    folder = Path(side.settings.enclave_collateral) if side.settings.enclave_collateral else None
    helpers = EnclaveHelpers(
        configuration=configuration,
        connection=connection,
        offer=offer,
        evidence=evidence,
        certificates=side.certificates,
        collateral=read_collateral(folder) if folder is not None else None,
        endorsement=read_endorsement(folder) if folder is not None else b"",
    )
    return open_session(side.subject, settings, side.invited, helpers)


@dataclass(frozen=True, slots=True)
class NodeJudge:
    """Judge of evidence by a node's settings, which must allow a simulated enclave."""

    settings: ClientNode
    own: Judge | None

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401 -- judged by type
        # An unreadable file is refused in a simulation too, not only in the deployment.
        hardware = self._hardware() if self.settings.enclave_policy is not None else None
        if not isinstance(evidence, SimulatedEvidence):
            return (hardware or self._hardware()).judge(evidence, binding, now)
        if not self.settings.allow_simulated_enclave:
            raise InvalidParameters(
                "the server's enclave is simulated and protects nobody from the server; run a real one, or set "
                "allow_simulated_enclave in a simulation",
                reason=Reason.BELOW_FLOOR,
            )
        return SimulatedJudge().judge(evidence, binding, now)

    def _hardware(self) -> Judge:
        if self.settings.enclave_policy is not None:
            return load_judge(Path(self.settings.enclave_policy))
        if self.own is None:
            raise InvalidParameters(
                f"this client pins no enclave; set {PREFIX}enclave-policy on the node, or SecAggMod(enclave_judge=...)",
                reason=Reason.BELOW_FLOOR,
            )
        return self.own


def load_judge(path: Path) -> HardwareJudge:
    """Return the judge for the policy file of a node's operator."""
    return HardwareJudge(policy=read_policy(path), verifier=Verifier(), newest=Store.at(state_folder()))


def member(side: NodeSide) -> EnclaveMember:
    """Return a client; its upload is charged when its update is made."""
    identity, judge = side.identity, side.judge
    if judge is not None and not hasattr(judge, "judge"):
        raise InvalidParameters(f"SecAggMod(enclave_judge=...) must be a judge of evidence; got {type(judge).__name__}")
    own: Any = judge
    return EnclaveMember(
        certificate=identity.certificate,
        signing_key=identity.signing_key,
        policy=replace(side.settings.policy, authority=identity.authority.public_key),
        max_norms=side.max_norms,
        judge=NodeJudge(side.settings, own),
        ledger=SealLedger,
        standings=Store.at(state_folder()),
        clock=side.clock,
        coins=side.coins,
    )
