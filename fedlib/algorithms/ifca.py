"""IFCA: clustered federated learning, with the epsilon-greedy exploration of Isaksson et al."""

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fedlib.algorithms.arithmetic import one_hot
from fedlib.algorithms.fedavg import FedAvg
from fedlib.algorithms.interface import *
from fedlib.metrics import true_groups

CLUSTERS = "clusters."
FIT = "settled/fit"  # losses of clients under every cluster; dropped when a round is played
OPEN = "clusters/open"
BEST, STALE, KEPT = "clusters/best", "clusters/stale", "clusters/kept:"
CHOICE = "clients/choice"
DRAWS = 100  # most initialisations that are tried


@value(kind="Explore")
class EpsilonGreedy:
    """The probability that a client trains a random cluster: eps (t + 1)^-decay in round t.

    Args:
        eps: probability in round 0, from 0 to 1. Default: 0.33.
        decay: exponent of the power law, at least 0; 0 keeps the probability constant. Default: 0.

    Reference: Isaksson et al., 2022, with a constant probability.

    >>> EpsilonGreedy(0.5, decay=1.0).at(4)
    0.1
    """

    eps: Share = 0.33
    decay: NonNegativeFloat = 0.0

    def at(self, round: int) -> float:
        """Return the probability of exploration in a round; the first round is 0."""
        return float(self.eps * (round + 1) ** -self.decay)


@value
class ClusterStop:
    """Early stopping of clusters, on the validation loss of the clients that chose them.

    A cluster that stops gets its best weights back; it is no longer downloaded, chosen or trained.

    Args:
        every: rounds between two checks, which precede the training of a round. Default: 10.
        patience: checks without an improvement after which a cluster stops. Default: 10.

    Reference: Isaksson et al., 2022, an option of algorithm 1.
    """

    every: PositiveInt = 10
    patience: PositiveInt = 10

    def initial_state(self, shared: Params, is_open: Tensor) -> Params:
        """Return the server's memory of clusters before the first check.

        Args:
            shared: the server's parameters.
            is_open: which clusters have not stopped, bool ``[J]``.
        """
        kept = {n: t.clone() for n, t in add_prefix(select_prefix(shared, CLUSTERS), KEPT).items()}
        # It exceeds any loss but is finite, as everything in a server's memory must be.
        best = torch.full(is_open.shape, torch.finfo(torch.float32).max, device=is_open.device)
        return {BEST: best, STALE: torch.zeros_like(best), **kept}

    def closed(self, state: State, fit: Tensor, choice: Tensor) -> State:
        """Return the state after a check, in which converged clusters have stopped.

        Args:
            state: the state before the check.
            fit: validation losses of the cohort under every cluster, ``[clients, J]``, NaN for a
                client without examples.
            choice: the cluster of each client, int64 ``[clients]``.
        """
        memory, mine = state.server_memory, fit.gather(1, choice.unsqueeze(1)).squeeze(1)
        share = one_hot(choice, fit.shape[1])[~mine.isnan()]
        count = share.sum(0)
        loss = mine[~mine.isnan()] @ share.to(mine.dtype) / count
        asked = (count > 0) & memory[OPEN]
        better = asked & (loss < memory[BEST])
        stale = torch.where(better, 0, memory[STALE] + (asked & ~better))
        closing = memory[OPEN] & (stale >= self.patience)
        now, kept = select_prefix(state.server_params, CLUSTERS), select_prefix(memory, KEPT)
        kept = {n: _rows(better, t, kept[n]) for n, t in now.items()}
        shared = {n: _rows(closing, kept[n], t) for n, t in now.items()}
        best = torch.where(better, loss, memory[BEST])
        checked = {BEST: best, STALE: stale, OPEN: memory[OPEN] & ~closing}
        memory = {**memory, **checked, **add_prefix(kept, KEPT)}
        shared = {**state.server_params, **add_prefix(shared, CLUSTERS)}
        return replace(state, server_params=shared, server_memory=memory)


