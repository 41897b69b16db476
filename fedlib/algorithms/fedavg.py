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
#   down, up = communication_bytes(state, clients, messages)     # the sizes of what is sent
#   state = aggregate(fed, state, clients, messages)             # weights, server_update
#
# ``engine.protocol.Algorithm`` documents the arguments, and who calls each method.

from collections.abc import Iterable
from dataclasses import field, replace
from typing import Any, ClassVar, final

from torch import Tensor

from fedlib.algorithms.interface import *
from fedlib.engine.protocol import tensors
from fedlib.optim import server_step
from fedlib.values import refuse_misspelt_hooks, refuse_old_hooks

# Methods and class attributes that earlier versions called or read, by what to override instead.
_INPUTS = 'shared_forward, which may return {"x": x}'
METHODS = {
    "start": "client_params", "client_context": "client_constants",
    "broadcast": "round_constants", "payload": "download", "handed": "download",
    "decide": "choose", "before_round": "choose", "client_end": "postprocess",
    "encode": "shared_forward", "client_output": "new_client_output",
    "log_density": "new_client_output, with an entry LOG_DENSITY",
    "ensemble": "combine_clients", "assign_models": "assign_clusters", "observe": "log_metrics",
    "leaves": "init_params", "known": "precompute", "mass": "client_weight",
    "moved": "server_update", "regularise": "server_update", "server_penalty": "server_update",
    "share": "weights", "features": "loss", "phase": "phases",
}  # fmt: skip
_COPY = "init_params, which may return one tensor under two names"
_PHASE = "phases, with self.phase(train=(...))"
ATTRIBUTES = {
    "federates": "communicates", "keeps": "local", "is_local": "local", "stays": "local",
    "trains": _PHASE, "trained": _PHASE, "may_lack": "phases", "optional": "phases",
    "copies": _COPY, "initialised_from": _COPY,
    "plain": "check", "needs_plain_sgd": "check",
    "reads_examples": _INPUTS, "predicts_from_inputs": _INPUTS,
}  # fmt: skip


