"""Features of a client's test examples under several bases: in the plane, and by neighbours."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from scipy import stats
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors

from fedlib.federation import Federation
from fedlib.models import Params

NEIGHBOURS = 5


def embedded(fed: Federation, bases: Mapping[str, Params], client: int) -> pd.DataFrame:
    """Return a client's test examples in the plane, by t-SNE of the features of each base.

    ``bases`` are the leaves ``base.*`` of a model by name, ``client`` is a row. Columns base, x, y,
    label, purity: the accuracy of five nearest neighbours among the other examples in the features
    themselves, which unlike the picture is not a matter of t-SNE.
    """
    held = fed.test.client(client)
    x, labels = fed.test.inputs(held), fed.test.y[held].cpu().numpy()
    parts = []
    for name, base in bases.items():
        with torch.no_grad():
            features = fed.net.features(base, x).cpu().numpy()
        perplexity = min(30.0, (len(held) - 1) / 3)
        plane = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(features)
        rows = {"base": name, "x": plane[:, 0], "y": plane[:, 1], "label": labels}
        parts.append(pd.DataFrame(rows).assign(purity=purity(features, labels)))
    return pd.concat(parts, ignore_index=True)


def purity(features: np.ndarray, labels: np.ndarray) -> float:
    """Return how often five nearest neighbours name an example's label, itself left out.

    ``features [N, D]``, ``labels [N]``, int.
    """
    near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(features)
    others = near.kneighbors(return_distance=False)  # without an argument it leaves each out
    return float((stats.mode(labels[others], axis=1).mode == labels).mean())
