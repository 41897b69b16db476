"""FedMix that finds clusters of clients: one posterior over experts per client (000, App. B)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedlib.algorithms.fedmix import FedMix
from fedlib.engine import Phase, State
from fedlib.federation import Federation
from fedlib.models import Params
from fedlib.values import one_of, value


@value
class ClusteredFedMix(FedMix):
    """FedMix whose q is q_pi(z|s), a point of the simplex per client, found in closed form.

    Every mini-batch gives the maximiser of eq. 10, pi_k ~ exp(mean_i log p(y_i, z=k|x_i) / beta)
    (eq. 13), beta being ``entropy_weight``, and pi moves by a share 1 - ``damping`` towards it.
    That is a step of plain SGD at rate 1 - damping on the squared distance between the two, halved;
    so pi is a leaf like others, ``pi`` ``[K]``, which stays with its client. There is no phi.
    """

    damping: float = 0.75
    entropy_weight: float = 1.0

    def check(self) -> None:
        one_of("objective of clusters", self.objective, ("map",))
        if not 0 <= self.damping < 1:
            raise ValueError(f"damping must lie in [0, 1), got {self.damping}")
        if self.entropy_weight <= 0:
            raise ValueError(f"entropy_weight must be > 0, got {self.entropy_weight}")
        if not self.client.is_plain:
            raise ValueError(f"the damped step of pi needs plain SGD, got {self.client}")
        FedMix.check(self)

    def leaves(self, fed: Federation, seed: int) -> Params:
        """Return FedMix's leaves with a uniform pi in place of phi."""
        leaves = FedMix.leaves(self, fed, seed)
        del leaves["phi"]
        return {**leaves, "pi": torch.full((self.experts,), 1 / self.experts, device=fed.device)}

    def is_local(self, name: str) -> bool:
        """Return whether a leaf is pi or otherwise personal."""
        return name == "pi" or FedMix.is_local(self, name)

    def client_context(self, fed: Federation, state: State, rows: Tensor) -> Params:
        """Return nothing: no label counts are needed."""
        return {}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase in which pi moves at the rate 1 - damping."""
        rates = (("pi", 1 - self.damping), *self.client.rates)
        return (Phase(replace(self.client, rates=rates), self.epochs, self.batch_size),)

    def marginal(self, params: Params, ctx: Params) -> Tensor:
        """Return pi = q(z|s), ``[K]``, a probability to the last bit."""
        return params["pi"] / params["pi"].sum()

    def bound(
        self, params: Params, ctx: Params, batch: Params, said: Tensor, gate: Tensor
    ) -> Tensor:
        """Return E_pi[log p(y, z|x, s)] ``[B]`` with the pi that this batch leads to (eq. 10)."""
        joint = said + gate
        weight = batch["weight"].unsqueeze(-1)
        average = (joint * weight).sum(0) / weight.sum().clamp(min=1)
        best = posterior(average.detach(), self.entropy_weight)
        pi = self.damping * params["pi"].detach() + (1 - self.damping) * best
        off = 0.5 * (params["pi"] - best).square().sum()
        # Zero in value: the loss that is reported stays the bound.
        return (joint * pi).sum(-1) - (off - off.detach())

    def observe(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return every client's q(z|s), ``[clients, K]``, rows in the order of their ids."""
        return {"clusters": state.local["pi"][fed.by_id]}


def posterior(average: Tensor, entropy_weight: float = 1.0) -> Tensor:
    """Return the pi that maximises sum_k pi_k average_k + entropy_weight H(pi) (eq. 11), ``[K]``.

    ``average`` is the mean of log p(y_i, z=k|x_i) over a client's examples.
    """
    return (average / entropy_weight).softmax(-1)