@value
class FedAvg(Algorithm):
    """One global model: clients run SGD, the server averages their updates.

        w_s <- w_s - alpha grad (1/B) sum_i -log p_w_s(y_i|x_i)     from w_s = w
        w   <- w - beta sum_s p(s) (w - w_s)                        over the cohort

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

    >>> from fedrun import Experiment, run, tiny
    >>> algorithm = FedAvg(epochs=5, client=sgd(0.2))
    >>> result = run(Experiment(tiny.task, algorithm, rounds=20, cohort=6), progress=False)
    >>> result.final("test_accuracy") > 0.6  # the majority class has 0.27
    True
    """

    communicates: ClassVar[bool] = True
    _needs_plain_sgd: ClassVar[bool] = False  # the method assumes SGD of one rate, no momentum
    # Prefixes that phases and rates may name although no parameter has them (a frozen base).
    _optional: ClassVar[tuple[str, ...]] = ("base.",)

    epochs: PositiveInt = 1
    batch_size: PositiveInt | None = 64
    client: Optimizer = Optimizer()
    server: Optimizer = sgd(1.0)
    steps: PositiveInt | None = field(default=None, kw_only=True)

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        refuse_old_hooks(cls, METHODS, ATTRIBUTES)
        refuse_misspelt_hooks(cls, (n for n in vars(Algorithm) if not n.startswith("_")))

    def check(self) -> None:
        if isinstance(made := self.phases(), Phase):
            raise TypeError(f"{type(self).__name__}.phases must return a tuple, got {made}")
        if any(p.steps for p in made) and self.epochs != type(self).epochs:
            both = f"epochs={self.epochs} or steps={self.steps}"
            raise ValueError(f"{type(self).__name__}: give {both}, not both")
        o = self.client
        if self._needs_plain_sgd and (not o.is_plain or o.rates or not o.lr):
            raise ValueError(f"{type(self).__name__}'s clients take plain SGD steps, got {o}")

    @property
    def local(self) -> tuple[str, ...]:
        """Name prefixes of the parameters that stay with their client. Default: none."""
        return ()

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return freshly initialised parameters of the server and of one client, by name.

        Default: those of the task's model.
        """
        return to_device(fed.net.init(torch_seed(seed, "model", 0)), fed)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0.

        Raises:
            ValueError: if ``first`` has none of the parameters, has one of another shape or for
                another number of clients, or has only local copies of one that is shared here.

        Default: the parameters of ``init_params``, the local ones equal for all clients. A
        parameter that ``first`` has under the same name starts from there, and one that it lacks
        from the same tensor under another name, if ``init_params`` returned one.
        """
        params = tensors(self, "init_params", self.init_params(fed, seed))
        if first and not params.keys() & (first.server_params.keys() | first.client_params.keys()):
            name = type(self).__name__
            raise ValueError(f"the first stage has no parameter of {name} to start from")
        first, stays = first or State({}, {}), local_names(self, params)
        of, shared, local = sources(params, first), {}, {}
        for n, fresh in params.items():
            if n in stays:
                local[n] = carry_over(first, of[n], fresh, fed.num_clients).clone()
            else:
                shared[n] = carry_over(first, of[n], fresh)
        return State(shared, local)

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the parameters with which the clients start a round, ``[clients, ...]`` each.

        Default: the server's parameters and the client's local ones.
        """
        received = {n: t.expand(len(clients), *t.shape) for n, t in state.server_params.items()}
        return {**received, **{n: t[clients] for n, t in state.client_params.items()}}

    @final
    def phase(self, **more: Any) -> Phase:
        """Return a phase of local training with the optimiser and schedule of this algorithm.

        ``phases`` calls this method, which cannot be overridden.

        Args:
            more: fields of ``Phase`` that replace those of this algorithm. With ``epochs`` the
                phase ignores ``steps`` of the algorithm.
        """
        schedule = ("batch_size",) if "epochs" in more else ("batch_size", "epochs", "steps")
        usual = {n: getattr(self, n) for n in schedule}
        return Phase(**{"optimizer": self.client, **usual, **more})

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases of local training, in order. Default: one, over all parameters."""
        return (self.phase(),)

    @uses_precomputed("precompute")
    def loss(self, net: Net, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the loss of one client's mini-batch, a scalar.

        Default: the mean cross-entropy.
        """
        logits = net.logits(params, features_of(net, params, batch))
        return -mean(at_label(net.log_probs(logits), batch.y), batch.weight)

    def precompute(self, net: Net, frozen: Params, ctx: Params, batch: Batch) -> Precomputed:
        """Return what a loss can look up instead of computing it in every step.

        Default: the features ``h`` in place of the examples, if the base is frozen.
        """
        # With dropout the features differ from step to step.
        if net.noise or not net.has_base(frozen):
            return NOTHING
        return Precomputed({}, {"h": net.features(frozen, batch.x)})

    def client_update(self, net: Net, before: Params, after: Params, ctx: Params) -> Update:
        """Return the parameters that one client keeps and the message that it sends.

        Default: nothing, and before - after of every shared parameter that some phase trains.
        """
        local = local_names(self, before)
        moved = {n for phase in self.phases() for n in phase.trained_names(before, local)}
        return {}, {n: before[n] - after[n] for n in before if n in moved - local}

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """Return the weights with which messages are averaged, by parameter.

        Default: ``client_weight`` of p(s) = N_s / N_S'. Weights ``[clients, K]`` are divided by
        their sums over the cohort; an expert without any weight gets 0 from every client.
        """
        u = self.client_weight(data_share(fed, clients), messages)
        sent = {n: u[n] for n in state.server_params if n in u}
        return {n: normalised(t) if t.ndim == 2 else t for n, t in sent.items()}

    def client_weight(self, p: Tensor, messages: Params) -> Params:
        """Return each client's unnormalised weight in every parameter that it sends.

        Default: ``p`` for every parameter.
        """
        return dict.fromkeys(messages, p)

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Return the next state.

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
        """Return the state after a step of the server along the pseudo-gradients.

        Default: a step of the optimiser ``server``; running statistics are averaged.
        """
        # Running statistics are averaged, whatever the optimiser.
        means = {n: state.server_params[n] - g for n, g in gradients.items() if is_statistic(n)}
        moved = {n: g for n, g in gradients.items() if n not in means}
        before = state.server_params, moved, state.server_optimizer, frozen_rows
        shared, memory = server_step(self.server.at(state.round), *before)
        return replace(state, server_params={**shared, **means}, server_optimizer=memory)

    def shared_forward(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return what is computed once per example for all clients, ``[B, ...]`` each.

        Default: log-probabilities of the global model, or the examples as ``x`` if some of the
        model's parameters are local.
        """
        return {"logp": net.logp(shared, x)} if net.has_all(shared) else {"x": x}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return a client's prediction, given the result ``code`` of ``shared_forward``.

        Default: that of the global model, or of the client's own if ``code`` has the examples.
        """
        return Prediction.single(code["logp"] if "logp" in code else net.logp(params, code["x"]))

    def new_client_output(self, net: Net, params: Params, ctx: Params, code: Params) -> Params:
        """Return one client's part in predictions for a new client, which are averaged.

        Default: its prediction p(y|x, s), ``[B, classes]``.
        """
        return {"p": self.predict(net, params, ctx, code).logp.exp()}

    def combine_clients(self, net: Net, shared: Params, code: Params, outputs: Params) -> Tensor:
        """Return log p(y|x) ``[B, classes]`` for a new client, from the averages ``outputs``.

        Default: the logarithm of the mean probabilities, or log-softmax of the mean logits.
        """
        return outputs["logits"].log_softmax(-1) if "logits" in outputs else outputs["p"].log()


def features_of(net: Net, params: Params, batch: Batch) -> Tensor:
    """Return the features of a mini-batch, ``[B, D]``, precomputed ones where there are any."""
    known = batch.precomputed
    return known["h"] if "h" in known else net.features(params, batch.x, batch)


def sources(params: Params, first: State) -> dict[str, str]:
    """Return the name in a first stage of the parameter from which each parameter starts.

    It is the parameter's own name, unless the first stage lacks it and has another one that is the
    same tensor in ``params``.
    """
    there = first.server_params.keys() | first.client_params.keys()
    original = {id(t): n for n, t in params.items() if n in there}
    return {n: n if n in there else original.get(id(t), n) for n, t in params.items()}


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
