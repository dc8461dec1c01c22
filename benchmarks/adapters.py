"""Perplexities and bytes of the methods of ``secagg.adapters``: eight clients with texts of six kinds, three seeds.

The base is a Qwen2 with 0.58 M parameters, trained here on the standard library's sources; clients have Markdown,
JavaScript and Coq from this repository, and licences, Perl and C headers from the machine. The plug-ins' own code
encodes updates with the plan's settings; an ideal sum replaces the protocol's, which is equal. The script needs torch,
transformers and peft, downloads nothing, and takes minutes.

    PYTHONPATH=. python benchmarks/adapters.py build/adapters benchmarks/results/adapters.json
"""

from __future__ import annotations

import copy
import json
import logging
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import version
from itertools import islice, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, cast

import numpy as np
import torch

from secagg.adapters import METHODS, AdapterPlan, Arrays, with_middle
from secagg.contract import ideal_aggregate
from secagg.platforms.client_round import Trained, Training
from secagg.platforms.round_task import Rounds
from secagg.platforms.settings import SecAggSettings

CLIENTS, ROUNDS, STEPS, BATCH, LENGTH = 8, 10, 2, 4, 48
SEEDS: Final = (0, 1, 2)
RATES: Final = {"fedit": 1e-2, "ffa": 3e-2, "alternate": 3e-2, "sb": 1e-2}
"""The better of 0.01 and 0.03 for each method, on seed 0 in the clear."""
RANKS: Final = {"fedit": 8, "ffa": 8, "alternate": 8, "sb": 16}
TARGETS: Final = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WORDS, BASE_STEPS = 1024, 700
HERE: Final = Path(__file__).resolve().parents[1]
PLAIN, SECURE = "in clear, 32 bits", "8 bits"


def texts(most: int = 200_000) -> dict[str, str]:
    """Return a text of each kind."""
    found = {
        "english": sorted(HERE.glob("*/**/*.md")),
        "javascript": sorted(HERE.glob("clients/**/*.js")),
        "coq": sorted(HERE.glob("proofs/**/*.v")),
        "licences": sorted(Path("/usr/share/common-licenses").glob("*")),
        "perl": sorted(Path("/usr/share/perl").rglob("*.pm")),
        "c": sorted(Path("/usr/include").rglob("*.h")),
    }
    return {kind: joined((path for path in paths if ".venv" not in path.parts), most) for kind, paths in found.items()}


def joined(paths: Iterable[Path], most: int) -> str:
    """Return the beginning of many files' text."""
    found, size = list[str](), 0
    for path in paths:
        try:
            found.append(path.read_text(encoding="utf-8"))
        except (UnicodeDecodeError, OSError):
            continue
        if (size := size + len(found[-1])) > most:
            break
    return "\n".join(found)[:most]


def windows(tokens: Any, count: int, seed: int, length: int) -> Any:  # noqa: ANN401 -- of PyTorch
    """Return a batch of excerpts of a text."""
    drawn = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, len(tokens) - length - 1, (count,), generator=drawn)
    begun = cast("list[int]", starts.tolist())  # pyright: ignore[reportUnknownMemberType]
    return torch.stack([tokens[start : start + length] for start in begun])


def base(folder: Path) -> tuple[Any, Any]:
    """Return the base and its tokenizer, which the first call trains."""
    hugging = import_module("transformers")
    if folder.exists():
        return (
            hugging.Qwen2ForCausalLM.from_pretrained(folder),
            hugging.PreTrainedTokenizerFast.from_pretrained(folder),
        )
    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    source = joined(sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")), 3_000_000)
    words = import_module("tokenizers")
    made = words.Tokenizer(words.models.BPE())
    made.pre_tokenizer = words.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = words.trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=words.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([source[:1_000_000], *(text[:60_000] for text in texts().values())], trainer)
    tokenizer = hugging.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>")  # noqa: S106
    tokens = torch.tensor(tokenizer(source, verbose=False)["input_ids"])
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    model = hugging.Qwen2ForCausalLM(hugging.Qwen2Config(vocab_size=WORDS, **sizes, **heads))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=BASE_STEPS)
    for step in range(BASE_STEPS):
        stepped(model, optimizer, windows(tokens, 16, step, 96))
        schedule.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def stepped(model: Any, optimizer: Any, batch: Any) -> None:  # noqa: ANN401 -- of PyTorch
    """Take one step."""
    optimizer.zero_grad()
    model(input_ids=batch, labels=batch).loss.backward()
    optimizer.step()


