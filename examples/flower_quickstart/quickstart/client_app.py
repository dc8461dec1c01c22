"""The client app: it trains as in any Flower app; only the mod adds secure aggregation."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import load_data, train
from secagg.flower import SecAggMod

app = ClientApp(mods=[SecAggMod()])


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train on this client's own points."""
    partition = int(context.node_config.get("partition-id", 0))
    points, classes = load_data(partition, size=100 + 20 * partition)
    arrays = message.content.array_records["arrays"]
    model = {name: array.numpy().copy() for name, array in arrays.items()}
    loss = train(model, points, classes, float(context.run_config["learning-rate"]))
    metrics = MetricRecord({"num-examples": len(points), "train-loss": loss})
    trained = ArrayRecord({name: Array(array) for name, array in model.items()})
    return Message(RecordDict({"arrays": trained, "metrics": metrics}), reply_to=message)
