"""FedMix that finds clusters of clients (000, App. B)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedlib.algorithms.fedmix import FedMix
from fedlib.engine import Phase, State
from fedlib.federation import Federation
from fedlib.models import Params
from fedlib.values import one_of, value, within


@value
class ClusteredFedMix(FedMix):
    """FedMix whose q is q_pi(z|s), a point pi_s of the simplex per client, found in closed form.

    ``entropy_weight`` is beta, ``damping`` alpha; the others are FedMix's. There is no phi.

        L_s  = sum_i E_pi_s[ log p(y_i, z|x_i, s) ] + beta H(pi_s)                      (eq. 10)
        pi*  = softmax_k( mean_i log p(y_i, z=k|x_i, s) / beta )        of a mini-batch (eq. 13)
        pi_s <- alpha pi_s + (1 - alpha) pi*

    The last line is a step of plain SGD at rate 1 - alpha on the squared distance between the two,
    halved; so pi_s is a leaf like others, ``pi`` ``[K]``, which stays with its client.

    Reference: Reisser et al., Federated mixture of experts, App. B (000). Deviation: eq. 12 with
    the batch's mean in both terms; the damped pi is the one that the batch's loss uses (A12).

    >>> posterior(torch.tensor([-1.0, -2.0]), 1.0)  # mean log p(y, z|x) of two experts
    tensor([0.7311, 0.2689])
    """

    limits = within(damping="[0, 1)", entropy_weight="> 0")
    damping: float = 0.75
    entropy_weight: float = 1.0

    def check(self) -> None:
        one_of("objective of clusters", self.objective, ("map",))
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
        return (self.phase(optimizer=replace(self.client, rates=rates)),)

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
