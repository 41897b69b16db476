"""FedAvg from nothing: twenty clients with few labels each, in memory, nothing is stored.

python examples/first.py
"""

from fedlib import MLP, Dirichlet, FedAvg, MatchedHoldout, Task, sgd
from fedrun import Experiment, simulate

clients = Dirichlet(clients=20, alpha=0.1, size=60)
task = Task("digits", clients, MLP((32,)), MatchedHoldout(pool=200, validation=20, test=30))
method = FedAvg(epochs=2, batch_size=10, client=sgd(0.1))
for moment in simulate(Experiment(task, method, rounds=20, cohort=5)):
    if "test_accuracy" in moment.metrics:  # before round 1, every ten, and after the last
        print(f"round {moment.round}: accuracy {moment.metrics['test_accuracy']:.3f}")
