"""Drift and personal models, each method against a plain loop over clients and mini-batches."""

from functools import partial

import pytest
import torch
from conftest import make_federation
from playing import SIZES, close, one, plans_of, play, stepped
from torch.nn.functional import cosine_similarity, cross_entropy, log_softmax

from fedlib import algorithms as alg
from fedlib.algorithms.server_training import MADE, generate
from fedlib.engine import play_round, select
from fedlib.models import MLP, add_prefix, select_prefix
from fedlib.optim import Optimizer, sgd
from fedlib.randomness import torch_seed
from fedlib.values import value

ROUNDS, COHORT, LR = 4, 2, 0.1
FAST = {"batch_size": 4, "epochs": 2, "client": sgd(LR)}
NEAR = {"rtol": 1e-3, "atol": 1e-5}
AVERAGE = partial(torch.optim.SGD, lr=1.0)
SMALL = {"noise": 3, "hidden": 5, "steps": 20, "invented": 6}


def far(w, u):
    return sum(((w[n] - u[n]) ** 2).sum() for n in w)


def averaged(ends):
    """The mean of (weight, leaves)."""
    return {n: sum(p * w[n] for p, w in ends) for n in ends[0][1]}


class Plain:
    """A federation for a plain loop: an MLP as a function of four tensors, and its mini-batches."""

    def __init__(self, algorithm, members=None):
        self.algorithm, self.members = algorithm, members
        self.fed = self.federation()
        self.first = algorithm.init(self.fed, 0)

    def federation(self):
        fed = make_federation(SIZES, model=MLP((6,)))
        fed.participants = self.members
        return fed

    def logits(self, w, x):
        a, b, c, d = w.values()
        return (x.flatten(1) @ a.T + b).relu() @ c.T + d

    def loss(self, w, batch):
        return cross_entropy(self.logits(w, batch[0]), batch[1])

    def down(self, w, batch, lr=LR, mu=0.0, centre=None):
        """Leaves after a step on a mini-batch, held to ``centre`` by mu / 2 times the distance."""
        held = (lambda x: mu / 2 * far(x, centre)) if centre else lambda x: 0.0
        return stepped(w, lambda x: self.loss(x, batch) + held(x), lr)

    def walk(self, w, batches, **how):
        """Leaves after a step on every mini-batch."""
        for batch in batches:
            w = self.down(w, batch, **how)
        return w

    def clients(self, t):
        """The clients of a round: row, p(s), and a function from a phase to its mini-batches."""
        rows = select(self.fed, COHORT, 0, t)
        plans = plans_of(self.algorithm, self.fed, rows, round=t)
        total = sum(self.fed.train.sizes[rows])
        for i, row in enumerate(rows):

            def batches(phase, i=i, row=row):
                plan = plans[phase]
                for step in range(plan.ends[i]):
                    yield self.held(row, plan.positions[i, step, : plan.counts[i, step]])

            yield int(row), float(self.fed.train.sizes[row] / total), batches

    def rounds(self, local, server=AVERAGE):
        """The server's leaves after the mean of what ``client_params(row, w, batches)`` sends,
        by round.
        """
        w = {n: t.clone() for n, t in self.first.server_params.items()}
        engine = server(w.values())
        for t in range(ROUNDS):
            now = {n: leaf.clone() for n, leaf in w.items()}
            ends = [(share, local(row, now, batches)) for row, share, batches in self.clients(t)]
            for n, mean in averaged(ends).items():
                w[n].grad = now[n] - mean
            engine.step()
        return w

    def held(self, row, places=slice(None)):
        held = self.fed.train.client(row)[places]
        return self.fed.train.inputs(held), self.fed.train.y[held]

    def played(self):
        """The state that the engine ends with."""
        return play(self.algorithm, self.federation(), ROUNDS, cohort=COHORT)[0]

    def compare(self, shared, own, prefix="own."):
        """The engine's state has what a loop has: the server's leaves, and every client's."""
        state = self.played()
        close(shared, state.server_params, **NEAR)
        for row, mine in enumerate(own):
            got = {n: t[row] for n, t in select_prefix(state.client_params, prefix).items()}
            close(mine, got, **NEAR)
        assert max(float((own[0][n] - own[1][n]).abs().max()) for n in own[0]) > 1e-3
        return state


