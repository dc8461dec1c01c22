"""A site's script: trains each model that it receives, while the job runs."""

import nvflare.client as flare
from network import Network, accuracy, load_data, train

EXAMPLES = 256


def main() -> None:
    """Train, and report the accuracy of the received model."""
    flare.init()
    points, classes = load_data(int(flare.get_site_name().rpartition("-")[2]), EXAMPLES)
    model = Network()
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict(received.params)
        before = accuracy(model, points, classes)
        train(model, points, classes)
        flare.send(
            flare.FLModel(
                params=model.state_dict(), metrics={"accuracy": before}, meta={"NUM_STEPS_CURRENT_ROUND": EXAMPLES}
            )
        )


if __name__ == "__main__":
    main()
