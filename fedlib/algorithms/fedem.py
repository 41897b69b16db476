"""FedEM: clients as mixtures of a few distributions, trained by expectation maximisation."""

from functools import partial

import torch
from torch import Tensor

from fedlib.algorithms.drift import RECEIVED, FedProx
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.fedmix import EXPERTS, dropping, in_training
from fedlib.algorithms.interface import *

PI = "pi"


@value
class FedEM(FedAvg):
    """K global components w_k, which each client mixes with its own weights pi_s.

        p(y|x, s)  = sum_k pi_sk p_w_k(y|x)
        q_i(k)     ~ pi_sk p_w_k(y_i|x_i)                  with the downloaded w: the E-step
        pi_sk      <- mean_i q_i(k)                        over all of the client's examples
        w_s,k      <- w_s,k - eta grad mean_i q_i(k) (-log p_w_s,k(y_i|x_i))     from w_k
        w_k        <- w_k - beta sum_s p(s) (w_k - w_s,k)                        at the server

    The E-step is taken once per round. In comparison, FedMix has a gate that depends on x in place
    of pi_s, a q that depends on the label, and averages experts by p(s|z) in place of p(s). A new
    client uses the mean of the clients' pi_s. With K = 1 the method is FedAvg.

    Args:
        experts: number of components K. Default: 3.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Marfoq, Neglia, Bellet, Kameni and Vidal, Federated multi-task learning under a
    mixture of distributions, NeurIPS 2021 (algorithm 1; K is their M). Components are initialised
    differently, pi_s with 1 / K. The loss of a mini-batch is the mean over its examples.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, FedEM(experts=3), rounds=2, cohort=6))
    >>> last.state.client_params["pi"].shape  # pi_s of six clients
    torch.Size([6, 3])
    """

    local = (PI,)
    experts: PositiveInt = 3

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return K differently initialised components, and equal weights pi."""
        models = [fed.net.init(torch_seed(seed, "model", k)) for k in range(self.experts)]
        shares = torch.full((self.experts,), 1 / self.experts)
        return to_device({**add_prefix(stack(models), EXPERTS), PI: shares}, fed)

    round_constants = FedProx.round_constants  # the downloaded components

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the components, each with its own dropout noise."""
        return (self.phase(train=(EXPERTS,), random_inputs=dropping(self.experts)),)

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return log p(y|x) of every component, ``[B, K, classes]``."""
        return map_experts(partial(_expert_output, net), select_prefix(shared, EXPERTS), x)

    def responsibilities(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return q_i(k) under the downloaded components, ``[B, K]``."""
        log_p = self.shared_forward(net, select_prefix(ctx, RECEIVED), batch.x)["logp"]
        return posterior(params[PI], at_label(log_p, batch.y)).detach()

    def precompute(self, net: Net, frozen: Params, ctx: Params, batch: Batch) -> Precomputed:
        """Return q of every example, which is constant during a round."""
        return Precomputed({"q": self.responsibilities(net, frozen, ctx, batch)}, {})

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the mean over one mini-batch of the components' cross-entropies, weighted by q."""
        q = (batch.precomputed or self.precompute(net, params, ctx, batch).extra)["q"]
        code = in_training(partial(_expert_output, net), net, params, batch)
        return -mean((q * at_label(code["logp"], batch.y)).sum(-1), batch.weight)

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Return the client's new pi, the mean of q over its training examples."""
        fed, clients = cohort.fed, cohort.clients
        ask = vmap_clients(one_client(self.responsibilities, fed.net, cohort.common), len(clients))
        total = torch.zeros(len(clients), self.experts, device=fed.device)
        for batch in fed.train.blocks(clients, BLOCK):
            q = ask({PI: cohort.params[PI]}, cohort.context, batch)
            total += (q * batch.weight.unsqueeze(-1)).sum(1)
        n = total.sum(1, keepdim=True)
        pi = torch.where(n > 0, total / torch.where(n > 0, n, 1), cohort.params[PI])
        return {**update[0], PI: pi}, update[1]

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the mixture's prediction, with pi as its gate."""
        logp = code["logp"]
        gate = params[PI].expand(len(logp), -1)
        return Prediction((logp + gate.log().unsqueeze(-1)).logsumexp(-2), gate)

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return the client's pi."""
        return {"gate": params[PI].expand(len(code["logp"]), -1)}

    def combine_clients(self, net: Net, shared: Params, code: Params, outputs: Params) -> Tensor:
        """Return the prediction of the mixture with the mean pi."""
        return (code["logp"] + outputs["gate"].log().unsqueeze(-1)).logsumexp(-2)

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return pi of every client, ``[clients, K]``, in the order of client ids."""
        return {"clusters": state.client_params[PI][fed.by_id]}


def _expert_output(net: Net, w: Params, x: Tensor, batch: Batch | None = None) -> Params:
    return {"logp": net(w, x, batch).log_softmax(-1)}


def posterior(shares: Tensor, log_p: Tensor) -> Tensor:
    """Return q ~ pi_k p_k(y|x), ``[B, K]``, from pi ``[K]`` and log p_k(y|x) ``[B, K]``.

    >>> posterior(torch.tensor([0.25, 0.75]), torch.tensor([[0.6, 0.2]]).log())  # equal products
    tensor([[0.5000, 0.5000]])
    """
    return (shares.log() + log_p).softmax(-1)
