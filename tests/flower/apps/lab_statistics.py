"""Statistics in a simulation: run as ``python lab_statistics.py OUTPUT``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from secagg.flower import SiteStatistics, ask
from secagg.site_statistics import Site
from tests.harness.town_of_sites import declared, functions, people

NODES = 5
app, server = ClientApp(), ServerApp()


def site(context: Context) -> Site:
    """Return a node's people."""
    number = int(context.node_config["partition-id"])
    return Site(declaration=declared(), functions=functions(people(number, 20 * number)))


app.query("statistics")(SiteStatistics(site))


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Ask all nodes."""
    while len(list(grid.get_node_ids())) < NODES:
        time.sleep(0.05)
    results = ask(grid, context, declared())
    Path(sys.argv[1]).write_text(json.dumps(results.statistics), encoding="utf-8")


if __name__ == "__main__":
    run_simulation(server_app=server, client_app=app, num_supernodes=NODES)
