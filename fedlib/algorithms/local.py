"""What clients train by themselves: from scratch or after a federation; the majority class."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlib.algorithms.arithmetic import mean
from fedlib.algorithms.fedavg import (
    Bytes,
    FedAvg,
    broadcast_to_clients,
    equal_bytes,
    own_params,
    to_device,
)
from fedlib.algorithms.ifca import FIT, best_fit, pick
from fedlib.algorithms.splitting import Personal
from fedlib.engine import Algorithm, EarlyStop, Phase, Prediction, State, Update, uses_precomputed
from fedlib.engine.protocol import LOG_DENSITY
from fedlib.engine.train import Cohort
from fedlib.federation import Federation, Precomputed
from fedlib.models import Architecture, Batch, FunctionalModel, Params, add_prefix, select_prefix
from fedlib.models.architectures import auto_encoder, evidence, evidence_bound
from fedlib.optim import Optimizer, adam
from fedlib.randomness import torch_seed
from fedlib.values import PositiveInt, value, wrapped

COUNTS, TOGETHER = "counts", "counts_together"  # of labels: a client's, the federation's
VAE, LATENT = "vae.", "latent"


@dataclass(frozen=True)
class NoServer(FedAvg):
    """What clients train by themselves: nothing is sent, and what opted out is no secret."""

    communicates = False

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return no bytes: what a first stage shared was there when this one began."""
        return equal_bytes(clients, {}, {})


