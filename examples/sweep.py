"""A sweep and its figure: two methods, three seeds, accuracy by round (needs matplotlib).

Runs are stored under their keys in $FEDLIB_RUNS: what is there is not trained again.

python examples/sweep.py FIGURE.png
"""

import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

from fedlib import MLP, Dirichlet, FedAvg, FedMix, MatchedHoldout, Task, interval, sgd
from fedrun import Experiment, sweep

clients = Dirichlet(clients=20, alpha=0.1, size=60)
task = Task("digits", clients, MLP((32,)), MatchedHoldout(pool=200, validation=20, test=30))
# The default optimiser of FedMix's server, Adam at the paper's rate, needs hundreds of rounds.
fedmix = FedMix(experts=2, batch_size=10, server=sgd(1.0))
methods = {"FedAvg": FedAvg(batch_size=10), "FedMix, 2 experts": fedmix}
figure, axes = plt.subplots()
for name, method in methods.items():
    plan = [
        Experiment(task, method, rounds=30, cohort=5, seed=seed, evaluate_every=2)
        for seed in range(3)
    ]
    curves = [result.curve("test_accuracy") for result in sweep(plan)]
    rounds = sorted(curves[0])
    ends = np.array([interval([curve[t] for curve in curves], (0, 1)) for t in rounds])
    axes.plot(rounds, ends[:, 0], label=name)
    axes.fill_between(rounds, ends[:, 1], ends[:, 2], alpha=0.2)
axes.set(xlabel="round", ylabel="clients' mean test accuracy")
axes.legend()
figure.savefig(sys.argv[1] if len(sys.argv) > 1 else "accuracy.png")
