"""The command ``secagg node trust``."""

from __future__ import annotations

import argparse

from secagg.errors import InvalidParameters


def run_trust(options: argparse.Namespace) -> int:
    """Trust a client's own state again, and say what that means."""
    from secagg.platforms.client_node import state_folder
    from secagg.session.store import Store

    folder = options.folder or state_folder()
    if not (folder / "state.db").exists():
        raise InvalidParameters(f"{folder} holds no state of a client; name the folder with a state.db")
    store = Store(folder, trusts=True)
    with store.transaction() as rows:
        uploads, names = rows.execute("SELECT count(*), count(DISTINCT data) FROM uploads").fetchone()
    store.close()
    print(
        f"the state in {folder} is trusted: {uploads} uploads of {names} data sets. If this is a copy or a backup, "
        "uploads made after it can be asked for once more, and their privacy cost is not counted: name the data anew, "
        "or count fewer attempts"
    )
    return 0
