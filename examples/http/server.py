"""Hold one sum of five clients' updates, and print their mean."""

import asyncio
from pathlib import Path

import numpy as np

from secagg import Session
from secagg.crypto.entropy import SystemCoins
from secagg.session.identities import load_roster
from secagg.transport.listener import hold
from secagg.transport.proof import Certified

roster = load_roster(Path("keys/roster.txt"))
plan = Session.for_model(np.zeros(1000), clients=5, clip=1.0)
subject = plan.subject(task=b"example", round_number=1, model=())
session = plan.open(
    subject,
    plan.entry.helpers(coins=SystemCoins(), authority=roster.authority, standing=roster.standing),
    roster.clients,
)
released = asyncio.run(hold(session, subject, "pairwise", admission=Certified(roster.authority, roster.certificates)))
print("mean:", plan.mean(released)[:3].round(3))
