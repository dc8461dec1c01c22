"""The client app: it trains as in any Flower app; only the mod adds secure aggregation."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from secagg.flower import SecAggMod
from torchapp.task import load_data, new_model, train

app = ClientApp(mods=[SecAggMod()])


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train on this client's points; return the whole state, with BatchNorm's statistics and counter."""
    points, classes = load_data(int(context.node_config.get("partition-id", 0)), size=200)
    model = new_model()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    loss = train(model, points, classes, float(context.run_config["learning-rate"]))
    metrics = MetricRecord({"num-examples": len(points), "train-loss": loss})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
