"""An algorithm of one's own: each client also pulls its weights towards zero.

The loss is that of ONE client on ONE mini-batch; the engine runs it for a whole cohort. What each
method is given is written in fedlib/engine/protocol.py, and docs/ALGORITHMS.md shows how a method
is compared with a plain loop.

python examples/algorithm.py
"""

from fedlib import MLP, Dirichlet, FedAvg, MatchedHoldout, Task, value
from fedrun import Experiment, compare, run


@value
class Decayed(FedAvg):
    """FedAvg whose clients add (strength / 2) |w|^2 to their loss."""

    strength: float = 0.01

    def loss(self, net, params, ctx, batch):
        squares = sum((w**2).sum() for w in params.values())
        return FedAvg.loss(self, net, params, ctx, batch) + self.strength / 2 * squares


clients = Dirichlet(clients=20, alpha=0.1, size=60)
task = Task("digits", clients, MLP((32,)), MatchedHoldout(pool=200, validation=20, test=30))
methods = {"FedAvg": FedAvg(batch_size=10, epochs=5), "decayed": Decayed(batch_size=10, epochs=5)}
runs = {
    name: [run(Experiment(task, method, rounds=10, cohort=5, seed=s)) for s in range(3)]
    for name, method in methods.items()
}
for row in compare(runs):
    print(f"{row.method}: {row.mean:.3f} ({row.low:.3f} to {row.high:.3f}), {row.seeds} seeds")
