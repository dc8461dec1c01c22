"""What a client insists on: set in its code, raised by its node's operator, lowered by nobody.

An operator gives a SuperNode ``--node-config 'secagg-minimum-cohort=10 secagg-identity="/etc/secagg/client-3.key"'``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.protocols.enclave.floors import EnclaveFloors
from secagg.protocols.enclave.verified_enclave import HardwareJudge
from secagg.protocols.pairwise_mask.floors import ClientFloors
from secagg.protocols.two_servers.floors import IndexingFloors

from .keys.enclave_policy import load_judge
from .keys.identities import ClientIdentity, client_file, load_identity
from .keys.server_pair import ServerPair, load_server_pair
from .settings import MODES, PREFIX, PROTOCOLS, SUITES

PARTITION: Final = "partition-id"
_MOST_LENGTH: Final = 1 << 34
_RAISED: Final = ("minimum_cohort", "minimum_threshold", "minimum_modulus_bits", "assumed_corrupted", "privacy_bits")
_LOWERED: Final = ("maximum_population", "maximum_weight")
_NARROWED: Final = ("protocols", "modes", "suites")
_NAMED: Final = ("identity", "enclave_policy", "servers")
"""Files of the node's own, which take the place of those in the app."""
_ALLOWED: Final = ("allow_simulated_enclave", "allow_simulated_second_server")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The floors of one client, by the names of their keys."""

    minimum_cohort: int
    minimum_threshold: int
    modes: tuple[str, ...]
    suites: tuple[str, ...]
    minimum_modulus_bits: int
    maximum_population: int
    assumed_corrupted: int
    privacy_bits: int
    identity: str | None
    protocols: tuple[str, ...] = PROTOCOLS
    maximum_weight: int = 1
    """How much an update may count in an enclave; with two servers every client counts once."""
    allow_simulated_enclave: bool = False
    enclave_policy: str | None = None
    allow_simulated_second_server: bool = False
    servers: str | None = None

    def raised_by(self, node_config: Mapping[str, Any]) -> NodeSettings:
        """Return the stricter of these floors and those of the node.

        Raises:
            InvalidParameters: a ``secagg-`` key of the node's that is none, or of another type.
        """
        changed = dict[str, Any]()
        for key, value in node_config.items():
            if not key.startswith(PREFIX):
                continue
            name = key.removeprefix(PREFIX).replace("-", "_")
            if name in _RAISED and type(value) is int:
                changed[name] = max(value, getattr(self, name))
            elif name in _LOWERED and type(value) is int:
                changed[name] = min(value, getattr(self, name))
            elif name in _NARROWED and type(value) is str:
                wanted = [part.strip() for part in value.split(",")]
                changed[name] = tuple(part for part in getattr(self, name) if part in wanted)
            elif name in _NAMED and type(value) is str:
                changed[name] = value
            elif name in _ALLOWED and type(value) is bool:
                changed[name] = value and getattr(self, name)
            else:
                names = (*_RAISED, *_LOWERED, *_NARROWED, *_ALLOWED, *_NAMED)
                known = ", ".join(PREFIX + part.replace("_", "-") for part in names)
                raise InvalidParameters(
                    f"the node's {key} is no floor, or {value!r} is of another type than it has; there are {known}"
                )
        return replace(self, **changed)

    def floors(self) -> ClientFloors:
        """Return the floors that every offer is compared with.

        Raises:
            InvalidParameters: they protect nobody, or name a mode or a suite that there is not.
        """
        for name, known in (("protocols", PROTOCOLS), ("modes", MODES), ("suites", SUITES)):
            if unknown := [part for part in getattr(self, name) if part not in known]:
                raise InvalidParameters(f"{PREFIX}{name} are {', '.join(known)}; got {unknown[0]!r}")
        return ClientFloors(
            suites=frozenset(SUITES[suite] for suite in self.suites),
            modes=frozenset(MODES[mode] for mode in self.modes),
            minimum_cohort=self.minimum_cohort,
            minimum_threshold=self.minimum_threshold,
            minimum_modulus_bits=self.minimum_modulus_bits,
            maximum_length=_MOST_LENGTH,
            maximum_population=self.maximum_population,
            assumed_corrupted=self.assumed_corrupted,
            privacy_bits=self.privacy_bits,
        )

    def enclave_floors(self, authority: bytes) -> EnclaveFloors:
        """Return the floors that an enclave's configuration is compared with."""
        return EnclaveFloors(
            suites=frozenset(SUITES[suite] for suite in self.suites),
            minimum_cohort=self.minimum_cohort,
            maximum_length=_MOST_LENGTH,
            authority=authority,
            maximum_weight=self.maximum_weight,
        )

    def indexing_floors(self, authority: bytes, server_keys: tuple[bytes, bytes]) -> IndexingFloors:
        """Return the floors that the configuration of two servers is compared with: checked clients, weights of 1."""
        return IndexingFloors(
            suites=frozenset(SUITES[suite] for suite in self.suites),
            authority=authority,
            server_keys=server_keys,
            minimum_cohort=self.minimum_cohort,
            maximum_length=_MOST_LENGTH,
        )

    def load_servers(self) -> ServerPair:
        """Read which two servers this client believes to be in two hands.

        Raises:
            InvalidParameters: it was told of none, or the file is not readable.
        """
        if self.servers is None:
            raise InvalidParameters(
                f"this client knows no two servers; give the node {PREFIX}servers, or SecAggMod(servers=...)",
                reason=Reason.BELOW_FLOOR,
            )
        return load_server_pair(Path(self.servers))

    def require_protocol(self, protocol: str) -> None:
        """Refuse a protocol that this client does not take part in.

        Raises:
            InvalidParameters: it does not.
        """
        if protocol not in self.protocols:
            raise InvalidParameters(
                f"the server asks for {protocol}, and this client accepts {', '.join(self.protocols) or 'no protocol'}",
                reason=Reason.BELOW_FLOOR,
            )

    def load_enclave_judge(self) -> HardwareJudge:
        """Return the judge of this client's own policy.

        Raises:
            InvalidParameters: there is no policy, or it is not readable.
        """
        if self.enclave_policy is None:
            raise InvalidParameters(
                f"this client pins no enclave; give the node {PREFIX}enclave-policy, or SecAggMod(enclave_judge=...)",
                reason=Reason.BELOW_FLOOR,
            )
        return load_judge(Path(self.enclave_policy))

    def load_identity(self, node_config: Mapping[str, Any]) -> ClientIdentity:
        """Read this client's key file.

        Raises:
            InvalidParameters: there is none, or it is not readable.
        """
        if self.identity is None:
            raise InvalidParameters(
                "active mode, the enclave and two servers need this client's key; give the node "
                f"{PREFIX}identity, or SecAggMod(identity=...)"
            )
        path = Path(self.identity)
        if path.is_dir():
            path /= client_file(ClientId(int(node_config.get(PARTITION, 0))))
        return load_identity(path)
