"""``secagg node trust``: accepts a client's state again."""

from __future__ import annotations

import argparse

from secagg.errors import InvalidParameters


def run_trust(options: argparse.Namespace) -> int:
    """Trust a client's state again, and print the consequences."""
    from secagg.platforms.client_node import state_folder
    from secagg.session.store import Store

    folder = options.folder or state_folder()
    if not (folder / "state.db").exists():
        raise InvalidParameters(f"{folder} has no client state; use the folder that contains state.db")
    store = Store(folder, trusts=True)
    with store.transaction() as rows:
        uploads, names = rows.execute("SELECT count(*), count(DISTINCT data) FROM uploads").fetchone()
    store.close()
    print(
        f"the state in {folder} is trusted: {uploads} uploads of {names} data sets. If it is a copy or a backup, "
        "later uploads can be requested again and their privacy cost is not counted: give the data a new name, or "
        "allow fewer attempts"
    )
    return 0
