"""What a result is good for: its model, predictions and scores on new data."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from fedlib import data as datasets
from fedlib.data.arrays import checked, labels_of
from fedlib.data.parquet import encode, warn_of_unknown
from fedlib.data.tables import require_columns, require_same_rows
from fedlib.engine.as_module import module_of
from fedlib.engine.costs import BLOCK
from fedlib.federation import ClientData, Federation
from fedlib.metrics import Evaluation, evaluation
from fedlib.values import check_choice
from fedrun.experiment import Result
from fedrun.files import Mismatch, StoreError
from fedrun.results import path_of
from fedrun.store import RunFolder
from fedrun.train import built, moved


def predict(
    result: Result, features: Any, client: int | str | None = None, *, device: str = "auto"
) -> np.ndarray:
    """Return what a trained model predicts for new examples.

    They are normalised as the data that it was trained on, and texts have its vocabulary.

    Args:
        result: a run whose state is stored.
        features: like the examples of the task's data set: images uint8 ``[N, H, W, C]``, tokens
            ``[N, T]`` or numbers ``[N, ...]``; a table, of any library, has its columns in the same
            order.
        client: whose model, by id or by name; None for what all predict together for a new client.
        device: as for ``run``.

    Returns:
        probabilities, float32 ``[N, classes]``, of the classes that ``result.class_names`` names.

    Raises:
        ValueError: for examples of another kind or shape, and for a client that there is not.
        StoreError: where only the metrics of the run are stored, or nothing any more.

    >>> result = run(tiny)
    >>> digits = data.load("digits")
    >>> predict(result, digits.test.features[:3], client=2).argmax(1).shape
    (3,)
    """
    e, (fed, model) = result.experiment, loaded(result, client, device)
    known, like = datasets.load(e.task.dataset), fed.test.x
    require_columns(features, known.feature_names, "features")
    tokens = True if like.dtype == torch.int32 else False if like.is_floating_point() else None
    given = checked("features", (features, np.zeros(len(features), dtype=int)), tokens).features
    if given.dtype.kind == "f" and like.is_floating_point():
        given = given.astype(known.train.features.dtype, copy=False)
    if given.dtype == object:
        given = encode(given, fed.net.shape[0], known.vocabulary)
        warn_of_unknown(given, "these texts")
    if given.dtype == np.int32 and fed.ranks is not None:
        given = fed.ranks[given]
    x = torch.from_numpy(given)
    if x.dtype != like.dtype or x.shape[1:] != like.shape[1:]:
        wanted = f"{like.dtype} [N, {', '.join(map(str, like.shape[1:]))}]"
        raise ValueError(f"examples must be {wanted} as those known, got {x.dtype} {[*x.shape]}")
    none, scale = np.zeros(0, dtype=np.int64), (fed.test.scale, fed.test.shift)
    table = ClientData(x.to(fed.device), torch.zeros(len(x)), torch.zeros(0, 0), none, *scale)
    parts = torch.arange(len(x), device=fed.device).split(BLOCK)
    with torch.no_grad():
        parts_of = [model(table.inputs(some)).softmax(-1).cpu() for some in parts if len(some)]
    return torch.cat(parts_of).numpy() if parts_of else np.zeros((0, fed.classes), dtype=np.float32)


def evaluate(
    result: Result, data: Any, client: int | str | None = None, *, device: str = "auto"
) -> Evaluation:
    """Return how well a trained model does on new examples.

    Args:
        result: a run whose state is stored.
        data: a pair of features, as for ``predict``, and labels ``[N]``, integers, truth values or
            class names; or a ``Split``. Objects of pandas have one index. Columns that ``data.add``
            takes with them are left out.
        client: whose model, by id or by name; None for what all predict together for a new client.
        device: as for ``run``.

    Returns:
        accuracy, nll, balanced accuracy, F1 and the confusion matrix.

    Raises:
        ValueError: for other examples, for labels that are no class, and for a wrong client.
        StoreError: where only the metrics of the run are stored, or nothing any more.

    >>> found = evaluate(run(tiny), data.load("digits").test, client=2)
    >>> bool(found.confusion.trace() / found.confusion.sum() == found.accuracy)
    True
    """
    pair = (data.features, data.labels) if hasattr(data, "features") else data
    if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
        raise ValueError("data must be a pair: evaluate(result, (features, labels))")
    features, labels = pair[:2]
    require_same_rows(("features", features), ("labels", labels))
    p, names = predict(result, features, client, device=device), result.class_names
    labels = labels.tolist() if hasattr(labels, "tolist") else [*labels]
    if labels and all(isinstance(label, str) for label in labels):
        for label in labels:
            check_choice("class", label, names)
        labels = [names.index(label) for label in labels]
    labels = labels_of(labels)
    if len(labels) != len(p) or not len(p):
        raise ValueError(f"labels must be integers [{len(p)}], got {len(labels)}, and one or more")
    for row in np.flatnonzero(labels >= p.shape[1]):
        got = f"example {row:,} has {labels[row]}"
        raise ValueError(f"labels must be 0 to {p.shape[1] - 1}, and {got}")
    return replace(evaluation(p, labels), class_names=names)


def loaded(result: Result, client: int | str | None, device: str) -> tuple[Federation, nn.Module]:
    """Return a run's federation on a device, and a model of it; see ``Result.model``."""
    e = result.pinned or result.experiment
    here = RunFolder(e)
    try:
        kept = here.restore()
    except Mismatch as error:
        raise StoreError(f"run {e.key} has no model here: {error}") from error
    if kept is None and not here.path.exists() and path_of(e) is None:
        now = "code, data or FEDLIB_RUNS are others than when it was trained, or it was forgotten"
        raise StoreError(f"nothing is stored under {e.key} in {here.path.parent}: {now}")
    if kept is None:
        again = "train it again with run_with_state(experiment)"
        raise StoreError(f"of run {e.key} only metrics are stored: {again}")
    fed = built(e, device)
    return fed, module_of(fed, e.algorithm, moved(kept.state, fed), client)