SERVERS = {
    "average": (sgd(1.0), AVERAGE),
    "momentum": (sgd(0.5, 0.9), partial(torch.optim.SGD, lr=0.5, momentum=0.9)),
    "adam": (Optimizer("adam", 0.02, eps=1e-3), partial(torch.optim.Adam, lr=0.02, eps=1e-3)),
}


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_fedavg_with_any_server_and_fedprox(mu, name):
    server, plain = SERVERS[name]
    kind = partial(alg.FedProx, mu=mu) if mu else alg.FedAvg
    p = Plain(kind(server=server, **FAST))
    shared = p.rounds(lambda _, w, batches: p.walk(w, batches(0), mu=mu, centre=w), plain)
    close(shared, p.played().server_params, **NEAR)


@value
class Weighted(alg.FedAvg):
    """Classes weigh as much as they are rare, at ``of`` all clients or at each one's own."""

    of: str = "all"

    def client_constants(self, fed, state, rows):
        n = fed.train.counts(fed.classes).double()
        n = n.sum(0).expand_as(n) if self.of == "all" else n
        return {"w": (n.sum(1, keepdim=True) / (fed.classes * n.clamp(min=1))).float()[rows]}

    def loss(self, net, params, ctx, batch):
        w = ctx["w"][batch.y] * batch.weight
        each = cross_entropy(net(params, batch.x, batch), batch.y, reduction="none")
        return (each * w).sum() / w.sum().clamp(min=1e-8)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("of", ["all", "own"])
def test_classes_that_are_weighed_by_all_clients_counts_or_by_ones_own(of, chunk):
    """As torch's own weights of classes; a client has none of one class."""
    p = Plain(Weighted(of=of, **FAST))
    p.fed.train.y[p.fed.train.client(1)] = 1
    held = (p.fed.train.y[p.fed.train.client(row)] for row in range(3))
    counts = torch.stack([y.bincount(minlength=3) for y in held])
    counts = (counts.sum(0, keepdim=True).expand(3, 3) if of == "all" else counts).clamp(min=1)
    assert of == "all" or counts[1].tolist() == [1, SIZES[1], 1]

    def local(row, w, batches):
        for x, y in batches(0):
            loss = lambda v, x=x, y=y: cross_entropy(p.logits(v, x), y, 1 / counts[row])  # noqa: E731
            w = stepped(w, loss, LR)
        return w

    state, _ = play(p.algorithm, p.fed, ROUNDS, cohort=COHORT, chunk=chunk)
    close(p.rounds(local), state.server_params, **NEAR)


@pytest.mark.parametrize(
    ("size", "members", "more"),
    [(4, None, {}), (None, None, {}), (4, [0, 1], {}), (4, None, {"epochs": 1, "steps": 5})],
)
def test_scaffold(size, members, more):
    p = Plain(alg.SCAFFOLD(**{**FAST, "batch_size": size, **more}), members)
    n = len(members or SIZES)
    w = {n: t for n, t in p.first.server_params.items() if not n.startswith("control.")}
    c = {n: torch.zeros_like(t) for n, t in w.items()}
    own = [c] * 3
    for t in range(ROUNDS):
        ends, before = [], [*own]
        for row, _, batches in p.clients(t):
            mine, steps = w, 0
            for b in batches(0):
                free = p.down(mine, b)
                mine = {n: t - LR * (c[n] - own[row][n]) for n, t in free.items()}
                steps += 1
            own[row] = {n: t - c[n] + (w[n] - mine[n]) / (steps * LR) for n, t in own[row].items()}
            ends.append((1 / COHORT, mine))
        moved = zip(own[:n], before[:n], strict=True)
        c = averaged([(1 / n, {k: a[k] - b[k] + c[k] for k in c}) for a, b in moved])
        w = averaged(ends)
    p.compare({**w, **add_prefix(c, "control.")}, own, prefix="drift.")


@pytest.mark.parametrize("more", [{}, {"epochs": 1, "steps": 5}])
def test_fednova(more):
    p = Plain(alg.FedNova(**{**FAST, **more}))
    w = p.first.server_params
    for t in range(ROUNDS):
        ends = []
        for _, share, batches in p.clients(t):
            steps = [*batches(0)]
            ends.append((share, len(steps), p.walk(w, steps)))
        tau = sum(share * steps for share, steps, _ in ends)
        each = [(share * tau / steps, mine) for share, steps, mine in ends]
        w = {n: leaf - sum(s * (leaf - mine[n]) for s, mine in each) for n, leaf in w.items()}
    close(w, p.played().server_params, **NEAR)


