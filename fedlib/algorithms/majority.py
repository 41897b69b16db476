"""The floor under every number: always the commonest label, whatever the example."""

from __future__ import annotations

from torch import Tensor

from fedlib.algorithms.local import LocalTraining
from fedlib.engine import Phase, Prediction, State
from fedlib.federation import Federation
from fedlib.models import Net, Params
from fedlib.values import value

COUNTS, TOGETHER = "counts", "counts_together"  # of labels: a client's, the federation's


@value
class CommonestLabel(LocalTraining):
    """Always the commonest label of a client's own training examples; nothing is trained or sent.

    What it predicts are the client's label shares with one more example of every label, so that
    accuracy is the majority floor (ties go to the smallest label) and nll that of the smoothed
    marginal, finite also for a label that the client does not hold. A newcomer gets the commonest
    label of all examples that take part: what opted out counts at home only. Play one round.
    """

    def init(self, fed: Federation, seed: int, first: State | None = None) -> State:
        """Return the counts of labels: the federation's, and at home every client's own.

        ValueError after a ``first`` stage, which it would forget.
        """
        if first is not None:
            raise ValueError("CommonestLabel goes on from nothing: give it no stage as `after`")
        together = fed.taking_part().train.counts(fed.classes).sum(0)
        return State({TOGETHER: together}, {COUNTS: fed.train.counts(fed.classes)})

    def is_local(self, name: str) -> bool:
        """Return whether these are a client's own counts."""
        return name == COUNTS

    def phases(self) -> tuple[Phase, ...]:
        """Return none: there is nothing to train."""
        return ()

    def encode(self, net: Net, shared: Params, x: Tensor) -> Params:
        """Return one number per example: nothing is looked at."""
        return {"none": x.new_zeros(len(x), 1)}

    def predict(self, net: Net, params: Params, ctx: Params, code: Params) -> Prediction:
        """Return the logarithms of the client's smoothed label shares."""
        return Prediction.single(_log_shares(params[COUNTS], code))

    def ensemble(self, net: Net, shared: Params, code: Params, votes: Params) -> Tensor:
        """Return those of the federation: by examples, where the mean vote would be by clients'."""
        return _log_shares(shared[TOGETHER], code)


def _log_shares(counts: Tensor, code: Params) -> Tensor:
    """Return log (n_y + 1) / (n + classes) of counts ``[classes]`` for every example of a batch."""
    shares = (counts + 1) / (counts.sum() + len(counts))
    return shares.log().expand(len(code["none"]), -1)
