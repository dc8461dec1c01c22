"""A LoRA adapter is trained together: the base stays where it is, and only the adapter's tensors are summed.

Run it as `python examples/lora_adapter.py`; it needs `pip install secagg torch`. All clients live in this process; a
platform opens the same `Session` at its server and at every client, and carries the messages between them.
"""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import torch
from torch import nn

import secagg
from secagg import ClientId, SecurityMode
from secagg.crypto.entropy import SystemCoins
from secagg.protocols.pairwise_mask import PairwiseOptions
from secagg.session.roles import ClientSession
from secagg.session.run import Measured, run

CLIENTS, ROUNDS, RANK = 8, 4, 4
Tensors = dict[str, torch.Tensor]
Examples = dict[ClientId, tuple[torch.Tensor, torch.Tensor]]


class Adapted(nn.Module):
    """A linear layer that is frozen, and beside it a low-rank change that is trained."""

    def __init__(self, base: nn.Linear) -> None:
        """Take the layer; the change begins at zero."""
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.lora_down = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.lora_up = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Add the change to what the layer gives."""
        changed: torch.Tensor = self.base(features) + features @ self.lora_down.T @ self.lora_up.T
        return changed


def adapter_of(model: nn.Module) -> Tensors:
    """Copy the tensors that are trained."""
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters() if "lora" in name}


def trained(model: nn.Module, adapter: Tensors, features: torch.Tensor, targets: torch.Tensor) -> Tensors:
    """Take ten steps from an adapter, and return what changed."""
    model.load_state_dict(adapter, strict=False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.2)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {name: tensor - adapter[name] for name, tensor in adapter_of(model).items()}


def one_round(
    session: secagg.Session[Tensors], model: nn.Module, adapter: Tensors, data: Examples, number: int
) -> tuple[Tensors, int]:
    """Sum what all clients but one changed; return the next adapter, and how many clients are in the sum."""
    coins = SystemCoins()
    subject = session.subject(task=b"an adapter", round_number=number, model=adapter)
    with closing(session.simulate(coins=coins, clock=lambda: datetime.now(UTC))) as world:

        def joined() -> Iterator[ClientSession]:
            for client, (features, targets) in data.items():
                if client != ClientId(number + 1):  # It is away in this round.
                    change = trained(model, adapter, features, targets)
                    update = session.update(change, subject=subject, coins=coins)
                    yield world.member(client).join(subject, update)

        released = run(Measured(world.open(subject, frozenset(data))), joined())
    mean = session.mean(released)
    moved = {name: tensor + torch.as_tensor(mean[name], dtype=tensor.dtype) for name, tensor in adapter.items()}
    return moved, released.aggregate.contributors


def main() -> None:
    """Train for some rounds; in each one client is away."""
    torch.manual_seed(1)
    torch.set_num_threads(1)  # Its tensors are too small for more.
    base = nn.Linear(32, 8)
    wanted = base.weight.detach() + 0.5 * torch.randn(8, RANK) @ torch.randn(RANK, 32) / RANK
    features = {ClientId(number): torch.randn(64, 32) for number in range(1, CLIENTS + 1)}
    data = {client: (points, points @ wanted.T + base.bias.detach()) for client, points in features.items()}
    model = Adapted(base)
    adapter, before = adapter_of(model), base.weight.detach().clone()

    # "These tensors only": the patterns choose what is encoded, masked and sent.
    parameters: Tensors = dict(model.named_parameters())
    protocol = PairwiseOptions(mode=SecurityMode.SEMI_HONEST)
    session = secagg.Session.for_model(
        parameters, clients=CLIENTS, clip=0.5, only=["*lora*"], dropped=1, protocol=protocol
    )
    everything = sum(tensor.numel() for tensor in model.parameters())
    print("summed:", ", ".join(session.shapes.paths), f"with {session.shapes.length} of {everything} values")
    losses = list[float]()
    for number in range(ROUNDS):
        adapter, counted = one_round(session, model, adapter, data, number)
        assert counted == CLIENTS - 1
        model.load_state_dict(adapter, strict=False)
        with torch.no_grad():
            points, targets = data[ClientId(1)]
            losses.append(float(nn.functional.mse_loss(model(points), targets)))
        print(f"round {number}: {counted} clients in the sum, loss {losses[-1]:.4f}")
    assert losses[-1] < losses[0] / 2
    assert torch.equal(base.weight, before), "nothing but the adapter moved"


if __name__ == "__main__":
    main()