@pytest.mark.parametrize("members", [None, [0, 1]])
def test_feddyn(members):
    p = Plain(alg.FedDyn(alpha=0.3, **FAST), members)
    w, m = p.first.server_params, len(members or SIZES)
    h = {n: torch.zeros_like(t) for n, t in w.items()}
    g = [h] * 3
    for t in range(ROUNDS):
        ends = []
        for row, _, batches in p.clients(t):
            mine = w
            for b in batches(0):
                near = p.down(mine, b, mu=0.3, centre=w)
                mine = {n: t + LR * g[row][n] for n, t in near.items()}
            g[row] = {n: t - 0.3 * (mine[n] - w[n]) for n, t in g[row].items()}
            ends.append((1 / COHORT, mine))
        mean = averaged(ends)
        h = {n: t - 0.3 * COHORT / m * (mean[n] - w[n]) for n, t in h.items()}
        w = {n: t - h[n] / 0.3 for n, t in mean.items()}
    p.compare(w, g, prefix="drift.")


def test_fedala():
    p = Plain(alg.FedALA(rate=3.0, **FAST))
    names = [*p.first.server_params]
    own = [p.first.server_params] * 3
    mix = [{n: torch.ones_like(p.first.server_params[n]) for n in names[2:]} for _ in range(3)]

    def local(row, w, batches):
        def mixed(a):
            return {**w, **{n: own[row][n] + a[n] * (w[n] - own[row][n]) for n in a}}

        for b in batches(0):
            moved = stepped(mix[row], lambda a, b=b: p.loss(mixed(a), b), 3.0)
            mix[row] = {n: t.clamp(0, 1) for n, t in moved.items()}
        own[row] = p.walk(mixed(mix[row]), batches(1))
        return own[row]

    state = p.compare(p.rounds(local), own)
    for row, mine in enumerate(mix):
        got = {n: t[row] for n, t in select_prefix(state.client_params, "mix.").items()}
        close(mine, got, **NEAR)
    assert min(float(t.min()) for mine in mix for t in mine.values()) < 0.9


@pytest.mark.parametrize("first_order", [False, True])
def test_perfedavg(first_order):
    p = Plain(alg.PerFedAvg(alpha=0.5, first_order=first_order, **FAST))

    def after(w, x, y):
        """The loss of the odd examples after a step on the even ones, or both on a single one."""
        inner, outer = (x[::2], y[::2]), (x[1::2], y[1::2]) if len(y) > 1 else (x, y)
        start = [t if t.requires_grad else t.requires_grad_() for t in w.values()]
        step = torch.autograd.grad(p.loss(w, inner), start, create_graph=not first_order)
        return p.loss({n: t - 0.5 * g for (n, t), g in zip(w.items(), step, strict=True)}, outer)

    def local(row, w, batches):
        for x, y in batches(0):
            w = stepped(w, lambda v, x=x, y=y: after(v, x, y), LR)
        return w

    close(p.rounds(local), p.played().server_params, **NEAR)


def test_scaffolds_control_variate_of_a_client_without_examples_stays():
    """It takes no step: c_j is what it was, and c moves by the changes of the others."""
    fed = make_federation((6, 0, 5))
    state, report = play(alg.SCAFFOLD(batch_size=4), fed)
    for name, leaf in select_prefix(state.client_params, "drift.").items():
        assert (leaf[1] == 0).all() and leaf[[0, 2]].any()
        assert (report.messages[f"control.{name}"][report.clients == 1] == 0).all()


