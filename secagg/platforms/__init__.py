"""Common parts of plug-ins for federated-learning platforms: settings, floors, schemes, keys, charges, rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from secagg.errors import InvalidParameters, Reason
from secagg.faces import lazy


def needing(
    platform: str, package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return what ``lazy`` does for a plug-in whose platform may be absent; then an error names the extra.

    Args:
        platform: the platform's own package.
    """
    load, listed, public = lazy(package, names)

    def loaded(name: str) -> object:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != platform:
                raise
            extra = package.rpartition(".")[2]
            sentence = f"{name} needs {platform}; install it with: pip install 'secagg[{extra}]'"
            raise InvalidParameters(sentence, reason=Reason.BACKEND_MISSING) from None

    return loaded, listed, public
