"""Who uploaded for which model, from one buffer to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from secagg.errors import PeerMisbehaved, Reason
from secagg.identifiers import ClientId


@dataclass(slots=True)
class Answered:
    """Who uploaded for which model, over all buffers of an epoch: a holder puts an upload on one list ever."""

    _by_version: dict[int, set[ClientId]] = field(default_factory=dict[int, set[ClientId]])

    def require_new(self, version: int, client: ClientId) -> None:
        """Refuse a client's second upload for a model.

        Raises:
            PeerMisbehaved: naming the client.
        """
        if client in self._by_version.get(version, ()):
            raise PeerMisbehaved(
                f"{client} uploaded for model {version} before, to this buffer or another",
                reason=Reason.ALREADY_ANSWERED,
                culprits={client},
            )

    def add(self, version: int, client: ClientId) -> None:
        """Remember an upload."""
        self._by_version.setdefault(version, set()).add(client)

    def forget(self, before: int) -> None:
        """Let go of models whose uploads are too old for any buffer to come."""
        for version in [version for version in self._by_version if version < before]:
            del self._by_version[version]
