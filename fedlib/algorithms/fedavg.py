"""FedAvg, whose methods are every algorithm's default."""

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

RENAMED = {  # hooks and facts of 0.2: one that is overridden by its old name would be ignored
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

    ``epochs`` E, ``batch_size`` B (None: all examples at once), ``client`` the optimiser of w_s
    (SGD with rate alpha), ``server`` that of w (with rate beta; SGD with rate 1 is plain averaging,
    Adam generalised FedAvg). With ``steps`` every client takes that many steps in a round, whatever
    its size, in place of E epochs. p(s) = N_s / N_S' is a client's share of the cohort's examples.
    FedAdam is ``FedAvg(server=adam(0.01))``, FedAvgM ``FedAvg(server=sgd(1.0, momentum=0.9))``,
    FedAdagrad ``FedAvg(server=Optimizer("Adagrad", lr=0.01))``, each with torch's optimiser.

        w_s <- w_s - alpha grad (1/B) sum_i -log p_w_s(y_i|x_i)     from w_s = w     (000, eq. 1)
        w   <- w - beta sum_s p(s) (w - w_s)                        over the cohort  (000, eq. 7)

    Reference: McMahan et al., Communication-efficient learning of deep networks from decentralized
    data, AISTATS 2017; with a server optimiser Reddi et al., Adaptive federated optimization,
    ICLR 2021. The baseline of all papers.

    >>> p, sent = torch.tensor([0.25, 0.75]), torch.tensor([[4.0], [0.0]])  # w - w_s of two clients
    >>> torch.tensor([3.0]) - weighted_sum(p, sent)  # w, averaged
    tensor([2.])
    """

    communicates: ClassVar[bool] = True
    """Whether clients send anything."""

    needs_plain_sgd: ClassVar[bool] = False
    """Whether the method counts on clients that take plain SGD steps of one rate."""

    trained: ClassVar[tuple[str, ...]] = ("",)
    """How the names of the leaves begin that clients train; "" is all of them."""

    initialised_from: ClassVar[dict[str, str]] = {}
    """How the names of leaves begin that start as others do, and how the names of those begin."""

    optional: ClassVar[tuple[str, ...]] = ("base.",)
    """Beginnings of names that phases and rates name even where no leaf has them: a frozen base."""

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
        """Whether a client's own network reads the examples that it predicts."""
        return False

    @property
    def local(self) -> tuple[str, ...]:
        """How the names of the parameters begin that stay with their client.

        "*running_mean" stands for every layer that has a parameter of this name. Default: none.
        """
        return ()

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the fresh leaves of one client and the server."""
        return to_device(fed.net.init(torch_seed(seed, "model", 0)), fed)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the state before round 0; every client starts from the same local leaves.

        After a ``first`` stage the leaves that it has under the same name start from its values,
        and copies that it lacks from those of what they are copies of. ValueError if it has none,
        has one in another shape or of other clients, or if only clients have what all share here.
        """
        params = tensors(self, "init_params", self.init_params(fed, seed))
        if first and not params.keys() & (first.server_params.keys() | first.client_params.keys()):
            raise ValueError(f"the first stage has no leaf of {type(self).__name__} to start from")
        first, stays = first or State({}, {}), local_names(self, params)
        of = {n: self._source(n, first) for n in params}
        shared = {n: carry_over(first, of[n], t) for n, t in params.items() if n not in stays}
        local = {
            n: carry_over(first, of[n], t, fed.num_clients) for n, t in params.items() if n in stays
        }
        return State(shared, {n: t.clone() for n, t in local.items()})

    def _source(self, name: str, first: State) -> str:
        """Return by which name a first stage has what a leaf starts as."""
        for prefix, of in self.initialised_from.items():
            if (
                name.startswith(prefix)
                and name not in first.server_params
                and name not in first.client_params
            ):
                return of + name.removeprefix(prefix)
        return name

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return the received shared leaves and the client's own, ``[clients, ...]``."""
        received = {n: t.expand(len(clients), *t.shape) for n, t in state.server_params.items()}
        return {**received, **{n: t[clients] for n, t in state.client_params.items()}}

    def phase(self, **more: Any) -> Phase:
        """Return a stretch of training by ``client``, with other fields of ``Phase`` if given.

        A phase with ``epochs`` of its own takes no ``steps`` unless they are given, too.
        """
        schedule = ("batch_size",) if "epochs" in more else ("batch_size", "epochs", "steps")
        usual = {n: getattr(self, n) for n in schedule}
        return Phase(**{"optimizer": self.client, "train": self.trained, **usual, **more})

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the leaves that clients train."""
        return (self.phase(),)

    @uses_precomputed("precompute")
    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of one client's mini-batch."""
        logits = net.logits(params, self.features(net, params, batch))
        return -mean(at_label(net.log_probs(logits), batch.y), batch.weight)

    def precompute(
        self, net: FunctionalModel, frozen: Params, ctx: Params, batch: Batch
    ) -> Precomputed:
        """Return the features instead of the examples where the base stands still.

        Where a model drops units, features differ from step to step.
        """
        if net.noise or not net.has_base(frozen):
            return NOTHING
        return Precomputed({}, {"h": net.features(frozen, batch.x)})

    def features(self, net: FunctionalModel, params: Params, batch: Batch) -> Tensor:
        """Return the features of a mini-batch, ``[B, D]``: looked up, or computed in training."""
        known = batch.precomputed
        return known["h"] if "h" in known else net.features(params, batch.x, batch)

    def client_update(
        self, net: FunctionalModel, before: Params, after: Params, ctx: Params
    ) -> Update:
        """Return before - after of the shared leaves that some phase trains, to be sent."""
        local = local_names(self, before)
        moved = {n for phase in self.phases() for n in phase.trained_names(before, local)}
        return {}, {n: before[n] - after[n] for n in before if n in moved - local}

    def weights(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> Params:
        """Return p(s) = N_s / N_S' for every shared leaf."""
        p = self.share(fed, clients)
        return {n: p for n in state.server_params if n in messages}

    def share(self, fed: Federation, clients: Tensor) -> Tensor:
        """Return p(s) over the cohort, float64 ``[clients]``; 0 where nobody has an example."""
        n = fed.sizes[clients]
        return n / n.sum().clamp(min=1)

    def client_weight(self, p: Tensor, messages: Params) -> Params:
        """Return what clients weigh in each leaf that they send, if ``p`` ``[clients]`` by itself.

        ``weights`` are these divided by their sums: all that a server needs are two sums.
        """
        return dict.fromkeys(messages, p)

    def aggregate(self, fed: Federation, state: State, clients: Tensor, messages: Params) -> State:
        """Step the server's optimiser along the weighted mean of the messages.

        A leaf without message stands still; so does an expert (a row k of a leaf with weights
        ``[clients, K]``) to which no client gives any weight.
        """
        weights = self.weights(fed, state, clients, messages)
        gradients = {n: weighted_sum(w, messages[n]) for n, w in weights.items()}
        frozen_rows = {n: w.sum(0) == 0 for n, w in weights.items() if w.ndim == 2}
        return self.server_update(fed, state, gradients, frozen_rows)

    def server_update(
        self, fed: Federation, state: State, gradients: Params, frozen_rows: Params | None = None
    ) -> State:
        """Return the state after a step of the server along averaged differences."""
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
        """Return the pseudo-gradients with what the server itself adds: here nothing."""
        return gradients

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return the bytes down and up per client, counted from the tensors exchanged."""
        return equal_bytes(clients, state.server_params, {n: t[0] for n, t in messages.items()})

    def shared_forward(self, net: FunctionalModel, shared: Params, x: Tensor) -> Params:
        """Return the global model's log-probabilities, or the batch for a client's own model."""
        return {"x": x} if self.predicts_from_inputs else {"logp": net.logp(shared, x)}

    def predict(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Prediction:
        """Return the prediction of the global model, or of the client's own."""
        return Prediction.single(code["logp"] if "logp" in code else net.logp(params, code["x"]))

    def new_client_output(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Params:
        """Return a client's prediction p(y|x, s) for a new client's examples."""
        return {"p": self.predict(net, params, ctx, code).logp.exp()}

    def combine_clients(
        self, net: FunctionalModel, shared: Params, code: Params, outputs: Params
    ) -> Tensor:
        """Return the logarithm of the mean prediction, or what the mean logits predict."""
        return outputs["logits"].log_softmax(-1) if "logits" in outputs else outputs["p"].log()


def local_names(algorithm: FedAvg, names: Iterable[str]) -> set[str]:
    """Return which parameters stay with their client, by the prefixes of ``FedAvg.local``."""
    names, local = [*names], algorithm.local
    ends = [prefix[1:] for prefix in local if prefix.startswith("*")]
    layers = [n.removesuffix(end) for end in ends for n in names if n.endswith(end)]
    return {n for n in names if n.startswith((*local, *layers))}


def carry_over(first: State, name: str, fresh: Tensor, clients: int | None = None) -> Tensor:
    """Return a leaf as a first stage left it, or ``fresh``; ``[clients, ...]`` if it is local.

    ValueError for another shape, and for what only clients have and all are to share.
    """
    own = name in first.client_params and (clients is not None or name not in first.server_params)
    if own and clients is None:
        raise ValueError(f"{name} is each client's own in the first stage, and shared by all here")
    found = first.client_params[name] if own else first.server_params.get(name, fresh)
    needed = (clients, *fresh.shape) if own else fresh.shape
    if found.shape != needed:
        raise ValueError(f"{name} is {[*found.shape]} in the first stage, and {[*needed]} here")
    return found if own or clients is None else found.expand(clients, *fresh.shape)


def own_params(first: State, fed: Federation) -> Params:
    """Return the clients' own leaves after a first stage; ValueError if these are other clients."""
    for name, param in first.client_params.items():
        if len(param) != fed.num_clients:
            here = f"{fed.num_clients} clients here"
            raise ValueError(f"{name} is of {len(param)} clients in the first stage: {here}")
    return first.client_params


def drop_prefix(params: Params, prefix: str) -> Params:
    """Return the leaves whose names do not begin with ``prefix``."""
    return {n: t for n, t in params.items() if not n.startswith(prefix)}


def nbytes(params: Params) -> int:
    """Return the bytes of some tensors."""
    return sum(t.numel() * t.element_size() for t in params.values())


def equal_bytes(clients: Tensor, down: Params, up: Params) -> Bytes:
    """Return the bytes of what every client of ``clients`` is sent and sends."""
    return torch.full((len(clients),), nbytes(down)), torch.full((len(clients),), nbytes(up))


def to_device(params: Params, fed: Federation) -> Params:
    """Return the same leaves on the device of a federation."""
    return {n: t.to(fed.device) for n, t in params.items()}


def broadcast_to_clients(params: Params, fed: Federation) -> Params:
    """Return the same leaves for every client, ``[clients, ...]``, each to be trained."""
    return {
        n: t.expand(fed.num_clients, *t.shape).clone() for n, t in to_device(params, fed).items()
    }
