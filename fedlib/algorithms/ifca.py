"""Clusters of clients, each with a model: IFCA, and its epsilon-greedy exploration (003)."""

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from fedlib.algorithms.arithmetic import at_label, one_hot
from fedlib.algorithms.fedavg import Bytes, FedAvg, drop_prefix, nbytes, to_device
from fedlib.engine import Prediction, State, encode
from fedlib.federation import ClientData, Federation
from fedlib.metrics import truth
from fedlib.models import FunctionalModel, Params, add_prefix, map_experts, select_prefix, stack
from fedlib.randomness import generator, torch_seed
from fedlib.values import NonNegativeFloat, PositiveInt, Share, value

CLUSTERS = "clusters."
FIT = "settled/fit"  # every client's loss under every model; forgotten when a round ends
OPEN = "clusters/open"
BEST, STALE, KEPT = "clusters/best", "clusters/stale", "clusters/kept:"
CHOICE = "clients/choice"
DRAWS = 100  # initialisations that are tried


@value(kind="Explore")
class EpsilonGreedy:
    """How often a client trains a cluster drawn at random: eps (t + 1)^-decay in round t.

    ``decay`` 0 is a constant rate, 1 is eps / (t + 1), anything between a slower power law.

    Reference: Isaksson et al. (003), whose rate is constant.

    >>> EpsilonGreedy(0.5, decay=1.0).at(4)
    0.1
    """

    eps: Share = 0.33
    decay: NonNegativeFloat = 0.0

    def at(self, round: int) -> float:
        """Return the probability of exploring in a round, counted from 0."""
        return float(self.eps * (round + 1) ** -self.decay)


@value
class ClusterStop:
    """When a cluster has converged: its choosers' validation loss no longer improves.

    Checked in every ``every``-th round, before training; after ``patience`` checks without an
    improvement the cluster gets its best weights back and leaves what is sent and chosen.

    Reference: Isaksson et al. (003), an option of algorithm 1.
    """

    every: PositiveInt = 10
    patience: PositiveInt = 10

    def initial_state(self, shared: Params, is_open: Tensor) -> Params:
        """Return what the server remembers of clusters that have not been checked yet."""
        kept = {n: t.clone() for n, t in add_prefix(select_prefix(shared, CLUSTERS), KEPT).items()}
        # Worse than any loss, yet finite, as all that a server remembers has to be.
        best = torch.full(is_open.shape, torch.finfo(torch.float32).max, device=is_open.device)
        return {BEST: best, STALE: torch.zeros_like(best), **kept}

    def closed(self, state: State, fit: Tensor, choice: Tensor) -> State:
        """Return the state after a check of which clusters still improve.

        ``fit`` ``[clients, J]`` are losses under every cluster, NaN for a client without examples;
        ``choice`` ``[clients]`` is each one's cluster.
        """
        mine = fit.gather(1, choice.unsqueeze(1)).squeeze(1)
        share = one_hot(choice, fit.shape[1])[~mine.isnan()]
        count = share.sum(0)
        loss = mine[~mine.isnan()] @ share.to(mine.dtype) / count
        asked = (count > 0) & state.server_memory[OPEN]
        better = asked & (loss < state.server_memory[BEST])
        stale = torch.where(better, 0, state.server_memory[STALE] + (asked & ~better))
        closing = state.server_memory[OPEN] & (stale >= self.patience)
        now, kept = (
            select_prefix(state.server_params, CLUSTERS),
            select_prefix(state.server_memory, KEPT),
        )
        kept = {n: _rows(better, t, kept[n]) for n, t in now.items()}
        shared = {n: _rows(closing, kept[n], t) for n, t in now.items()}
        best = torch.where(better, loss, state.server_memory[BEST])
        checked = {BEST: best, STALE: stale, OPEN: state.server_memory[OPEN] & ~closing}
        memory = {**state.server_memory, **checked, **add_prefix(kept, KEPT)}
        shared = {**state.server_params, **add_prefix(shared, CLUSTERS)}
        return replace(state, server_params=shared, server_memory=memory)


