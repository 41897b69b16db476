"""Explorers for JupyterLab: thin controls over the same functions that draw the static figures.

An error inside a widget callback would vanish, so every explorer draws once directly when it is
made, and shows later errors in a line of its own.
"""

import re
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from io import BytesIO
from typing import Any

import ipywidgets as w
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import HTML
from matplotlib.figure import Figure

from companion import claims, plotting
from companion.claims import FAILS, HOLDS
from companion.panels import Panel
from fedlib.runs import Experiment, rounds


def claims_table(frame: pd.DataFrame, name: str = "", scale: str = "quick") -> HTML:
    """Return a frame of claims as a table in which verdicts stand out by word and colour.

    With a ``name`` they are also written into ``figures/<scale>``, where the scorecard finds them.
    """
    if name:
        plotting.save_table(frame, name, scale)
    shown = claims.shown(frame)
    formats = {"verdict": lambda v: f'<b style="color:{_COLOURS.get(v, "inherit")}">{v}</b>'}
    with pd.option_context("display.max_colwidth", None):
        table = shown.to_html(index=False, escape=False, formatters=formats, border=0)
    return HTML(re.sub("<(td|th)>", r'<\1 style="text-align:left">', table))


def data_menu(shown: Sequence[Panel], width: str = "22em") -> w.Dropdown:
    """Return a menu of panels by name, whose value is the panel chosen."""
    options = [(p.name, p) for p in shown]
    return w.Dropdown(options=options, description="data", layout={"width": width})


class Explorer(w.VBox):
    """Controls above a figure; where nothing is live, the figure alone as it was at first."""

    def __init__(self, parts: Sequence[w.Widget]) -> None:
        super().__init__(parts)
        self._first = parts[-1].value

    def _repr_mimebundle_(self, **how: Any) -> dict[str, Any]:
        """Return the live view, and for pages without a kernel the first picture."""
        picture = b64encode(self._first).decode()
        still = {"image/png": picture, "text/plain": "Controls: open the notebook in JupyterLab."}
        return {**super()._repr_mimebundle_(**how), **still}


def explorer(draw: Callable[..., Figure], **controls: w.Widget) -> w.VBox:
    """Return controls above a figure: ``draw(**values)`` is called anew when a value changes.

    A page without a kernel shows the first figure. A menu without items, as of panels that the
    chosen data set does not have, leaves only a line that says so.
    """
    for control in controls.values():
        if isinstance(control, w.Dropdown) and not control.options:
            return w.VBox([w.HTML(f"Nothing to explore: no {control.description} to choose from.")])
    status, drawing = w.HTML(), threading.Lock()  # several threads may deliver what controls say
    image = w.Image(format="png", layout={"max_width": "100%", "align_self": "flex-start"})

    def show() -> None:
        figure, png = draw(**{name: c.value for name, c in controls.items()}), BytesIO()
        figure.savefig(png, format="png", dpi="figure")
        plt.close(figure)
        image.value = png.getvalue()

    def redraw(_: object) -> None:
        with drawing:
            try:
                show()
                status.value = ""
            except Exception as error:
                status.value = f"<b>{type(error).__name__}</b>: {escape(str(error))}"

    show()
    for control in controls.values():
        control.observe(redraw, names="value")
    return Explorer([w.HBox(list(controls.values()), layout=_WRAP), status, image])


def watch(experiment: Experiment, settings: Mapping[str, w.Widget] | None = None) -> w.VBox:
    """Return a live view of q(z|y) forming while ``experiment`` trains: play, stop, step, scrub.

    ``settings`` are fields of its algorithm with the widgets that set them; another value trains a
    new run as far as the one before.
    """
    at = w.IntSlider(0, 0, experiment.rounds, description="round", continuous_update=False)
    clock = w.Play(max=experiment.rounds, interval=_FRAME)
    w.link((clock, "value"), (at, "value"))
    live = [LiveRun(experiment)]

    def draw(round: int, **chosen: Any) -> Figure:
        algorithm = replace(experiment.algorithm, **chosen)
        if algorithm != live[0].experiment.algorithm:
            live[0] = LiveRun(replace(experiment, algorithm=algorithm))
        live[0].advance(round)
        return specialisation_frame(live[0], round)

    return Explorer([clock, *explorer(draw, round=at, **(settings or {})).children])


_COLOURS = {HOLDS: "#0173b2", FAILS: "#a8480b"}
_FRAME = 500  # milliseconds between two frames of a live view
_WRAP = w.Layout(flex_flow="row wrap", grid_gap="4px 16px")


class LiveRun:
    """An experiment trained step by step, nothing stored.

    ``history[t]`` is what the algorithm observed after t rounds, by name (scalars, ``[experts]`` or
    ``[items, experts]``).
    """

    def __init__(self, experiment: Experiment, device: str = "auto") -> None:
        self.experiment = experiment
        self.fed = experiment.task.build(experiment.seed, device)
        start = experiment.algorithm.init(self.fed, experiment.seed)
        self._course = rounds(experiment, self.fed, start)
        self.history: list[dict[str, np.ndarray]] = []
        self.advance(0)

    def advance(self, to: int) -> None:
        """Play rounds until ``to`` are completed; StopIteration beyond the experiment's rounds."""
        while len(self.history) <= to:
            state, _, _ = next(self._course)
            seen = self.experiment.algorithm.observe(self.fed, state)
            self.history.append({n: np.asarray(t.cpu()) for n, t in seen.items()})


def specialisation_frame(live: LiveRun, at: int) -> Figure:
    """Return one frame of the live view: q(z|y) after ``at`` rounds, and its entropies so far."""
    # No pyplot: the inline backend would show and close the figure half drawn, from its thread.
    figure = Figure(figsize=(plotting.PAGE, 3.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 2])
    q = live.history[at]["q"]
    left.imshow(q, cmap="Greys", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    left.set(title=f"q(z|y), round {at}", xlabel="expert z", ylabel="label y")
    left.set_xticks(range(q.shape[1]), [str(k + 1) for k in range(q.shape[1])])
    left.set_yticks(range(len(q)), live.fed.class_names)
    told = {"q_entropy": "mean entropy of a row", "q_marginal_entropy": "entropy of the marginal"}
    for name, label in told.items():
        right.plot([float(h[name]) for h in live.history[: at + 1]], label=label)
    most = float(np.log(q.shape[1]))
    right.axhline(most, color="grey", linewidth=0.8, linestyle=":", label="log K")
    limits = {"xlim": (0, live.experiment.rounds), "ylim": (-0.05, 1.05 * max(most, 0.1))}
    right.set(xlabel="communication round", ylabel="nats", **limits)
    figure.legend(fontsize="small", loc="outside lower right", ncols=3)
    return figure