class Federation:
    """Eight clients, two of which share another's kind of text, and held-out texts."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Divide the texts."""
        self.seed = seed
        self.base, tokenizer = base(folder)
        tokens = [torch.tensor(tokenizer(text, verbose=False)["input_ids"]) for text in texts().values()]
        half = [len(one) * 2 // 5 for one in tokens]
        self.train = [
            tokens[client % len(tokens)][client // len(tokens) * half[client % len(tokens)] :][
                : half[client % len(tokens)]
            ]
            for client in range(CLIENTS)
        ]
        self.test = torch.cat([windows(one[2 * end :], 8, 99, 96) for one, end in zip(tokens, half, strict=True)])

    def model(self, method: str) -> Any:  # noqa: ANN401 -- of PEFT
        """Return the model that every client makes from the seed."""
        peft, rank = import_module("peft"), RANKS[method]
        torch.manual_seed(self.seed)  # pyright: ignore[reportUnknownMemberType]
        config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS, task_type="CAUSAL_LM")
        made = peft.get_peft_model(copy.deepcopy(self.base), config)
        return with_middle(made, self.gradients(made)) if method == "sb" else made

    def gradients(self, made: Any) -> dict[str, Any]:  # noqa: ANN401 -- of PEFT
        """Return the sum of the clients' first gradients of the adapted layers, which is one more secure sum."""
        layers = {name: layer for name, layer in made.named_modules() if "default" in getattr(layer, "lora_A", {})}
        weights = {name: layer.get_base_layer().weight for name, layer in layers.items()}
        for weight in weights.values():
            weight.requires_grad_(True)  # noqa: FBT003 -- of PyTorch
        for client, tokens in enumerate(self.train):
            batch = windows(tokens, BATCH, self.seed * 1000 + client, LENGTH)
            made(input_ids=batch, labels=batch).loss.backward()
        found = {name: weight.grad.clone() for name, weight in weights.items()}
        for weight in weights.values():
            weight.requires_grad_(False)  # noqa: FBT003 -- of PyTorch
            weight.grad = None
        return found

    @torch.no_grad()
    def perplexity(self, model: Any) -> float:  # noqa: ANN401 -- of PEFT
        """Return the perplexity of the held-out texts."""
        return float(model(input_ids=self.test, labels=self.test).loss.exp())

    def run(self, method: str, code: str) -> dict[str, Any]:
        """Train; return the perplexity and one client's bytes in a round."""
        began, model = time.monotonic(), self.model(method)
        plan, rate = AdapterPlan.of(model, method), RATES[method]
        rounds = Rounds(SecAggSettings(**plan.settings([rate] * STEPS, clients=CLIENTS)))
        before, sent, sizes = self.perplexity(model), plan.arrays(model), list[int]()
        for turn in range(ROUNDS):

            def local(client: int, sent: Arrays = sent, turn: int = turn) -> Arrays:
                plan.load(model, sent)
                optimizer = torch.optim.AdamW(plan.train_only(model, turn), lr=rate, weight_decay=0.0)
                for step in range(STEPS):
                    seed = ((self.seed * 100 + turn) * 100 + client) * 10 + step
                    stepped(model, optimizer, windows(self.train[client], BATCH, seed, LENGTH))
                return plan.arrays(model)

            models = [local(client) for client in range(CLIENTS)]
            if code == PLAIN:
                due = plan.names(turn)
                sizes.append(4 * sum(sent[name].size for name in due))
                sent = {name: np.mean([each[name] for each in models], axis=0) for name in sent}
            else:
                sent, size = summed(rounds, sent, models, turn)
                sizes.append(size)
        plan.load(model, sent)
        return {
            "method": method,
            "code": code,
            "seed": self.seed,
            "values": max(sum(sent[name].size for name in plan.names(turn)) for turn in (0, 1)),
            "bytes": sizes[-1],
            "bytes_of_the_first_round": sizes[0],
            "before": round(before, 2),
            "perplexity": round(self.perplexity(model), 2),
            "seconds": round(time.monotonic() - began, 1),
        }


def summed(rounds: Rounds, sent: Arrays, models: list[Arrays], turn: int) -> tuple[Arrays, int]:
    """Return the model after one round of the plug-ins, and the length of an upload."""
    task = rounds.begun(sent, clients=CLIENTS, task="t", number=turn + 1, weighted_by="n", turn=turn)
    payloads = [
        Training(task.terms, task.update, cast("Any", None), task.sent, trained(model)).made().payload
        for model in models
    ]
    means = task.means(ideal_aggregate(task.update.layout, payloads))
    return rounds.model(task, means), task.update.layout.payload_bytes


def trained(model: Arrays) -> Callable[[], Trained]:
    """Return a training function with a fixed result."""
    return lambda: Trained([model], lambda _: 1)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the means of all seeds."""
    for method, code in product(METHODS, (PLAIN, SECURE)):
        found = [row for row in rows if (row["method"], row["code"]) == (method, code)]
        scores = [row["perplexity"] for row in found]
        spread = f"{fmean(scores):.1f} ± {stdev(scores):.1f}"
        yield f"{method:10} {code:18} {found[0]['values']:6} values {found[0]['bytes']:7} bytes  {spread}"


def main(folder: str, to: str) -> None:
    """Run the missing configurations, and write all results."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    lines = Path(folder, "runs.jsonl")
    lines.parent.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    for seed in SEEDS[len(rows) // (2 * len(METHODS)) :]:
        federation = Federation(Path(folder, "base"), seed)
        done = [row for row in rows if row["seed"] == seed]
        for method, code in islice(product(METHODS, (PLAIN, SECURE)), len(done), None):
            rows.append(federation.run(method, code))
            with lines.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(rows[-1], flush=True)
    about: Mapping[str, Any] = {name: version(name) for name in ("torch", "transformers", "peft", "numpy")}
    sizes = {"clients": CLIENTS, "rounds": ROUNDS, "steps": STEPS, "ranks": RANKS, "rates": RATES}
    Path(to).write_text(json.dumps({"versions": about, **sizes, "runs": rows}, indent=1) + "\n", encoding="utf-8")
    print(*table(rows), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