@value
class IFCA(FedAvg):
    """J cluster models: a client trains the one that fits its data best, or one at random.

    ``clusters`` J, ``explore`` eps. A client k of the cohort receives all models, chooses j, and
    trains it; one that nobody chose stands still. One cluster is FedAvg.

        j_k <- argmin_j sum_i CE(w_j; x_i, y_i)    with probability 1 - eps, else uniform over J
        w_j <- sum_k (n_k / n_j) w_k               over the k with j_k = j        (003, alg. 1)

    Predictions are those of the client's best cluster on its validation examples, or on its
    training examples (``inference`` "train", as released). ``clustered`` is the prefix of the
    leaves that each cluster has for itself, "" all of them; the others are shared by all clusters
    and averaged over all clients ("head.": only the output layer, IFCA's weight sharing).
    ``least_share``: initial models are drawn again until each is the best of that share of the
    clients (IFCA's released code). ``stop`` takes out clusters that converged.

    Reference: Isaksson et al., Adaptive expert models for federated learning (003); without
    exploring Ghosh et al., An efficient framework for clustered federated learning, NeurIPS 2020.
    """

    clusters: PositiveInt = 2
    explore: EpsilonGreedy = EpsilonGreedy(0.0)
    inference: Annotated[str, ("validation", "train")] = "validation"
    clustered: str = ""
    least_share: Share = 0.0
    stop: ClusterStop | None = None

    def init_params(self, fed: Federation, seed: int, draw: int = 0) -> Params:
        """Return J differently initialised models, what is not ``clustered`` once."""
        at = range(draw * self.clusters, (draw + 1) * self.clusters)
        models = [fed.net.init(torch_seed(seed, "model", i)) for i in at]
        mine = [{n: t for n, t in m.items() if n.startswith(self.clustered)} for m in models]
        if not mine[0]:
            raise ValueError(f"no leaf begins with IFCA.clustered = {self.clustered!r}")
        rest = drop_prefix(models[0], self.clustered)
        return to_device({**add_prefix(stack(mine), CLUSTERS), **rest}, fed)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the initial clusters; RuntimeError if no draw gives each its ``least_share``."""
        initial = FedAvg.init(self, fed, seed, first)
        shared = (
            self._fair(fed, initial.server_params, seed)
            if self.least_share
            else initial.server_params
        )
        nobody = torch.full((fed.num_clients,), -1, device=fed.device)
        memory = {CHOICE: nobody, OPEN: torch.ones(self.clusters, device=fed.device).bool()}
        if self.stop is not None:
            memory |= self.stop.initial_state(shared, memory[OPEN])
        return State(shared, initial.client_params, server_memory=memory)

    def _fair(self, fed: Federation, shared: Params, seed: int) -> Params:
        """Return the first drawn models of which each is the best of its ``least_share``."""
        everyone = torch.arange(fed.num_clients, device=fed.device)
        for draw in range(DRAWS):
            fresh = self.init_params(fed, seed, draw)
            drawn = {n: fresh[n] if n.startswith(CLUSTERS) else t for n, t in shared.items()}
            fit = self.fits(fed, drawn, fed.train, everyone)
            best = fit[~fit.isnan().any(1)].argmin(1)  # of those who take part
            if best.bincount(minlength=self.clusters).min() >= self.least_share * len(best):
                return drawn
        least = f"least_share = {self.least_share} of the clients"
        raise RuntimeError(f"in {DRAWS} draws no initial models were each the best of {least}")

    def fits(self, fed: Federation, shared: Params, table: ClientData, clients: Tensor) -> Tensor:
        """Return every cluster's mean loss on some clients' examples, ``[clients, J]``.

        NaN for a client without examples. Every example is looked at once.
        """
        some = table.subset(clients.cpu().numpy())
        total = torch.zeros(len(clients), self.clusters, device=fed.device)
        if len(some.indices):
            found = encode(fed, self, State(shared, {}), some)
            log_p = at_label(found.of(some.indices)["logp"], table.y[some.indices])
            total.index_add_(0, some.owners, -log_p)
        sizes = torch.as_tensor(some.sizes, device=fed.device)
        return total / torch.where(sizes > 0, sizes, torch.nan).unsqueeze(1)

    def _choices(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the cluster that every client of the cohort chooses, ``[clients]``."""
        available = state.server_memory[OPEN].nonzero()[:, 0]
        if not len(available):
            return {}
        fit = self.fits(fed, state.server_params, fed.train, clients)
        choice = available[fit[:, available].argmin(1)]
        for i, row in enumerate(clients.tolist()):
            draw = state.seed, "explore", state.round, int(fed.ids[row])
            if generator(*draw).random() < self.explore.at(state.round):
                choice[i] = available[int(generator(*draw, 1).integers(len(available)))]
        return {CHOICE: choice}

    def choose(self, fed: Federation, state: State, clients: Tensor) -> State:
        """Return the state in which clients have chosen, and what converged is taken out."""
        # What clients settled for was about the models before.
        state = replace(
            state, server_memory={n: t for n, t in state.server_memory.items() if n != FIT}
        )
        state = state.with_decisions(clients, self._choices(fed, state, clients))
        if (
            self.stop is None
            or state.round % self.stop.every
            or not state.server_memory[OPEN].any()
        ):
            return state
        held = self.fits(fed, state.server_params, fed.validation, clients)
        return self.stop.closed(state, held, state.server_memory[CHOICE][clients])

    def download(self, state: State, row: int) -> State:
        """Return all models; ValueError with ``stop``, which clients' validation losses decide."""
        if self.stop is not None:
            raise ValueError("clients are not asked for the losses that would stop a cluster")
        return FedAvg.download(self, state, row)

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the cluster model that each client has chosen, with what all clusters share."""
        return pick(state.server_params, state.server_memory[CHOICE][clients])

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Average every cluster over its choosers, and the rest over the whole cohort."""
        own = {n: messages[n].unsqueeze(1) for n in select_prefix(state.server_params, CLUSTERS)}
        updates = {n: t.expand(-1, self.clusters, *t.shape[2:]) for n, t in own.items()}
        messages = {**messages, **add_prefix(updates, CLUSTERS)}
        return FedAvg.aggregate(self, fed, state, clients, messages)

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """Return n_k / n_j of every client k and its cluster j ``[clients, J]``, else p(s).

        Who has chosen a cluster that closed sends nothing, and so has no part in the rest either.
        """
        every = FedAvg.weights(self, fed, state, clients, messages)
        picked = one_hot(state.server_memory[CHOICE][clients], self.clusters).double()
        picked = picked * state.server_memory[OPEN] * self.share(fed, clients).unsqueeze(1)
        mine = picked / torch.where(picked.sum(0) > 0, picked.sum(0), 1)
        if not bool(state.server_memory[OPEN].all()):
            rest = picked.sum(1)
            some = bool(rest.any())
            every = {n: rest / rest.sum() for n in every if some or n.startswith(CLUSTERS)}
        return {n: mine if n.startswith(CLUSTERS) else p for n, p in every.items()}

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes: open clusters go down; one model, and which it is, goes up."""
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
        """Return the state with every client's loss under every cluster, from which it chooses."""
        if FIT in state.server_memory:
            return state
        everyone = torch.arange(fed.num_clients, device=fed.device)
        held = fed.validation if self.inference == "validation" else fed.train
        fit = self.fits(fed, state.server_params, held, everyone)
        if fit.isnan().any():
            fit = torch.where(
                fit.isnan(), self.fits(fed, state.server_params, fed.train, everyone), fit
            )
        return replace(state, server_memory={**state.server_memory, FIT: fit})

    def client_constants(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return every client's cluster for predictions, once that is settled."""
        return {"cluster": best_fit(state)[clients]} if FIT in state.server_memory else {}

    def shared_forward(self, net: FunctionalModel, shared: Params, x: Tensor) -> Params:
        """Return what every cluster says, log p ``[B, J, classes]``; a model in training is one."""
        return {"logp": log_probs(net, shared, x)}

    def predict(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Prediction:
        """Return the prediction of the client's cluster, and that cluster as a one-hot gate."""
        log_p = code["logp"]
        if log_p.shape[-2] == 1:
            return Prediction.single(log_p.squeeze(-2))
        mine = one_hot(ctx["cluster"], self.clusters)
        logp = torch.where(mine.unsqueeze(-1), log_p, 0).sum(-2)
        return Prediction(logp, mine.to(log_p.dtype).expand(log_p.shape[:-1]))

    def log_metrics(self, fed: Federation, state: State) -> dict[str, Tensor]:
        """Return how many clusters are open, which fits whom, and whether they are the true ones.

        "recovery:" and the name of side information that tells groups of clients apart, an angle
        for one, is the adjusted Rand index of the clusters that clients settle for: 1 for the same
        groups under any names, about 0 for random ones (Hubert and Arabie, 1985).
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
            true = truth(fed.train.side[name].cpu().numpy(), np.asarray(fed.train.sizes))
            if true is not None:
                index = adjusted_rand_score(true, best.cpu().numpy())
                seen[f"recovery:{name}"] = torch.tensor(index, dtype=torch.float64)
        return seen


def log_probs(net: FunctionalModel, params: Params, x: Tensor) -> Tensor:
    """Return every cluster's prediction, log p ``[B, J, classes]``; a plain model is J = 1."""
    own, rest = select_prefix(params, CLUSTERS), drop_prefix(params, CLUSTERS)
    if not own:
        return net.logp(params, x).unsqueeze(-2)
    return map_experts(lambda w, x: {"logp": net.logp({**rest, **w}, x)}, own, x)["logp"]


def count(params: Params) -> int:
    """Return J, the number of clusters whose models some shared leaves are; 1 for a plain model."""
    return next((len(t) for n, t in params.items() if n.startswith(CLUSTERS)), 1)


def pick(shared: Params, choice: Tensor) -> Params:
    """Return the model of each client's cluster, as plain leaves ``[clients, ...]``."""
    own = {n: t[choice] for n, t in select_prefix(shared, CLUSTERS).items()}
    rest = drop_prefix(shared, CLUSTERS)
    return {**own, **{n: t.expand(len(choice), *t.shape) for n, t in rest.items()}}


def used(first: State) -> Params:
    """Return the shared leaves with those clusters only that are some client's best."""
    best = best_fit(first).unique()
    return {n: t[best] if n.startswith(CLUSTERS) else t for n, t in first.server_params.items()}


def best_fit(state: State) -> Tensor:
    """Return the cluster that fits each client best, ``[clients]``, of a settled state."""
    return state.server_memory[FIT].nan_to_num(torch.inf).argmin(1)


def _rows(chosen: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(chosen.view(-1, *[1] * (yes.ndim - 1)), yes, no)