def test_ditto():
    p = Plain(alg.Ditto(lam=0.7, own=sgd(0.2), **FAST))
    v = [p.first.server_params] * 3

    def local(row, w, batches):
        v[row] = p.walk(v[row], batches(1), lr=0.2, mu=0.7, centre=w)
        return p.walk(w, batches(0))

    p.compare(p.rounds(local), v)


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl(adaptive):
    p = Plain(alg.APFL(alpha=0.9, adaptive=adaptive, rate=2.0, **FAST))
    v, alpha = [p.first.server_params] * 3, [0.9] * 3

    def local(row, w, batches):
        mine = w
        for b in batches(0):
            a = torch.tensor(alpha[row], requires_grad=True)

            def mixed(own, a=a, mine=mine):
                return {n: a * t + (1 - a) * mine[n] for n, t in own.items()}

            (slope,) = torch.autograd.grad(p.loss(mixed(v[row]), b), [a])
            v[row] = stepped(v[row], lambda x, b=b, m=mixed: p.loss(m(x), b), LR)
            mine = p.down(mine, b)
            if adaptive:
                alpha[row] = min(max(float(a.detach() - 2.0 * slope), 0.0), 1.0)
        return mine

    state = p.compare(p.rounds(local), v)
    torch.testing.assert_close(state.client_params["mix"], torch.tensor(alpha), **NEAR)
    assert not adaptive or 0.0 in alpha  # where it is held back


def test_pfedme():
    p = Plain(alg.PFedMe(lam=3.0, steps=4, eta=0.05, server=sgd(0.8), **FAST))
    theta = [p.first.server_params] * 3

    def local(row, w, batches):
        mine = theta[row] = w
        for b in batches(0):
            for _ in range(4):
                theta[row] = p.down(theta[row], b, mu=3.0, centre=mine)
            mine = {n: m - 0.05 * 3 * (m - theta[row][n]) for n, m in mine.items()}
        return mine

    p.compare(p.rounds(local, partial(torch.optim.SGD, lr=0.8)), theta)


def test_fedamp():
    p = Plain(alg.FedAMP(lam=0.3, sigma=0.5, alpha=0.2, **FAST))
    w = [{n: t[row] for n, t in p.first.client_params.items()} for row in range(3)]
    there = [False] * 3
    for t in range(ROUNDS):
        before, seen = [*w], [*there]
        for row, _, batches in p.clients(t):
            others = [s for s in range(3) if s != row and seen[s]]
            apart = {s: far(before[row], before[s]) for s in others}
            xi = {s: 0.2 * torch.exp(-d / 0.5) / 0.5 for s, d in apart.items()}
            own = {n: (1 - sum(xi.values())) * t for n, t in before[row].items()}
            u = {n: t + sum(x * before[s][n] for s, x in xi.items()) for n, t in own.items()}
            w[row] = p.walk(w[row], batches(0), mu=0.3 / 0.2, centre=u)
            there[row] = True
    state = p.compare({}, w, prefix="")
    assert sorted(there) == sorted(state.server_memory["clients/there"].tolist())


def test_fedem():
    """The leaves of both experts stand side by side."""
    p = Plain(alg.FedEM(experts=2, **FAST))
    p.first.server_params = {
        f"{k}.{n}": t[k] for n, t in p.first.server_params.items() for k in (0, 1)
    }
    pi = [torch.tensor([0.5, 0.5])] * 3

    def logp(w, k, x, y):
        return log_softmax(p.logits(select_prefix(w, f"{k}.experts."), x), -1)[range(len(y)), y]

    def q(row, w, x, y):
        joint = pi[row] * torch.stack([logp(w, k, x, y) for k in (0, 1)], 1).exp()
        return (joint / joint.sum(1, keepdim=True)).detach()

    def local(row, w, batches):
        mine = w
        for x, y in batches(0):
            share = q(row, w, x, y)
            each = lambda m, k, x=x, y=y, q=share: -(q[:, k] * logp(m, k, x, y)).mean()  # noqa: E731
            mine = stepped(mine, lambda m, of=each: of(m, 0) + of(m, 1), LR)
        pi[row] = q(row, w, *p.held(row)).mean(0)
        return mine

    w, state = p.rounds(local), p.played()
    close(w, {f"{k}.{n}": t[k] for n, t in state.server_params.items() for k in (0, 1)}, **NEAR)
    torch.testing.assert_close(state.client_params["pi"], torch.stack(pi), **NEAR)
    assert (state.client_params["pi"] - 0.5).abs().max() > 1e-3


