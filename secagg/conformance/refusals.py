"""What must be refused: by an error of its kind, and by no other."""

from __future__ import annotations

from collections.abc import Callable

from secagg.errors import ContractViolation, PeerError


def require_refused(
    what: str,
    call: Callable[..., object],
    *arguments: object,
    by: tuple[type[Exception], ...] = (PeerError,),
    done: str = "taken",
) -> None:
    """Hold a call to being refused by an error of its kind; ``done`` says what else it did.

    Raises:
        ContractViolation: nothing refuses it, or another error does.
    """
    try:
        call(*arguments)
    except by:
        return
    except Exception as error:
        names = " or ".join(kind.__name__ for kind in by)
        raise ContractViolation(f"{what} is refused by {error!r} instead of {names}") from error
    raise ContractViolation(f"{what} is {done}")
