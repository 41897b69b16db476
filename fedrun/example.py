"""``tiny``, the experiment of the examples in docstrings. It takes about a second."""

from fedlib.algorithms import FedAvg
from fedlib.models import MLP
from fedlib.partition import Dirichlet, MatchedHoldout
from fedlib.tasks import Task
from fedrun.experiment import Experiment

_HELD = MatchedHoldout(pool=100, validation=10, test=10)
_TASK = Task("digits", Dirichlet(clients=6, alpha=1.0, size=20), MLP(hidden=(8,)), _HELD)
tiny = Experiment(_TASK, FedAvg(), rounds=2, cohort=2, evaluate_every=5)
"""Two rounds of FedAvg on digits, with two of six clients per round."""
