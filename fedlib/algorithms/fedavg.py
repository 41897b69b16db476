"""Federated averaging, whose methods are the defaults of every other algorithm."""

# One round, in the order in which ``engine.rounds.play_round`` calls the methods:
#
#   state = init(fed, seed, first)                               # once, before round 0
#   state = choose(fed, state, clients)                          # such as IFCA's choice of clusters
#   for each client of the cohort:                               # all in one vmapped program
#       before = client_params(fed, state, clients)              # the download and its local ones
#       ctx = client_constants(fed, state, clients) | round_constants(fed, state)
#       for phase in phases():                                   # precompute() before a phase
#           after = SGD on loss(net, params, ctx, batch)         # phase.loss names the method
#       kept, message = postprocess(cohort, after, client_update(net, before, after, ctx))
#   down, up = communication_bytes(state, clients, messages)
#   state = aggregate(fed, state, clients, messages)             # weights, server_update

from collections.abc import Iterable
from dataclasses import field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedlib.algorithms.arithmetic import at_label, mean, weighted_sum
from fedlib.engine import Algorithm, Phase, Prediction, State, Update, uses_precomputed
from fedlib.engine.protocol import tensors
from fedlib.federation import NOTHING, Federation, Precomputed
from fedlib.models import Batch, FunctionalModel, Params, is_statistic
from fedlib.optim import Optimizer, server_step, sgd
from fedlib.randomness import torch_seed
from fedlib.values import PositiveInt, value

Bytes = tuple[Tensor, Tensor]  # sent to, and by, every client of a cohort, int64 ``[clients]`` each

# Hooks and class attributes of 0.2. An override under its old name would be ignored silently.
RENAMED = {
    "start": "client_params", "client_context": "client_constants",
    "broadcast": "round_constants",
    "payload": "download", "decide": "choose", "before_round": "choose",
    "client_end": "postprocess",
    "encode": "shared_forward", "client_output": "new_client_output",
    "ensemble": "combine_clients",
    "assign_models": "assign_clusters", "observe": "log_metrics", "leaves": "init_params",
    "federates": "communicates", "trains": "trained", "keeps": "local", "is_local": "local",
    "stays": "local", "copies": "initialised_from", "may_lack": "optional", "mass": "client_weight",
    "plain": "needs_plain_sgd", "reads_examples": "predicts_from_inputs", "moved": "server_update",
    "regularise": "server_penalty",
}  # fmt: skip


