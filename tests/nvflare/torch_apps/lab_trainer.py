"""A site with transformers' Trainer, which ``flare.patch`` makes federated; nothing here refers to sums."""

from __future__ import annotations

import pydoc

import nvflare.client.hf as flare
import torch
from lora_model import made
from transformers import Trainer, TrainingArguments, default_data_collator

TOPICS = ("argparse", "asyncio", "csv", "decimal")
RATE, LENGTH = 1e-3, 64


def main() -> None:
    """Train on a module's documentation, by bytes."""
    flare.init()
    site = flare.get_site_name()
    text = pydoc.render_doc(TOPICS[int(site.rpartition("-")[2]) % len(TOPICS)], renderer=pydoc.plaintext).encode()
    rows = [torch.tensor(list(text[at : at + LENGTH])) for at in range(0, 16 * LENGTH, LENGTH)]
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        output_dir=f"outputs/{site}",
        num_train_epochs=1,
        per_device_train_batch_size=4,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    trainer = Trainer(
        model=made(), args=arguments, train_dataset=data, eval_dataset=data[:4], data_collator=default_data_collator
    )
    flare.patch(trainer)
    while flare.is_running():
        trainer.evaluate()
        trainer.train()


if __name__ == "__main__":
    main()
