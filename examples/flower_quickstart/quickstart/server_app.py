"""The server app: it runs an ordinary strategy; only the grid adds secure aggregation."""

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import accuracy, load_data, new_model
from secagg.flower import SecAggGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run federated averaging, and evaluate every model on the server's own points."""
    points, classes = load_data(-1, size=1000)

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"accuracy": accuracy(model, points, classes)})

    FedAvg(fraction_evaluate=0.0, min_train_nodes=5, min_available_nodes=5).start(
        grid=SecAggGrid(grid, context),
        initial_arrays=ArrayRecord({name: Array(array) for name, array in new_model().items()}),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
