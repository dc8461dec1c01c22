"""LoRA adapters of PEFT, trained together by a Flower app: random weights, bytes as tokens, and no download."""

import pydoc

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from secagg.adapters import AdapterPlan
from secagg.flower import SecAggGrid, SecAggMod, SecAggSettings

CLIENTS, ROUNDS, STEPS, RATE = 8, 3, 4, 1e-3
torch.set_num_threads(1)  # All clients run on one machine here.
TOPICS = ("argparse", "asyncio", "csv", "decimal", "functools", "heapq", "logging", "random")


def make_model(rank: int = 8) -> PeftModel:
    """Make the same model everywhere; yours is `AutoModelForCausalLM.from_pretrained(...)`."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    base = LlamaForCausalLM(LlamaConfig(vocab_size=256, **sizes)).to(torch.bfloat16)
    config = LoraConfig(r=rank, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return get_peft_model(base, config)


plan = AdapterPlan.of(make_model(), "fedit")
client = ClientApp(mods=[SecAggMod(adapter=plan.fingerprint)])


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train as usual; `plan` loads, trains and returns the tensors of the round."""
    model = make_model()
    plan.load(model, {name: array.numpy() for name, array in message.content["arrays"].items()})
    turn = message.content["config"]["server-round"] - 1
    optimizer = torch.optim.AdamW(plan.train_only(model, turn), lr=RATE, weight_decay=0.0)
    text = pydoc.render_doc(TOPICS[context.node_config["partition-id"] % len(TOPICS)], renderer=pydoc.plaintext)
    batch = torch.tensor(list(text.encode()[:1024])).reshape(-1, 64)
    for _ in range(STEPS):
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    arrays = ArrayRecord({name: Array(values) for name, values in plan.arrays(model).items()})
    metrics = MetricRecord({"num-examples": len(batch), "train-loss": float(loss)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    del context
    run(grid)


def run(grid: Grid) -> Result:
    """Wrap the grid, and start one of Flower's strategies."""
    settings = SecAggSettings(**plan.settings([RATE] * STEPS, clients=CLIENTS, metrics="train-loss"))
    arrays = ArrayRecord({name: Array(values) for name, values in plan.arrays(make_model()).items()})
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    return strategy.start(grid=SecAggGrid(grid, settings=settings), initial_arrays=arrays, num_rounds=ROUNDS)


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    run_simulation(server_app=server, client_app=client, num_supernodes=CLIENTS)
