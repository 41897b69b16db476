"""How a client's examples lie in the features of one base or another (004, Fig. 1 A)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlib.federation import Federation
from fedlib.models import Params

if TYPE_CHECKING:
    import pandas as pd

NEIGHBOURS = 5


def embedded(
    fed: Federation, bases: Mapping[str, Params], client: int, seed: int = 0
) -> pd.DataFrame:
    """Return a client's test examples in the plane, by t-SNE of the features of each base.

    ``bases`` are the leaves ``base.*`` of a model by name, ``client`` is a row. Columns base, x, y,
    label, purity: the accuracy of five nearest neighbours among the other examples in the features
    themselves, which unlike the picture is not a matter of t-SNE. ValueError for a client with
    fewer than ten test examples.
    """
    import pandas as pd
    from sklearn.manifold import TSNE

    held = fed.test.index[client, : fed.test.sizes[client]]
    if len(held) < 2 * NEIGHBOURS:
        raise ValueError(f"client {client} has {len(held)} test examples, fewer than ten")
    x, labels = fed.test.inputs(held), fed.test.y[held].cpu().numpy()
    parts = []
    for name, base in bases.items():
        with torch.no_grad():
            features = fed.net.features(base, x).cpu().numpy()
        perplexity = min(30.0, (len(held) - 1) / 3)
        plane = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(features)
        rows = {"base": name, "x": plane[:, 0], "y": plane[:, 1], "label": labels}
        parts.append(pd.DataFrame(rows).assign(purity=purity(features, labels)))
    return pd.concat(parts, ignore_index=True)


def neighbours(fed: Federation, least: int = 6) -> tuple[int, int, int]:
    """Return rows of three clients: one of most classes, the most like it, and the least like it.

    The first has ``least`` training examples or more of the most classes; how much alike two are is
    the cosine of their label shares. ValueError for fewer than three clients.
    """
    if fed.clients < 3:
        raise ValueError(f"needs three clients or more, got {fed.clients}")
    shares = fed.shares("label")
    client = int((fed.train.counts(fed.classes) >= least).sum(1).argmax())
    near = (shares * shares[client]).sum(1) / shares.norm(dim=1)
    near[client] = torch.nan
    return client, int(near.nan_to_num(-1).argmax()), int(near.nan_to_num(9).argmin())


def purity(features: np.ndarray, labels: np.ndarray) -> float:
    """Return how often five nearest neighbours name an example's label, itself left out.

    ``features [N, D]``, ``labels [N]``, int.
    """
    from sklearn.neighbors import NearestNeighbors

    near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(features)
    others = near.kneighbors(return_distance=False)  # without an argument it leaves each out
    votes = labels[others]
    kinds = np.unique(labels)
    most = kinds[(votes[:, :, None] == kinds).sum(1).argmax(1)]
    return float((most == labels).mean())
