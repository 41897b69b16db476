"""An algorithm of released code that differs from the algorithm of its paper."""

from dataclasses import replace

from torch import Tensor

from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.interface import *

AVERAGE = "average."  # in LastClient's server memory: the average of FedAvg


@value
class LastClient(FedAvg):
    """FedAvg whose result is the model of the client that trained last.

    Rounds start from the average w, and the best round is selected by the average. But the model
    that is tested, and that a later stage starts from, is w_s of the last client s of the cohort,
    before averaging.

    Args:
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: released code of Listo Zec et al., Specialized federated learning using a mixture of
    experts, 2021. The paper uses the average, as ``FedAvg`` does.

    >>> from fedrun import Experiment, run, tiny
    >>> algorithm = LastClient(epochs=5, client=sgd(0.2))
    >>> result = run(Experiment(tiny.task, algorithm, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    def assign_clusters(
        self, fed: Federation, state: State, *, for_selection: bool = False
    ) -> State:
        """Return the state, with the average in place of the last model ``for_selection``."""
        return _averaged(state) if for_selection else state

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0, in which both models are equal."""
        initial = FedAvg.init(self, fed, seed, first)
        average = add_prefix(initial.server_params, AVERAGE)
        return replace(initial, server_memory={n: t.clone() for n, t in average.items()})

    def download(self, state: State, row: int) -> State:
        """Return the average without the last client's model."""
        return State({}, {}, server_memory=state.server_memory)

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the average, from which every client starts."""
        return FedAvg.client_params(self, fed, _averaged(state), clients)

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the state with the last client's model, and the average in the memory."""
        before = _averaged(state)
        after = FedAvg.aggregate(self, fed, before, clients, messages)
        last = {n: t - messages[n][-1] for n, t in before.server_params.items()}
        average = add_prefix(after.server_params, AVERAGE)
        return replace(after, server_params=last, server_memory=average)


def _averaged(state: State) -> State:
    """Return the state that FedAvg would have, with the average as the model."""
    average = select_prefix(state.server_memory, AVERAGE)
    return replace(state, server_params=average, server_memory={})
