"""What the paper's experiments vary: FedMix with noise on its updates of phi, wider networks.

The rows of phi reveal a client's labels.
"""

from dataclasses import replace

import torch

from fedlib.algorithms import FedMix
from fedlib.engine import Cohort, Update
from fedlib.models import Architecture, FunctionalModel, Params
from fedlib.randomness import torch_seed
from fedlib.values import NonNegativeFloat, value


@value
class NoisyFedMix(FedMix):
    """FedMix whose clients add Gaussian noise to their updates of phi, and to nothing else.

    The noise of a client depends on the seed, the round and its id.

    Args:
        noise: standard deviation of the noise, relative to the root mean square of the client's own
            update of phi; at least 0. Default: 1.
        others: as in ``FedMix``.
    """

    noise: NonNegativeFloat = 1.0

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Return FedMix's updates with noise on phi."""
        own, message = update
        if "phi" not in message:
            return update
        phi, seed, round = message["phi"], *(int(cohort.common[n]) for n in ("seed", "round"))
        ids = cohort.fed.ids[cohort.clients.cpu().numpy()].tolist()
        draws = [torch.Generator().manual_seed(torch_seed(seed, "server", round, i)) for i in ids]
        drawn = torch.stack([torch.randn(phi.shape[1:], generator=draw) for draw in draws]).to(phi)
        size = phi.square().mean((1, 2), keepdim=True).sqrt()
        return own, {**message, "phi": phi + self.noise * size * drawn}


def widened(
    model: Architecture, times: float, shape: tuple[int, ...], classes: int
) -> Architecture:
    """Return an architecture with about ``times`` as many parameters as ``model``.

    The channels of a LeNet, or the hidden layers of an MLP, are widened in proportion. For
    ``fedmix_lenet5()`` on CIFAR-10 these are 61 channels for 2 and 113 for 4 (000, sec. 4.1).

    Args:
        model: the architecture.
        times: the factor, at least 1.
        shape: shape of an example.
        classes: number of classes.

    Raises:
        ValueError: if ``times`` is less than 1.
    """
    if times < 1:
        raise ValueError(f"times must be >= 1, got {times}")
    layers = "channels" if hasattr(model, "channels") else "hidden"
    widths = getattr(model, layers)
    wanted = times * FunctionalModel(model, shape, classes).parameters()
    wider = (
        replace(model, **{layers: tuple(round(n * first / widths[0]) for n in widths)})
        for first in range(widths[0], int(widths[0] * times) + 2)
    )
    return min(wider, key=lambda m: abs(FunctionalModel(m, shape, classes).parameters() - wanted))
