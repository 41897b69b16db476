"""Ditto, APFL, pFedMe, FedAMP and FedEM against plain loops over clients and mini-batches."""

import pytest
import torch
from conftest import make_federation
from playing import SIZES, close, play
from torch.nn.functional import cross_entropy, log_softmax

from fedlib import algorithms as alg
from fedlib.algorithms.personal import attention
from fedlib.engine import draw, select
from fedlib.models import MLP, select_prefix
from fedlib.optim import sgd

ROUNDS, COHORT, LR = 4, 2, 0.1
FAST = {"batch_size": 4, "epochs": 2, "client": sgd(LR)}


class Plain:
    """A federation for a plain loop: an MLP as a function of four tensors, and its mini-batches."""

    def __init__(self, algorithm):
        self.algorithm, self.fed = algorithm, make_federation(SIZES, model=MLP((6,)))
        self.first = algorithm.init(self.fed, 0)

    def logits(self, w, x):
        a, b, c, d = w.values()
        return (x.flatten(1) @ a.T + b).relu() @ c.T + d

    def loss(self, w, batch):
        return cross_entropy(self.logits(w, batch[0]), batch[1])

    def clients(self, t):
        """The clients of a round: row, p(s), and a function from a phase to its mini-batches."""
        rows = select(self.fed, COHORT, 0, t)
        plans = draw(self.algorithm, self.fed, rows, round=t, seed=0)
        total = sum(self.fed.train.sizes[rows])
        for i, row in enumerate(rows):

            def batches(phase, i=i, row=row):
                plan = plans[phase]
                for step in range(plan.ends[i]):
                    yield self.held(row, plan.positions[i, step, : plan.counts[i, step]])

            yield int(row), float(self.fed.train.sizes[row] / total), batches

    def held(self, row, places=slice(None)):
        held = self.fed.train.client(row)[places]
        return self.fed.train.inputs(held), self.fed.train.y[held]


def down(w, loss, lr):
    """Leaves after a step of gradient descent."""
    w = {n: t.detach().requires_grad_() for n, t in w.items()}
    grads = torch.autograd.grad(loss(w), [*w.values()])
    return {n: (t - lr * g).detach() for (n, t), g in zip(w.items(), grads, strict=True)}


def far(w, u):
    return sum(((w[n] - u[n]) ** 2).sum() for n in w)


def averaged(ends):
    """The mean of (weight, leaves)."""
    return {n: sum(p * w[n] for p, w in ends) for n in ends[0][1]}


def played(algorithm):
    return play(algorithm, make_federation(SIZES, model=MLP((6,))), ROUNDS, cohort=COHORT)[0]


def compare(state, shared, own, prefix="own."):
    """A state with what a loop has: the server's leaves, and every client's."""
    close(shared, state.shared, rtol=1e-3, atol=1e-5)
    for row, mine in enumerate(own):
        close(
            mine,
            {n: t[row] for n, t in select_prefix(state.local, prefix).items()},
            rtol=1e-3,
            atol=1e-5,
        )
    assert max(float((own[0][n] - own[1][n]).abs().max()) for n in own[0]) > 1e-3


def test_ditto():
    algorithm = alg.Ditto(lam=0.7, own=sgd(0.2), **FAST)
    p = Plain(algorithm)
    w = p.first.shared
    v = [w] * 3
    for t in range(ROUNDS):
        ends = []
        for row, share, batches in p.clients(t):
            mine = w
            for b in batches(0):
                mine = down(mine, lambda x, b=b: p.loss(x, b), LR)
            for b in batches(1):
                v[row] = down(v[row], lambda x, b=b, w=w: p.loss(x, b) + 0.7 / 2 * far(x, w), 0.2)
            ends.append((share, mine))
        w = averaged(ends)
    compare(played(algorithm), w, v)


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl(adaptive):
    algorithm = alg.APFL(alpha=0.9, adaptive=adaptive, rate=2.0, **FAST)
    p = Plain(algorithm)
    w = p.first.shared
    v, alpha = [w] * 3, [0.9] * 3
    for t in range(ROUNDS):
        ends = []
        for row, share, batches in p.clients(t):
            mine = w
            for b in batches(0):
                a = torch.tensor(alpha[row], requires_grad=True)

                def mixed(own, a=a, mine=mine):
                    return {n: a * t + (1 - a) * mine[n] for n, t in own.items()}

                (slope,) = torch.autograd.grad(p.loss(mixed(v[row]), b), [a])
                v[row] = down(v[row], lambda x, b=b, m=mixed: p.loss(m(x), b), LR)
                mine = down(mine, lambda x, b=b: p.loss(x, b), LR)
                if adaptive:
                    alpha[row] = min(max(float(a.detach() - 2.0 * slope), 0.0), 1.0)
            ends.append((share, mine))
        w = averaged(ends)
    state = played(algorithm)
    compare(state, w, v)
    torch.testing.assert_close(state.local["mix"], torch.tensor(alpha), rtol=1e-3, atol=1e-5)
    assert not adaptive or 0.0 in alpha  # where it is held back


