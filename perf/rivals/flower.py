"""W3 in Flower's simulation engine: two actors of one CPU each."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from perf.rivals import client
from perf.turn import Turn


def main() -> None:
    """Take turns until the measuring side stops asking; a unit is a round."""
    options, turn = client.options(), Turn()
    clients, server = ClientApp(), ServerApp()

    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        net = client.net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        config = message.content["config"]
        loss = 0.0
        if config["images"]:
            own = int(context.node_config["partition-id"])
            loss = client.train(str(config["dataset"]), own, int(config["images"]))
        metrics = MetricRecord({"loss": loss, "num-examples": 1})
        arrays = ArrayRecord(net.state_dict())
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content=content, reply_to=message)

    def round_over(index: int, _: ArrayRecord) -> None:
        if index:
            turn.over()

    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=options.fraction, fraction_evaluate=0.0)
        strategy.start(
            grid,
            ArrayRecord(client.net().state_dict()),
            num_rounds=1_000_000,
            train_config=ConfigRecord({"dataset": options.dataset, "images": options.images}),
            evaluate_fn=round_over,
        )

    clients.train()(train)
    server.main()(serve)
    backend = {"init_args": {"num_cpus": 2}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, clients, options.clients, backend_config=backend)


if __name__ == "__main__":
    main()