@value
class Local(NoServer):
    """Every leaf stays with its client: no federation at all, or a personal copy of its model.

        w_s <- w_s - eta grad CE(w_s)     from fresh weights, or from w_s = w, the federation's

    From fresh weights this is the baseline "local"; after a first stage
    (``Experiment.first_stage``) every client starts from that stage's global model, which is
    "fine-tuned", or after ``IFCA`` from the model of its cluster. ``stop`` ends a client's training
    on its own validation loss and keeps its best weights. ``model`` is the network, the task's
    where None.

    Reference: a baseline of all papers; Step 2 of Listo Zec et al. (001), fine-tuning of FedBABU.
    """

    predicts_from_inputs = True
    local = ("",)
    stop: EarlyStop | None = None
    model: Architecture | None = None

    def init_params(self, fed: Federation, seed: int) -> Params:
        """Return the fresh leaves of one client."""
        return to_device(fed.net.like(self.model).init(torch_seed(seed, "model", 0)), fed)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return every client's leaves, in addition to what a ``first`` stage shared."""
        if first is None:
            return FedAvg.init(self, fed, seed)
        if FIT in first.server_memory:
            mine = pick(first.server_params, best_fit(first))
            first = State({}, {n: t.clone() for n, t in mine.items()})
        return State(first.server_params, FedAvg.init(self, fed, seed, first).client_params)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over all leaves, with early stopping if asked for."""
        noise = (("dropout", self.model),) if self.model else ()
        return (self.phase(stop=self.stop, random_inputs=noise),)

    @uses_precomputed("precompute")
    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of one client's mini-batch."""
        return FedAvg.loss(self, net.like(self.model), params, ctx, batch)

    def precompute(
        self, net: FunctionalModel, frozen: Params, ctx: Params, batch: Batch
    ) -> Precomputed:
        """Return the features where the network's base is frozen."""
        return FedAvg.precompute(self, net.like(self.model), frozen, ctx, batch)

    def predict(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Prediction:
        """Return the client's own model's prediction."""
        return Prediction.single(net.like(self.model).logp(params, code["x"]))


@dataclass(frozen=True)
class Finetuning(NoServer):
    """A stage over ``of``, whose experiment is ``Experiment.first_stage``: predicts as it does.

    The federation stays as it is. A stage of its own overrides ``init`` and ``phases``.
    """

    of: FedAvg = FedAvg()  # noqa: RUF009, a value

    def client_params(self, fed: Federation, state: State, clients: Tensor) -> Params:
        """Return what ``of`` sends, with all that the clients have kept."""
        own = {n: t[clients] for n, t in state.client_params.items()}
        return {**self.of.client_params(fed, state, clients), **own}


for hook in (
    "optional", "predicts_from_inputs", "local", "client_constants", "round_constants",
    "shared_forward", "predict", "new_client_output", "combine_clients", "assign_clusters",
):  # fmt: skip
    setattr(Finetuning, hook, wrapped(hook))


@value(kind="Newcomers")
class NewClients(Finetuning):
    """Clients that join when ``of`` has been trained: they fit only what is personal.

    They receive what is shared and send nothing. Each trains the leaves that ``of`` keeps local,
    on its own labelled data with the objective of ``of``, from fresh ones; for FedMix

        theta_s <- theta_s + alpha grad mean_i E_q(z|y_i)[ log p(y_i, z|x_i, s) ]    (000, sec. 2)

    FedAvg has none, and new clients use the global model as it is. ``stop`` watches their
    validation examples. A second stage: ``Experiment.first_stage`` is the federation that trained.
    ValueError for an ``of`` that does more at its clients than to minimise one loss over what it
    keeps local: FedEM's E-step, IFCA's choice, Ditto's two models.

    Reference: Reisser et al., Federated mixture of experts (000).
    """

    loss = wrapped("loss")
    communication_bytes = FedAvg.communication_bytes  # what is shared comes down, nothing goes up
    stop: EarlyStop | None = None

    def check(self) -> None:
        FedAvg.check(self)
        of = self.of
        while isinstance(inner := getattr(of, "of", None), FedAvg) and of.communicates:
            of = inner  # behind noise or masks
        kind, phases = type(of), of.phases()
        one = of.client, "loss", 1, ""
        usual = all((p.optimizer, p.loss, p.steps_per_batch, p.project) == one for p in phases)
        trained = all(
            any(n.startswith(p.train) for p in phases)
            for n in of.local
            if not isinstance(of, Personal)
        )
        if not (of.communicates and usual and trained and kind.choose is Algorithm.choose):
            what = "by minimising one loss over it"
            raise ValueError(f"Newcomers fit what is personal {what}: {kind.__name__} needs more")
        if of.needs_plain_sgd and self.client != of.client:
            raise ValueError(f"{kind.__name__} counts on its clients' rate: client={of.client}")

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the shared leaves of the first stage, and local ones for each new client."""
        if first is None or not first.server_params:
            what = "a federation that shares a model"
            raise ValueError(f"Newcomers join {what}: give its experiment as `after`")
        return State(first.server_params, self.of.init(fed, seed).client_params)

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the leaves that are local, with the noise that ``of`` asks for."""
        noise = {name: count for phase in self.of.phases() for name, count in phase.random_inputs}
        return (self.phase(stop=self.stop, random_inputs=tuple(noise.items()), scope="local"),)

    def postprocess(self, cohort: Cohort, after: Params, update: Update) -> Update:
        """Return what a client of ``of`` keeps; what it would send stays with it."""
        return self.of.postprocess(cohort, after, update)[0], update[1]


@value(kind="CommonestLabel")
class MajorityClass(NoServer):
    """The most frequent label of a client's own training examples; nothing is trained or sent.

        p(y|x, s) = (n_sy + 1) / (N_s + C)     n_sy examples of label y, C labels

    So accuracy is the majority floor (ties go to the smallest label) and nll that of the smoothed
    marginal, finite also for a label that the client does not hold. A new client gets the most
    frequent label of all examples that take part: what opted out counts for its client only. Play
    one round.

    Reference: none; the majority-class baseline. A trained model may lie below it.

    >>> log_shares(torch.tensor([1, 0, 3]), 1).exp()  # 2/7, 1/7, 4/7
    tensor([[0.2857, 0.1429, 0.5714]])
    """

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the counts of labels: the federation's, and locally every client's own."""
        together = fed.participating_view().train.counts(fed.classes).sum(0)
        return State({TOGETHER: together}, {COUNTS: fed.train.counts(fed.classes)})

    local = (COUNTS,)

    def phases(self) -> tuple[Phase, ...]:
        """Return none: there is nothing to train."""
        return ()

    def shared_forward(self, net: FunctionalModel, shared: Params, x: Tensor) -> Params:
        """Return one number per example: nothing is looked at."""
        return {"none": x.new_zeros(x.shape[0], 1)}

    def predict(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Prediction:
        """Return the logarithms of the client's smoothed label shares."""
        return Prediction.single(log_shares(params[COUNTS], code["none"].shape[0]))

    def combine_clients(
        self, net: FunctionalModel, shared: Params, code: Params, outputs: Params
    ) -> Tensor:
        """Return those of the federation: by examples, where a mean would be by clients."""
        return log_shares(shared[TOGETHER], code["none"].shape[0])


def log_shares(counts: Tensor, examples: int) -> Tensor:
    """Return log (n_y + 1) / (n + classes) of counts ``[classes]`` for each of some examples."""
    shares = (counts + 1) / (counts.sum() + len(counts))
    return shares.log().expand(examples, -1)


@value(kind="Densities")
class VAEDensity(Finetuning):
    """Every client of a trained federation fits a variational auto-encoder to its own examples.

    A new client's example x is then voted on by clients s with p(s|x) in place of p(s).

        p(z|x) = sum_s p_theta_s(z|x, s) p(s|x),     p(s|x) prop. to p(x|s) p(s)       (eq. 18)
        log p(x|s) = log mean_l p(x|u_l) p(u_l) / r(u_l|x)       over L = ``samples`` draws u_l

    Examples are images in bytes. ``hidden`` and ``latent`` are the widths of the auto-encoders (r
    encodes, p decodes), ``of`` the federation's algorithm. A second stage
    (``Experiment.first_stage`` is the federation that trained), in which only the auto-encoders
    move: all in one program, each until its bound on the client's validation examples has not
    improved for ``stop.patience`` epochs. Participating clients predict as with ``of``. Play one
    round with every client (cohort 1.0).

    Reference: Reisser et al., Federated mixture of experts, App. F (000). Deviation: the estimate
    has noise that all clients and examples share; the default of new clients is p(s) (A17).
    """

    communicates = True  # they send their auto-encoders
    trained = (VAE,)
    epochs: int = 100
    batch_size: int | None = 10
    client: Optimizer = adam(1e-3)
    hidden: tuple[PositiveInt, ...] = (512, 256)
    latent: PositiveInt = 32
    samples: PositiveInt = 1
    stop: EarlyStop = EarlyStop(every=1, patience=3)

    @property
    def local(self) -> tuple[str, ...]:
        """The auto-encoders, and what ``of`` keeps local."""
        return (VAE, *self.of.local)

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the first stage's leaves and one fresh auto-encoder for every client."""
        if first is None:
            raise ValueError("VAEDensity follow a federation: give its experiment as `first_stage`")
        if fed.train.x.dtype != torch.uint8:
            raise ValueError(f"Densities are of images in bytes, got {fed.train.x.dtype}")
        inputs, draw = math.prod(fed.net.shape), torch_seed(seed, "model", 0)
        fresh = add_prefix(auto_encoder(inputs, self.hidden, self.latent, draw), VAE)
        return replace(
            first, client_params={**own_params(first, fed), **broadcast_to_clients(fresh, fed)}
        )

    def round_constants(self, fed: Federation, state: State) -> Params:
        """Return what ``of`` tells all clients, how to undo the normalisation, and fixed noise."""
        draw = torch.Generator().manual_seed(0)
        noise = torch.randn(self.samples, self.latent, generator=draw).to(fed.device)
        look = {"vae:scale": fed.train.scale, "vae:shift": fed.train.shift}
        return {**self.of.round_constants(fed, state), **look, "vae:noise": noise}

    def phases(self) -> tuple[Phase, ...]:
        """Return one phase over the auto-encoders, stopped by their own bound."""
        return (self.phase(stop=self.stop, random_inputs=((LATENT, self.latent),), monitor="loss"),)

    def loss(self, net: FunctionalModel, params: Params, ctx: Params, batch: Batch) -> Tensor:
        """Return the negative bound of log p(x|s) in nats, at the posterior mean without noise."""
        pixels = _pixels(batch.x, ctx)
        if LATENT in batch.random:
            normal = torch.special.ndtri(batch.random[LATENT].clamp(1e-7, 1 - 1e-7))
        else:
            normal = pixels.new_zeros(self.latent)
        return -mean(evidence_bound(select_prefix(params, VAE), pixels, normal), batch.weight)

    def communication_bytes(self, state: State, clients: Tensor, messages: Params) -> Bytes:
        """Return no bytes down, and every client's auto-encoder up."""
        return equal_bytes(
            clients, {}, {n: t[0] for n, t in select_prefix(state.client_params, VAE).items()}
        )

    def shared_forward(self, net: FunctionalModel, shared: Params, x: Tensor) -> Params:
        """Return what the shared leaves of ``of`` say, and the examples themselves."""
        return {**self.of.shared_forward(net, shared, x), "vae:x": x}

    def new_client_output(
        self, net: FunctionalModel, params: Params, ctx: Params, code: Params
    ) -> Params:
        """Return what a client of ``of`` says, and the estimate of log p(x|s), ``[B]``."""
        pixels = _pixels(code["vae:x"], ctx)
        log_p = evidence(select_prefix(params, VAE), pixels, ctx["vae:noise"])
        return {**self.of.new_client_output(net, params, ctx, code), LOG_DENSITY: log_p}


def _pixels(x: Tensor, ctx: Params) -> Tensor:
    """Return normalised images as rows of values in [0, 1], in the order of their memory."""
    clients = x.movedim(-3, -1).flatten(1)
    return ((clients - ctx["vae:shift"]) / (255 * ctx["vae:scale"])).clamp(0, 1)
