"""Recovers words from a LoRA adapter's gradient: one client's, and sums of two and eight.

Run it as `python examples/adapters/attack.py picture.svg`; it needs torch, takes seconds and downloads nothing. The
model has random weights and a vocabulary of words; the texts are documentation of Python's own modules.

The gradient of A in the first layer is a sum over positions of a vector times the layer's input. In models such as
Llama and Qwen, which add positions after the projections, that input depends only on the word. So a server that has the
gradient tests each word of the vocabulary: if its input is in the span of the gradient's rows, the word was in the
batch. A sum over clients has the words of all of them in its span, until they outnumber the rows: a rank of 64 reveals
what one of 32 hides.
"""

from __future__ import annotations

import html
import re
import sys
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

WORDS, HIDDEN, RANK, LENGTH = 1024, 128, 32, 48
SOURCES = ("argparse", "asyncio", "csv", "decimal", "functools", "heapq", "logging", "random", "statistics", "textwrap")
NEAR = 1e-3
"""Distance from the span, as a share of an input's length, below which a word counts as recovered."""
COLOURS = {True: "#c62828", False: "#9e9e9e"}


class Adapted(nn.Module):
    """A frozen projection and its adapter, some rounds after the start: B is no longer zero."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.frozen = nn.Linear(HIDDEN, HIDDEN, bias=False).requires_grad_(requires_grad=False)
        self.lora_A = nn.Parameter(torch.randn(RANK, HIDDEN) / HIDDEN**0.5)
        self.lora_B = nn.Parameter(0.02 * torch.randn(HIDDEN, RANK))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Project."""
        found: torch.Tensor = self.frozen(features) + features @ self.lora_A.T @ self.lora_B.T
        return found


class Model(nn.Module):
    """One layer of attention over words."""

    def __init__(self) -> None:
        """Draw the weights."""
        super().__init__()
        self.words = nn.Embedding(WORDS, HIDDEN).requires_grad_(requires_grad=False)
        self.projections = nn.ModuleList(Adapted() for _ in range(3))

    def inputs(self, words: torch.Tensor) -> torch.Tensor:
        """Return the projections' input for each word."""
        found: torch.Tensor = self.words(words)
        return found * found.square().mean(-1, keepdim=True).rsqrt()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting each next word."""
        features = self.inputs(words)
        query, key, value = (each(features) for each in self.projections)
        mixed = nn.functional.scaled_dot_product_attention(query[None], key[None], value[None], is_causal=True)[0]
        return nn.functional.cross_entropy((features + mixed)[:-1] @ self.words.weight.T, words[1:])


def texts() -> tuple[list[str], list[list[int]]]:
    """Return the vocabulary, and each source's text by the numbers of its words."""
    documentation = [[import_module(name), *vars(import_module(name)).values()] for name in SOURCES]
    found = [
        " ".join(each.__doc__ for each in parts if isinstance(getattr(each, "__doc__", 0), str))
        for parts in documentation
    ]
    split = [re.findall(r"[A-Za-z]+", text) for text in found]
    common = [word for word, _ in Counter(word for words in split for word in words).most_common(WORDS)]
    numbers = {word: number for number, word in enumerate(common)}
    return common, [[numbers[word] for word in words if word in numbers] for words in split]


@dataclass(frozen=True)
class Seen:
    """Words that a server recovers from a sum."""

    clients: int
    precision: float
    """Share of the recovered words that the first client had."""
    recall: float
    """Share of the first client's words that were recovered."""
    text: list[tuple[str, bool]]
    """The first client's words, and whether each was recovered."""


def attacked(clients: int, trial: int = 0) -> Seen:
    """Take one step of each client, add the gradients, and recover words only from the sum."""
    torch.manual_seed(trial)
    torch.set_num_threads(1)  # The tensors are too small for more.
    model, (vocabulary, sources) = Model(), texts()
    batches = [torch.tensor(sources[(trial + number) % len(sources)][:LENGTH]) for number in range(clients)]
    for batch in batches:
        model(batch).backward()  # Gradients accumulate in place, like in a secure sum.
    gradients = [each.lora_A.grad for each in model.projections if isinstance(each, Adapted)]
    rows = torch.cat([each for each in gradients if each is not None]).double()
    _, lengths, span = torch.linalg.svd(rows, full_matrices=False)
    span = span[lengths > lengths[0] * 1e-5]
    inputs = model.inputs(torch.arange(WORDS)).double()
    away = (inputs - inputs @ span.T @ span).norm(dim=1) / inputs.norm(dim=1)
    named, own = {*torch.nonzero(away < NEAR).ravel().tolist()}, {*batches[0].tolist()}
    text = [(vocabulary[number], number in named) for number in batches[0].tolist()]
    return Seen(clients, len(named & own) / max(1, len(named)), len(named & own) / len(own), text)


def picture(found: list[Seen]) -> str:
    """Draw the first client's text for each sum, with the recovered words in red."""
    lines, across = ["One client's text of a LoRA adapter's batch; red: words that the server recovers"], 10
    for seen in found:
        who = "one client's gradient" if seen.clients == 1 else f"the sum of {seen.clients}"
        lines.append(
            f'<tspan font-weight="bold">From {who}: precision {seen.precision:.2f}, recall {seen.recall:.2f}</tspan>'
        )
        words = [f'<tspan fill="{COLOURS[is_named]}">{html.escape(word)}</tspan>' for word, is_named in seen.text]
        lines += [" ".join(words[at : at + across]) for at in range(0, len(words), across)]
    rows = "".join(f'<text x="12" y="{28 + 26 * row}">{line}</text>' for row, line in enumerate(lines))
    look = f'width="720" height="{40 + 26 * len(lines)}" style="background:#fff" font-family="monospace" font-size="13"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {look}>{rows}</svg>\n'


def main() -> None:
    """Attack sums of 1, 2 and 8 clients; write the picture if a file is given."""
    found = [attacked(clients) for clients in (1, 2, 8)]
    for seen in found:
        shown = " ".join(word if is_named else "_" * len(word) for word, is_named in seen.text)
        print(f"{seen.clients} clients: precision {seen.precision:.2f}, recall {seen.recall:.2f}\n  {shown}")
    for name in sys.argv[1:2]:
        Path(name).write_text(picture(found), encoding="utf-8")


if __name__ == "__main__":
    main()