@value
class IFCA(FedAvg):
    """J cluster models: a client trains the one that fits its data best, or one at random.

        j_k <- argmin_j sum_i CE(w_j; x_i, y_i)    with probability 1 - eps, else uniform over J
        w_j <- sum_k (n_k / n_j) w_k               over the k with j_k = j             (alg. 1)

    Each client k of the cohort downloads all models, chooses one, trains it and uploads it. A
    model that no client chose does not change. With one cluster the method is FedAvg.

    Args:
        clusters: number of clusters J. Default: 2.
        explore: probability eps of a random choice, by round. Default: 0, the original IFCA.
        inference: examples on which a client's best cluster is found for predictions,
            "validation" or "train" (as in the released code of Isaksson et al.). Default:
            "validation".
        clustered: name prefix of the parameters that each cluster has for itself. All others are
            shared by the clusters and averaged over the cohort; "head." is the weight sharing of
            IFCA. Default: "", all parameters.
        least_share: initial models are drawn again until each is the best for this share of the
            clients, from 0 to 1, as in the released code of IFCA. Default: 0.
        stop: early stopping of clusters, or None. Default: None.
        epochs, batch_size, client, server, steps: as in ``FedAvg``.

    Reference: Isaksson et al., Adaptive expert models for federated learning, 2022; without
    exploration Ghosh et al., An efficient framework for clustered federated learning, NeurIPS
    2020.

    >>> from fedrun import Experiment, simulate, tiny
    >>> *_, last = simulate(Experiment(tiny.task, IFCA(clusters=2), rounds=2, cohort=6))
    >>> last.state.server_memory["clients/choice"].shape  # the cluster of each client
    torch.Size([6])
    """

    clusters: PositiveInt = 2
    explore: EpsilonGreedy = EpsilonGreedy(0.0)
    inference: Annotated[str, ("validation", "train")] = "validation"
    clustered: str = ""
    least_share: Share = 0.0
    stop: ClusterStop | None = None

    def init_params(self, fed: Federation, seed: int, draw: int = 0) -> Params:
        """Return J differently initialised models, and once the parameters not ``clustered``."""
        at = range(draw * self.clusters, (draw + 1) * self.clusters)
        models = [fed.net.init(torch_seed(seed, "model", i)) for i in at]
        mine = [{n: t for n, t in m.items() if n.startswith(self.clustered)} for m in models]
        if not mine[0]:
            have = f"; there are {', '.join(models[0])}"
            raise ValueError(f"no parameter begins with IFCA.clustered = {self.clustered!r}{have}")
        rest = drop_prefix(models[0], self.clustered)
        return to_device({**add_prefix(stack(mine), CLUSTERS), **rest}, fed)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0.

        Raises:
            RuntimeError: if no initialisation that was tried satisfies ``least_share``.
        """
        initial = FedAvg.init(self, fed, seed, first)
        shared = initial.server_params
        shared = self._fair(fed, shared, seed) if self.least_share else shared
        nobody = torch.full((fed.num_clients,), -1, device=fed.device)
        memory = {CHOICE: nobody, OPEN: torch.ones(self.clusters, device=fed.device).bool()}
        if self.stop is not None:
            memory |= self.stop.initial_state(shared, memory[OPEN])
        return State(shared, initial.client_params, server_memory=memory)

    def _fair(self, fed: Federation, shared: Params, seed: int) -> Params:
        """Return the first initial models of which each is best for ``least_share`` of clients."""
        everyone = torch.arange(fed.num_clients, device=fed.device)
        for draw in range(DRAWS):
            fresh = self.init_params(fed, seed, draw)
            drawn = {n: fresh[n] if n.startswith(CLUSTERS) else t for n, t in shared.items()}
            fit = self.fits(fed, drawn, fed.train, everyone)
            best = fit[~fit.isnan().any(1)].argmin(1)  # of those who take part
            if best.bincount(minlength=self.clusters).min() >= self.least_share * len(best):
                return drawn
        least = f"least_share = {self.least_share} of the clients"
        found = f"in {DRAWS} draws no initial models were each the best of {least}"
        raise RuntimeError(f"{found}; reduce least_share or clusters")

    def fits(self, fed: Federation, shared: Params, table: ClientData, clients: Tensor) -> Tensor:
        """Return the mean loss of every cluster's model on each client's examples.

        Args:
            fed: the federation.
            shared: the server's parameters.
            table: the training, validation or test examples.
            clients: indices of the clients.

        Returns:
            Losses ``[clients, J]``, NaN for a client without examples.
        """
        some = table.subset(clients.cpu().numpy())
        total = torch.zeros(len(clients), self.clusters, device=fed.device)
        if len(some.indices):
            found = encode(fed, self, State(shared, {}), some)
            log_p = at_label(found.of(some.indices)["logp"], table.y[some.indices])
            total.index_add_(0, some.owners, -log_p)
        sizes = torch.as_tensor(some.sizes, device=fed.device)
        return total / torch.where(sizes > 0, sizes, torch.nan).unsqueeze(1)

    def choose(self, fed: Federation, state: State, clients: Tensor) -> State:
        """Return the state with the cohort's choices, in which converged clusters have stopped."""
        # The losses found for predictions belong to the models of an earlier round.
        state = replace(state, server_memory=drop_prefix(state.server_memory, FIT))
        available = state.server_memory[OPEN].nonzero()[:, 0]
        if not len(available):
            return state
        fit = self.fits(fed, state.server_params, fed.train, clients)
        choice = available[fit[:, available].argmin(1)]
        for i, row in enumerate(clients.tolist()):
            draw = state.seed, "explore", state.round, int(fed.ids[row])
            if generator(*draw).random() < self.explore.at(state.round):
                choice[i] = available[int(generator(*draw, 1).integers(len(available)))]
        state = state.with_decisions(clients, {CHOICE: choice})
        if self.stop is None or state.round % self.stop.every:
            return state
        held = self.fits(fed, state.server_params, fed.validation, clients)
        return self.stop.closed(state, held, state.server_memory[CHOICE][clients])

    def download(self, state: State, row: int) -> State:
        """Return all models.

        Raises:
            ValueError: with ``stop``, because clients do not send their validation losses.
        """
        if self.stop is not None:
            raise ValueError("over a network, clients do not send the losses that IFCA.stop needs")
        return FedAvg.download(self, state, row)

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the model of each client's cluster, with the parameters that clusters share."""
        return pick(state.server_params, state.server_memory[CHOICE][clients])

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the next state: a cluster is averaged over its clients, the rest over all."""
        own = {n: messages[n].unsqueeze(1) for n in select_prefix(state.server_params, CLUSTERS)}
        updates = {n: t.expand(-1, self.clusters, *t.shape[2:]) for n, t in own.items()}
        messages = {**messages, **add_prefix(updates, CLUSTERS)}
        return FedAvg.aggregate(self, fed, state, clients, messages)

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """Return n_k / n_j of client k in its cluster j ``[clients, J]``, else p(s).

        A client whose cluster has stopped sends nothing, so its weight is 0 everywhere.
        """
        every = FedAvg.weights(self, fed, state, clients, messages)
        picked = one_hot(state.server_memory[CHOICE][clients], self.clusters).double()
        picked = picked * state.server_memory[OPEN] * data_share(fed, clients).unsqueeze(1)
        mine = picked / torch.where(picked.sum(0) > 0, picked.sum(0), 1)
        if not bool(state.server_memory[OPEN].all()):
            rest = picked.sum(1)
            some = bool(rest.any())
            every = {n: rest / rest.sum() for n in every if some or n.startswith(CLUSTERS)}
        return {n: mine if n.startswith(CLUSTERS) else p for n, p in every.items()}

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes of all open clusters down, and of one model and its index up."""
        one = nbytes(select_prefix(state.server_params, CLUSTERS)) // self.clusters
        rest = nbytes(drop_prefix(state.server_params, CLUSTERS))
        choice, is_open = state.server_memory[CHOICE][clients], state.server_memory[OPEN]
        trained = is_open[choice.clamp(min=0)].cpu().to(torch.int64)
        name = choice.element_size() if self.clusters > 1 else 0
        left = int(is_open.sum())
        down = torch.full((len(clients),), one * left + (rest if left else 0))
        return down, trained * (one + rest + name)

    def assign_clusters(
        self, fed: Federation, state: State, *, for_selection: bool = False
    ) -> State:
        """Return the state with every client's loss under every cluster, for predictions.

        Clients without validation examples use their training examples.
        """
        if FIT in state.server_memory:
            return state
        everyone = torch.arange(fed.num_clients, device=fed.device)
        held = fed.validation if self.inference == "validation" else fed.train
        fit = self.fits(fed, state.server_params, held, everyone)
        if fit.isnan().any():
            trained = self.fits(fed, state.server_params, fed.train, everyone)
            fit = torch.where(fit.isnan(), trained, fit)
        return replace(state, server_memory={**state.server_memory, FIT: fit})

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return every client's cluster for predictions, after ``assign_clusters``."""
        return {"cluster": best_fit(state)[clients]} if FIT in state.server_memory else {}

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return log p under every cluster, ``[B, J, classes]``; J = 1 for a model in training."""
        return {"logp": log_probs(net, shared, x)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the prediction of the client's cluster, and that cluster as a one-hot gate."""
        log_p = code["logp"]
        if log_p.shape[-2] == 1:
            return Prediction.single(log_p.squeeze(-2))
        mine = one_hot(ctx["cluster"], self.clusters)
        logp = torch.where(mine.unsqueeze(-1), log_p, 0).sum(-2)
        return Prediction(logp, mine.to(log_p.dtype).expand(log_p.shape[:-1]))

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return the number of open clusters, and after ``assign_clusters`` how clients use them.

        "clusters" is one-hot ``[clients, J]``, "cluster_share" its mean over the clients and
        "cluster_nll" their losses under each cluster. "recovery:NAME", for side information that
        defines groups of clients, such as an angle, is the adjusted Rand index of the clients'
        clusters: 1 for the true groups, about 0 for random ones (Hubert and Arabie, 1985).
        """
        seen = {"open_clusters": state.server_memory[OPEN].sum().double()}
        if FIT not in state.server_memory:
            return seen
        from sklearn.metrics import adjusted_rand_score  # slow to import

        order, best = fed.by_id, best_fit(state)
        mine = one_hot(best[order], self.clusters).double()
        fit = state.server_memory[FIT][order].nan_to_num(torch.inf)
        seen |= {"clusters": mine, "cluster_share": mine.mean(0), "cluster_nll": fit}
        for name in fed.kinds:
            true = true_groups(fed.train.side[name].cpu().numpy(), np.asarray(fed.train.sizes))
            if true is not None:
                index = adjusted_rand_score(true, best.cpu().numpy())
                seen[f"recovery:{name}"] = torch.tensor(index, dtype=torch.float64)
        return seen


def log_probs(net: Net, params: Params, x: Tensor) -> Tensor:
    """Return log p under every cluster, ``[B, J, classes]``; J = 1 for a plain model."""
    own, rest = select_prefix(params, CLUSTERS), drop_prefix(params, CLUSTERS)
    if not own:
        return net.logp(params, x).unsqueeze(-2)
    return map_experts(lambda w, x: {"logp": net.logp({**rest, **w}, x)}, own, x)["logp"]


def num_clusters(params: Params) -> int:
    """Return the number J of clusters in shared parameters; 1 for a plain model."""
    return next((len(t) for n, t in params.items() if n.startswith(CLUSTERS)), 1)


def pick(shared: Params, choice: Tensor) -> Params:
    """Return the model of each client's cluster, as parameters ``[clients, ...]``."""
    own = {n: t[choice] for n, t in select_prefix(shared, CLUSTERS).items()}
    rest = drop_prefix(shared, CLUSTERS)
    return {**own, **{n: t.expand(len(choice), *t.shape) for n, t in rest.items()}}


def used_clusters(first: State) -> Params:
    """Return the shared parameters without clusters that are no client's best."""
    best = best_fit(first).unique()
    return {n: t[best] if n.startswith(CLUSTERS) else t for n, t in first.server_params.items()}


def best_fit(state: State) -> Tensor:
    """Return the cluster with each client's least loss, ``[clients]``, after assign_clusters."""
    return state.server_memory[FIT].nan_to_num(torch.inf).argmin(1)


def _rows(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, *[1] * (yes.ndim - 1)), yes, no)
