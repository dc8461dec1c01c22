"""The server app: it runs an ordinary strategy; only the grid adds secure aggregation."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from secagg.flower import SecAggGrid
from torchapp.task import accuracy, load_data, new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run federated averaging, and evaluate every model on the server's own points."""
    points, classes = load_data(-1, size=1000)

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        model = new_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        batches = int(model.state_dict()["1.num_batches_tracked"])
        return MetricRecord({"accuracy": accuracy(model, points, classes), "batches": batches})

    FedAvg(fraction_evaluate=0.0, min_train_nodes=5, min_available_nodes=5).start(
        grid=SecAggGrid(grid, context),
        initial_arrays=ArrayRecord(new_model().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
