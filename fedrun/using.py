"""``predict`` and ``evaluate``: apply the model of a stored run to new data."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedlib import data as datasets
from fedlib.data.arrays import checked, labels_of
from fedlib.data.parquet import encode, warn_of_unknown
from fedlib.data.tables import require_columns, require_same_rows
from fedlib.engine.width import BLOCK
from fedlib.federation import ClientData
from fedlib.metrics import Evaluation, evaluation
from fedlib.values import check_choice, check_type
from fedrun.experiment import Result
from fedrun.store import load_model


def predict(
    result: Result, features: Any, client: int | str | None = None, *, device: str = "auto"
) -> np.ndarray:
    """Return the class probabilities that a trained model predicts for new examples.

    Examples are preprocessed like the training data: with its normalisation and its vocabulary.

    Args:
        result: a run whose final state is stored.
        features: examples of the kind of the task's data set: images uint8 ``[N, H, W, C]``, tokens
            ``[N, T]`` or numbers ``[N, ...]``; a table, of any library, must have the same columns
            in the same order.
        client: id or name of the client whose model is used, or None for the model that a new
            client would use. Default: None.
        device: as for ``run``. Default: "auto".

    Returns:
        probabilities, float32 ``[N, classes]``, in the order of ``result.class_names``.

    Raises:
        ValueError: for examples of another kind or shape, or an unknown client.
        StoreError: if the final state of the run is not stored.

    >>> result = run(tiny)
    >>> digits = data.load("digits")
    >>> predict(result, digits.test.features[:3], client=2).argmax(1).shape
    (3,)
    """
    e = check_type("result", result, Result).experiment
    fed, model = load_model(result.pinned or e, client, device)
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
        wanted = f"{str(like.dtype)[6:]} [N, {', '.join(map(str, like.shape[1:]))}]"
        got = f"{str(x.dtype)[6:]} {[*x.shape]}"
        raise ValueError(f"examples must be {wanted} like the training data, got {got}")
    none, scale = np.zeros(0, dtype=np.int64), (fed.test.scale, fed.test.shift)
    table = ClientData(x.to(fed.device), torch.zeros(len(x)), torch.zeros(0, 0), none, *scale)
    parts = torch.arange(len(x), device=fed.device).split(BLOCK)
    with torch.no_grad():
        parts_of = [model(table.inputs(some)).softmax(-1).cpu() for some in parts if len(some)]
    return torch.cat(parts_of).numpy() if parts_of else np.zeros((0, fed.classes), dtype=np.float32)


def evaluate(
    result: Result, data: Any, client: int | str | None = None, *, device: str = "auto"
) -> Evaluation:
    """Score a trained model on new labelled examples.

    The scores on the run's own test examples are in ``Result.per_client``.

    Args:
        result: a run whose final state is stored.
        data: a pair of features, as for ``predict``, and labels ``[N]``, which are integers,
            booleans or class names; or a ``Split``. pandas objects must have the same index. A
            third element, the columns that ``add_data`` accepts, is ignored.
        client: id or name of the client whose model is used, or None for the model that a new
            client would use. Default: None.
        device: as for ``run``. Default: "auto".

    Returns:
        accuracy, negative log-likelihood, balanced accuracy, F1 and the confusion matrix.

    Raises:
        ValueError: for examples of another kind or shape, labels that are not classes of the data
            set, or an unknown client.
        StoreError: if the final state of the run is not stored.

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
        need = f"one integer for each of the {len(p)} examples, at least one"
        raise ValueError(f"labels must be {need}, got {len(labels)}")
    for row in np.flatnonzero(labels >= p.shape[1]):
        got = f"example {row:,} has {labels[row]}"
        raise ValueError(f"labels must be 0 to {p.shape[1] - 1}, and {got}")
    return replace(evaluation(p, labels), class_names=names)