def test_pfedme():
    algorithm = alg.PFedMe(lam=3.0, steps=4, eta=0.05, server=sgd(0.8), **FAST)
    p = Plain(algorithm)
    w = p.first.shared
    theta = [w] * 3
    for t in range(ROUNDS):
        ends = []
        for row, share, batches in p.clients(t):
            mine = theta[row] = w
            for b in batches(0):
                for _ in range(4):
                    theta[row] = down(
                        theta[row], lambda x, b=b, m=mine: p.loss(x, b) + 3 / 2 * far(x, m), LR
                    )
                mine = {n: m - 0.05 * 3 * (m - theta[row][n]) for n, m in mine.items()}
            ends.append((share, mine))
        w = {n: 0.2 * t + 0.8 * averaged(ends)[n] for n, t in w.items()}
    compare(played(algorithm), w, theta)


def test_fedamp():
    algorithm = alg.FedAMP(lam=0.3, sigma=0.5, alpha=0.2, **FAST)
    p = Plain(algorithm)
    w = [{n: t[row] for n, t in p.first.local.items()} for row in range(3)]
    there = [False] * 3
    for t in range(ROUNDS):
        before, seen = [*w], [*there]
        for row, _, batches in p.clients(t):
            xi = {
                s: 0.2 * torch.exp(-far(before[row], before[s]) / 0.5) / 0.5
                for s in range(3)
                if s != row and seen[s]
            }
            own = {n: (1 - sum(xi.values())) * t for n, t in before[row].items()}
            u = {n: t + sum(x * before[s][n] for s, x in xi.items()) for n, t in own.items()}
            for b in batches(0):
                w[row] = down(
                    w[row], lambda x, b=b, u=u: p.loss(x, b) + 0.3 / (2 * 0.2) * far(x, u), LR
                )
            there[row] = True
    state = played(algorithm)
    compare(state, {}, w, prefix="")
    assert sorted(there) == sorted(state.memory["clients/there"].tolist())


def test_attention_goes_to_who_is_near_and_there():
    models = {"w": torch.tensor([[0.0, 0.0], [0.0, 1.0], [3.0, 4.0]])}
    rows, there = torch.tensor([2, 0]), torch.tensor([True, False, True])
    xi = attention(models, rows, there, alpha=0.5, sigma=25.0)
    pull = 0.5 / 25 * torch.exp(torch.tensor(-1.0))
    torch.testing.assert_close(xi, torch.tensor([[pull, 0, 1 - pull], [1 - pull, 0, pull]]))


def test_fedem():
    algorithm = alg.FedEM(experts=2, **FAST)
    p = Plain(algorithm)
    w = [{n: t[k] for n, t in select_prefix(p.first.shared, "experts.").items()} for k in (0, 1)]
    pi = [torch.tensor([0.5, 0.5])] * 3
    for t in range(ROUNDS):
        ends = []
        for row, share, batches in p.clients(t):

            def q(x, y, row=row, w=w):
                said = [log_softmax(p.logits(m, x), -1).gather(1, y[:, None])[:, 0] for m in w]
                joint = pi[row] * torch.stack(said, 1).exp()
                return (joint / joint.sum(1, keepdim=True)).detach()

            mine = [*w]
            for x, y in batches(0):
                for k in (0, 1):
                    loss = lambda m, x=x, y=y, k=k: (  # noqa: E731
                        q(x, y)[:, k] * cross_entropy(p.logits(m, x), y, reduction="none")
                    ).mean()
                    mine[k] = down(mine[k], loss, LR)
            ends.append((share, mine, row, q(*p.held(row)).mean(0)))
        for _, _, row, mean in ends:
            pi[row] = mean
        w = [averaged([(share, mine[k]) for share, mine, *_ in ends]) for k in (0, 1)]
    state = played(algorithm)
    for k in (0, 1):
        got = {n: t[k] for n, t in select_prefix(state.shared, "experts.").items()}
        close(w[k], got, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(state.local["pi"], torch.stack(pi), rtol=1e-3, atol=1e-5)
    assert (state.local["pi"] - 0.5).abs().max() > 1e-3