@value
class FedAvg(Algorithm):
    """One global model: clients run SGD, the server averages their updates.

        w_s <- w_s - alpha grad (1/B) sum_i -log p_w_s(y_i|x_i)     from w_s = w     (000, eq. 1)
        w   <- w - beta sum_s p(s) (w - w_s)                        over the cohort  (000, eq. 7)

    p(s) = N_s / N_S' is the share of client s in the cohort's training examples. With a server
    optimiser the method is known by other names: ``FedAvg(server=adam(0.01))`` is FedAdam,
    ``FedAvg(server=sgd(1.0, momentum=0.9))`` is FedAvgM and
    ``FedAvg(server=Optimizer("Adagrad", lr=0.01))`` is FedAdagrad.

    Args:
        epochs: local epochs E of each client in a round, at least 1. Default: 1.
        batch_size: examples per mini-batch, B; None uses all examples of a client at once.
            Default: 64.
        client: optimiser of the local models w_s, with learning rate alpha. Default: SGD with
            rate 0.05.
        server: optimiser of the global model w, with learning rate beta, which treats the weighted
            mean of w - w_s as a gradient. Default: SGD with rate 1, which is plain averaging.
        steps: mini-batch steps of each client in a round, whatever its size, instead of
            ``epochs``. Default: None.

    Reference: McMahan et al., Communication-efficient learning of deep networks from decentralized
    data, AISTATS 2017; with a server optimiser Reddi et al., Adaptive federated optimization,
    ICLR 2021. The baseline of all papers.

    >>> p, sent = torch.tensor([0.25, 0.75]), torch.tensor([[4.0], [0.0]])  # w - w_s of two clients
    >>> torch.tensor([3.0]) - weighted_sum(p, sent)  # w, averaged
    tensor([2.])
    """

    communicates: ClassVar[bool] = True
    """Whether clients send anything to the server."""

    needs_plain_sgd: ClassVar[bool] = False
    """Whether the method is only valid if ``client`` is SGD without momentum, of a single rate."""

    trained: ClassVar[tuple[str, ...]] = ("",)
    """Name prefixes of the parameters that clients train; "" matches all parameters."""

    initialised_from: ClassVar[dict[str, str]] = {}
    """Prefixes of parameters that start as copies, mapped to the prefixes of the originals."""

    optional: ClassVar[tuple[str, ...]] = ("base.",)
    """Prefixes that phases and rates may name although no parameter has them (a frozen base)."""

    epochs: int = 1
    batch_size: int | None = 64
    client: Optimizer = Optimizer()
    server: Optimizer = sgd(1.0)
    steps: PositiveInt | None = field(default=None, kw_only=True)

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for old in vars(cls).keys() & RENAMED.keys():
            raise TypeError(f"{cls.__name__}.{old} is called {RENAMED[old]} since 0.3: rename it")

    def check(self) -> None:
        if isinstance(made := self.phases(), Phase):
            raise TypeError(f"{type(self).__name__}.phases must return a tuple, got {made}")
        if any(p.steps for p in made) and self.epochs != type(self).epochs:
            both = f"epochs={self.epochs} or steps={self.steps}"
            raise ValueError(f"{type(self).__name__}: give {both}, not both")
        o = self.client
        if self.needs_plain_sgd and (not o.is_plain or o.rates or not o.lr):
            raise ValueError(f"{type(self).__name__}'s clients take plain SGD steps, got {o}")

    @property
    def predicts_from_inputs(self) -> bool:
        """Whether ``predict`` needs the examples themselves, because each client has a network.

        Default: False; predictions start from what ``shared_forward`` computes for all clients.
        """
        return False

    @property
    def local(self) -> tuple[str, ...]:
        """Name prefixes of the parameters that stay with their client.

        "*running_mean" matches every layer that has a parameter of this name. Default: none.
        """
        return ()

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return freshly initialised parameters of the server and of one client.

        Called by ``init``.

        Args:
            fed: the federation, whose ``net`` is the task's model.
            seed: the experiment's seed; it determines the initial parameters.

        Default: the task's model.
        """
        return to_device(fed.net.init(torch_seed(seed, "model", 0)), fed)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0. Called once, when a run starts.

        Args:
            fed: the federation as the server sees it, without clients that opted out.
            seed: the experiment's seed.
            first: the final state of an earlier stage, or None.

        Raises:
            ValueError: if ``first`` has none of the parameters, has one of another shape or for
                another number of clients, or has only local copies of one that is shared here.

        Default: the parameters of ``init_params``, the local ones equal for all clients. A
        parameter that ``first`` has under the same name starts from there, and a copy
        (``initialised_from``) that it lacks starts from the original.
        """
        params = tensors(self, "init_params", self.init_params(fed, seed))
        if first and not params.keys() & (first.server_params.keys() | first.client_params.keys()):
            name = type(self).__name__
            raise ValueError(f"the first stage has no parameter of {name} to start from")
        first, stays = first or State({}, {}), local_names(self, params)
        of = {n: self._source(n, first) for n in params}
        shared = {n: carry_over(first, of[n], t) for n, t in params.items() if n not in stays}
        local = {
            n: carry_over(first, of[n], t, fed.num_clients) for n, t in params.items() if n in stays
        }
        return State(shared, {n: t.clone() for n, t in local.items()})

    def _source(self, name: str, first: State) -> str:
        """Return the name in a first stage of the parameter that ``name`` starts from."""
        for prefix, of in self.initialised_from.items():
            if (
                name.startswith(prefix)
                and name not in first.server_params
                and name not in first.client_params
            ):
                return of + name.removeprefix(prefix)
        return name

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the parameters with which the clients start a round, ``[clients, ...]`` each.

        Default: the server's parameters and the client's local ones.
        """
        received = {n: t.expand(len(clients), *t.shape) for n, t in state.server_params.items()}
        return {**received, **{n: t[clients] for n, t in state.client_params.items()}}

    def phase(self, **more: Any) -> Phase:
        """Return a phase of local training with the optimiser and schedule of this algorithm.

        Args:
            more: fields of ``Phase`` that replace those of this algorithm. With ``epochs`` the
                phase ignores ``steps`` of the algorithm.
        """
        schedule = ("batch_size",) if "epochs" in more else ("batch_size", "epochs", "steps")
        usual = {n: getattr(self, n) for n in schedule}
        return Phase(**{"optimizer": self.client, "train": self.trained, **usual, **more})

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases of local training, in order. Default: one, over ``trained``."""
        return (self.phase(),)

    @uses_precomputed("precompute")
    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the loss of one client's mini-batch, a scalar.

        Args:
            net: the task's model, which is applied to ``params``.
            params: the client's parameters, trained and frozen ones.
            ctx: ``client_constants`` and ``round_constants`` together, for this client.
            batch: examples ``x``, labels ``y`` and ``weight``, which is 0 for padding.

        Default: the mean cross-entropy.
        """
        logits = net.logits(params, self.features(net, params, batch))
        return -mean(at_label(net.log_probs(logits), batch.y), batch.weight)

    def precompute(
        self, net: FunctionalModel, frozen: Params, ctx: Params, batch: Batch
    ) -> Precomputed:
        """Return what a loss can look up instead of computing it in every step.

        Called before each phase, with the parameters that the phase does not train.

        Default: the features ``h`` in place of the examples, if the base is frozen.
        """
        # With dropout the features differ from step to step.
        if net.noise or not net.has_base(frozen):
            return NOTHING
        return Precomputed({}, {"h": net.features(frozen, batch.x)})

    def features(self, net: FunctionalModel, params: Params, batch: Batch) -> Tensor:
        """Return the features of a mini-batch, ``[B, D]``, precomputed ones where there are any."""
        known = batch.precomputed
        return known["h"] if "h" in known else net.features(params, batch.x, batch)

    def client_update(
        self, net: FunctionalModel, before: Params, after: Params, ctx: Params
    ) -> Update:
        """Return the parameters that one client keeps and the message that it sends.

        Args:
            net: the task's model.
            before: the client's parameters at the start of the round.
            after: its parameters after the last phase.
            ctx: its constants, as in ``loss``.

        Returns:
            Local parameters that replace the trained ones (all others are kept as they were
            trained), and the message.

        Default: nothing, and before - after of every shared parameter that some phase trains.
        """
        local = local_names(self, before)
        moved = {n for phase in self.phases() for n in phase.trained_names(before, local)}
        return {}, {n: before[n] - after[n] for n in before if n in moved - local}

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """Return the weights with which messages are averaged, by parameter.

        Each is float64 ``[clients]``, or ``[clients, K]`` for a parameter ``[K, ...]``.

        Default: p(s) = N_s / N_S' for every shared parameter.
        """
        p = self.share(fed, clients)
        return {n: p for n in state.server_params if n in messages}

    def share(self, fed: Federation, clients: Tensor) -> Tensor:
        """Return p(s) over the cohort, float64 ``[clients]``; 0 if no client has an example."""
        n = fed.sizes[clients]
        return n / n.sum().clamp(min=1)

    def client_weight(self, p: Tensor, messages: Params) -> Params:
        """Return each client's unnormalised weight in every parameter that it sends.

        ``weights`` are these divided by their sum over the cohort, so a server that only adds up
        (``Private``, ``SecureSum``) needs two sums.

        Args:
            p: a client's weight by itself, ``[clients]``.
            messages: the messages, ``[clients, ...]`` each.

        Default: ``p`` for every parameter.
        """
        return dict.fromkeys(messages, p)

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the next state. Called once per round, after all clients.

        Args:
            fed: the federation without clients that opted out.
            state: the state at the start of the round.
            clients: indices of the cohort's clients, int64 ``[clients]``.
            messages: what the clients sent, ``[clients, ...]`` each.

        Default: a step of the server's optimiser along the weighted mean of the messages. A
        parameter without a message does not change, nor does an expert (an index k of a parameter
        with weights ``[clients, K]``) to which every client gives weight 0.
        """
        weights = self.weights(fed, state, clients, messages)
        gradients = {n: weighted_sum(w, messages[n]) for n, w in weights.items()}
        frozen_rows = {n: w.sum(0) == 0 for n, w in weights.items() if w.ndim == 2}
        return self.server_update(fed, state, gradients, frozen_rows)

    def server_update(
        self, fed: Federation, state: State, gradients: Params, frozen_rows: Params | None = None
    ) -> State:
        """Return the state after a step of the server's optimiser. Called by ``aggregate``.

        Args:
            fed: the federation without clients that opted out.
            state: the state at the start of the round.
            gradients: the weighted means of w - w_s, by parameter.
            frozen_rows: bool ``[K]`` by parameter, True for experts that must not change.
        """
        gradients = self.server_penalty(fed, state, gradients)
        # Running statistics are averaged, whatever the optimiser.
        means = {n: state.server_params[n] - g for n, g in gradients.items() if is_statistic(n)}
        moved = {n: g for n, g in gradients.items() if n not in means}
        server = self.server.at(state.round)
        shared, memory = server_step(
            server, state.server_params, moved, state.server_optimizer, frozen_rows
        )
        return replace(state, server_params={**shared, **means}, server_optimizer=memory)

    def server_penalty(self, fed: Federation, state: State, gradients: Params) -> Params:
        """Return the pseudo-gradients with the gradient of the server's regulariser added.

        Default: the pseudo-gradients alone.
        """
        return gradients

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes of downloads and of uploads, int64 ``[clients]`` each.

        Default: the sizes of the server's parameters and of the messages.
        """
        return equal_bytes(clients, state.server_params, {n: t[0] for n, t in messages.items()})

    def shared_forward(self, net: FunctionalModel, shared: Params, x: Tensor) -> Params:
        """Return what is computed once per example for all clients, ``[B, ...]`` each.

        Default: log-probabilities of the global model, or the examples if ``predicts_from_inputs``.
        """
        return {"x": x} if self.predicts_from_inputs else {"logp": net.logp(shared, x)}

    def predict(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Prediction:
        """Return a client's prediction, given the result ``code`` of ``shared_forward``.

        Default: that of the global model, or of the client's own if ``predicts_from_inputs``.
        """
        return Prediction.single(code["logp"] if "logp" in code else net.logp(params, code["x"]))

    def new_client_output(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Params:
        """Return one client's part in predictions for a new client, which are averaged.

        Default: its prediction p(y|x, s), ``[B, classes]``.
        """
        return {"p": self.predict(net, params, ctx, code).logp.exp()}

    def combine_clients(
        self, net: FunctionalModel, shared: Params, code: Params, outputs: Params
    ) -> Tensor:
        """Return log p(y|x) ``[B, classes]`` for a new client, from the averages ``outputs``.

        Default: the logarithm of the mean probabilities, or log-softmax of the mean logits.
        """
        return outputs["logits"].log_softmax(-1) if "logits" in outputs else outputs["p"].log()


def local_names(algorithm: FedAvg, names: Iterable[str]) -> set[str]:
    """Return the names of the parameters that stay with their client (``FedAvg.local``)."""
    names, local = [*names], algorithm.local
    ends = [prefix[1:] for prefix in local if prefix.startswith("*")]
    layers = [n.removesuffix(end) for end in ends for n in names if n.endswith(end)]
    return {n for n in names if n.startswith((*local, *layers))}


def carry_over(first: State, name: str, fresh: Tensor, clients: int | None = None) -> Tensor:
    """Return a parameter's value at the end of a first stage, or ``fresh`` if it has none.

    Args:
        first: the final state of the first stage.
        name: the parameter's name there.
        fresh: its initial value, without an axis of clients.
        clients: number of clients if the parameter is local here; the result is then
            ``[clients, ...]``. Default: None.

    Raises:
        ValueError: if the shapes differ, or if the parameter is local there and shared here.
    """
    own = name in first.client_params and (clients is not None or name not in first.server_params)
    if own and clients is None:
        raise ValueError(f"{name} is local to each client in the first stage, and shared here")
    found = first.client_params[name] if own else first.server_params.get(name, fresh)
    needed = (clients, *fresh.shape) if own else fresh.shape
    if found.shape != needed:
        raise ValueError(f"{name} is {[*found.shape]} in the first stage, and {[*needed]} here")
    return found if own or clients is None else found.expand(clients, *fresh.shape)


def own_params(first: State, fed: Federation) -> Params:
    """Return the local parameters of a first stage.

    Raises:
        ValueError: if the first stage had another number of clients.
    """
    for name, param in first.client_params.items():
        if len(param) != fed.num_clients:
            here = f"{fed.num_clients} clients here"
            there = f"{len(param)} clients in the first stage"
            raise ValueError(f"{name} has values for {there}, and there are {here}")
    return first.client_params


def drop_prefix(params: Params, prefix: str) -> Params:
    """Return the parameters whose names do not begin with ``prefix``."""
    return {n: t for n, t in params.items() if not n.startswith(prefix)}


def nbytes(params: Params) -> int:
    """Return the total size of the tensors in bytes."""
    return sum(t.numel() * t.element_size() for t in params.values())


def equal_bytes(clients: Tensor, down: Params, up: Params) -> Bytes:
    """Return the bytes of every client if all download ``down`` and upload ``up``."""
    return torch.full((len(clients),), nbytes(down)), torch.full((len(clients),), nbytes(up))


def to_device(params: Params, fed: Federation) -> Params:
    """Return the parameters on the federation's device."""
    return {n: t.to(fed.device) for n, t in params.items()}


def broadcast_to_clients(params: Params, fed: Federation) -> Params:
    """Return a copy of the parameters for every client, ``[clients, ...]`` each."""
    return {
        n: t.expand(fed.num_clients, *t.shape).clone() for n, t in to_device(params, fed).items()
    }