def test_moons_term_is_its_formula():
    fed = make_federation((8,), model=MLP((6,)))
    algorithm = alg.MOON(mu=2.0, tau=0.3, batch_size=None)
    leaves = [fed.net.init(seed) for seed in (0, 1, 2)]
    params, theirs, before = leaves
    batch = one(fed)
    x, y = batch.x, batch.y
    z, z_g, z_p = (fed.net.features(w, x) for w in leaves)
    near, far = ((cosine_similarity(z, other, -1) / 0.3).exp() for other in (z_g, z_p))
    expected = cross_entropy(fed.net(params, x), y) - 2.0 * (near / (near + far)).log().mean()
    own = add_prefix(before, "previous.")
    loss = algorithm.loss(fed.net, {**params, **own}, add_prefix(theirs, "received."), batch)
    torch.testing.assert_close(loss, expected)


def test_moons_previous_model_is_the_one_that_was_trained():
    fed, algorithm = make_federation(SIZES), alg.MOON(batch_size=4)
    state = algorithm.init(fed, 0)
    start = {n: t.clone() for n, t in state.server_params.items()}
    after, report = play_round(algorithm, fed, state, round=0, seed=0, cohort=2)
    (away,) = {*range(3)} - {*report.clients.tolist()}
    for n, t in select_prefix(after.client_params, "previous.").items():
        trained = start[n] - report.messages[n]
        torch.testing.assert_close(t[report.clients], trained, rtol=1e-4, atol=1e-6)
        assert torch.equal(t[away], start[n])


class Inventor(torch.nn.Module):
    """FedGen's generator as it is usually written."""

    def __init__(self, fresh):
        super().__init__()
        hidden, inputs = fresh["first.weight"].shape
        self.first, self.norm = torch.nn.Linear(inputs, hidden), torch.nn.BatchNorm1d(hidden)
        self.last = torch.nn.Linear(hidden, len(fresh["last.bias"]))
        self.load_state_dict(fresh, strict=False)

    def forward(self, noise, y):
        h = torch.cat([noise, torch.eye(3)[y]], -1)
        return self.last(torch.relu(self.norm(self.first(h))))


def test_invented_features_are_normalised_over_real_rows_only():
    torch.manual_seed(0)
    fed = make_federation((8,), model=MLP((6,)))
    made = select_prefix(alg.FedGen(**SMALL).init_params(fed, 0), MADE)
    u, y, weight = torch.rand(5, 3), torch.tensor([0, 1, 2, 0, 0]), torch.tensor([1.0, 1, 1, 0, 0])
    z = generate(made, u, y, 3, weight)
    torch.testing.assert_close(z[:3], generate(made, u[:3], y[:3], 3, weight[:3]))
    torch.testing.assert_close(z[:3], Inventor(made)(u[:3], y[:3]))


def test_fedgens_generator_has_one_adam_for_all_rounds():
    """Against a loop that makes an nn.Module and a torch.optim.Adam once, before round 0."""
    fed, algorithm = make_federation(SIZES, model=MLP((6,))), alg.FedGen(batch_size=4, **SMALL)
    state = algorithm.init(fed, 0)
    inventor = Inventor(select_prefix(state.server_params, MADE))
    engine = torch.optim.Adam(inventor.parameters(), lr=5e-3)
    pool = (torch.bincount(fed.train.y[:24], minlength=3) / 24).cumsum(0)
    for t in range(3):
        received = state.server_params
        state, report = play_round(algorithm, fed, state, round=t, seed=0, cohort=2)
        share = torch.tensor([SIZES[row] for row in report.clients.tolist()])
        share = share / share.sum()
        sent = {n: torch.einsum("s,s...->...", share, t) for n, t in report.messages.items()}
        weight, bias = (received[n] - sent[n] for n in ("head.weight", "head.bias"))
        draw = torch.Generator().manual_seed(torch_seed(0, "server", t))
        for _ in range(SMALL["steps"]):
            u = torch.rand(SMALL["invented"], SMALL["noise"] + 1, generator=draw)
            y = (u[:, -1:] >= pool).sum(-1).clamp(max=2)
            engine.zero_grad()
            cross_entropy(inventor(u[:, :-1], y) @ weight.T + bias, y).backward()
            engine.step()
        # What batch normalisation takes out again has no gradient but rounding.
        made = {MADE + n: v for n, v in inventor.named_parameters() if n != "first.bias"}
        close(made, state.server_params, rtol=1e-3, atol=1e-4)
