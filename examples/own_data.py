"""Data of one's own: arrays in, a federation by a column, and predictions of new examples.

python examples/own_data.py
"""

import numpy as np
from sklearn.datasets import load_wine

from fedlib import MLP, FedMix, LocalHoldout, NaturalPartition, Task, data
from fedrun import Experiment, evaluate, predict, run

wine = load_wine()
order = np.random.default_rng(0).permutation(len(wine.target))
x, y = wine.data[order].astype(np.float32), wine.target[order]
cellar = np.digitize(x[:, 0], np.quantile(x[:, 0], [0.25, 0.5, 0.75]))  # by alcohol: four cellars
data.add_data("wine", (x[:140], y[:140], {"cellar": cellar[:140]}), class_names=wine.target_names)

task = Task("wine", NaturalPartition("cellar"), MLP((16,)), LocalHoldout(validation=0.1, test=0.2))
method = FedMix(experts=2, epochs=3, batch_size=10)
result = run(Experiment(task, method, rounds=40, cohort=4))

found = evaluate(result, (x[140:], y[140:]), client=2)  # normalised as the training data are
print(f"cellar 2 on new bottles: {found.accuracy:.2f}, balanced {found.balanced_accuracy:.2f}")
print(found.confusion)
together = evaluate(result, (x[140:], y[140:]))  # what a cellar without a gate is told
print(f"all cellars together: {together.accuracy:.2f}")
print("of the first bottle:", predict(result, x[140:141], client=2).round(2))
