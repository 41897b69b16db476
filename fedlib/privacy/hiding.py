"""FedMix with noise on its updates of phi, whose rows reveal a client's labels."""

import torch

from fedlib.algorithms import FedMix
from fedlib.engine import Cohort, Update
from fedlib.models import Params
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
