"""A site's script: trains each adapter that it receives, while the job runs."""

import pydoc

import nvflare.client as flare
import torch
from adapted import RATE, STEPS, make_model, make_plan

TOPICS = ("argparse", "asyncio", "csv", "decimal", "functools", "heapq", "logging", "random")


def main() -> None:
    """Load, train and return the tensors of each round."""
    flare.init()
    topic = TOPICS[int(flare.get_site_name().rpartition("-")[2]) % len(TOPICS)]
    text = pydoc.render_doc(topic, renderer=pydoc.plaintext)
    batch = torch.tensor(list(text.encode()[:1024])).reshape(-1, 64)
    model, plan = make_model(), make_plan()
    while flare.is_running():
        received = flare.receive()
        plan.load(model, received.params)
        optimizer = torch.optim.AdamW(plan.train_only(model, received.current_round), lr=RATE, weight_decay=0.0)
        for _ in range(STEPS):
            loss = model(input_ids=batch, labels=batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        params = {name: torch.from_numpy(values) for name, values in plan.arrays(model).items()}
        flare.send(flare.FLModel(params=params, metrics={"loss": float(loss)}))


if __name__ == "__main__":
    main()
