"""The plug-ins' logger writes where Flower writes."""

from __future__ import annotations

import logging

from secagg.platforms.logs import LOG


def write_where_flower_does() -> None:
    """Use the handlers and the level of Flower's logger, unless the app has set up this one."""
    flower = logging.getLogger("flwr")
    if LOG.handlers or LOG.level != logging.NOTSET:
        return
    LOG.setLevel(flower.level or logging.INFO)
    for handler in flower.handlers:
        LOG.addHandler(handler)
