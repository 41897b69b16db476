"""A network of one's own, and what comes out of a run: a plain module of torch.

python examples/network.py
"""

import torch
from torch import nn

from fedlib import Dirichlet, FedBN, MatchedHoldout, Task, value
from fedlib.models import Architecture
from fedrun import Experiment, run


@value
class Small(Architecture):
    """Convolutions with BatchNorm and dropout; the output layer is added by the library."""

    channels: int = 8

    def base(self, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return what maps images [B, channels, height, width] to features [B, D], and D."""
        height, width, depth = shape
        layers = (
            nn.Conv2d(depth, self.channels, 3, padding=1),
            nn.BatchNorm2d(self.channels),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
        )
        return nn.Sequential(*layers), self.channels * (height // 2) * (width // 2)


clients = Dirichlet(clients=10, alpha=0.5, size=60)
task = Task("digits", clients, Small(), MatchedHoldout(pool=200, validation=20, test=30))
result = run(Experiment(task, FedBN(batch_size=10), rounds=5, cohort=5))
print(f"accuracy {result.curve('test_accuracy')[5]:.3f}")

mine = result.model(client=3)  # with FedBN every client keeps its normalisation
print(type(mine).__name__, "of", sum(p.numel() for p in mine.parameters()), "parameters")
exported = torch.export.export(mine, (torch.zeros(2, 1, 16, 16),))
print("exported with outputs", list(exported.module()(torch.zeros(2, 1, 16, 16)).shape))
