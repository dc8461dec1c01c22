"""Add this client's update to the sum."""

import asyncio
import sys
from pathlib import Path

import numpy as np

from secagg import Session
from secagg.crypto.entropy import SystemCoins
from secagg.protocols.pairwise_mask import PairwiseMember
from secagg.session.client_policy import ClientPolicy
from secagg.session.identities import load_identity
from secagg.session.ledger import SpentUpdates
from secagg.transport.client import contribute
from secagg.transport.proof import Prover

me, coins = load_identity(Path(sys.argv[1])), SystemCoins()
plan = Session.for_model(np.zeros(1000), clients=5, clip=1.0)
subject = plan.subject(task=b"example", round_number=1, model=())
keys = {"authority": me.authority, "signing_key": me.signing_key, "certificate": me.certificate}
# A file instead of memory survives restarts.
ledger = SpentUpdates()
member = PairwiseMember(me.client, policy=ClientPolicy.among(5), coins=coins, charge=ledger.charge, **keys)
update = plan.update(np.full(1000, me.client.value / 10), subject=subject, coins=coins)
prover = Prover(me.client, coins, me.signing_key)
url = "http://127.0.0.1:8750"
outcome = asyncio.run(contribute(url, lambda _, rest: member.join(subject, update, rest), prover=prover))
print(outcome.sentence)
