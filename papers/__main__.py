"""The papers' command line: `python -m papers`, and what `make` calls.

Exit codes: 0 for success, 1 for a failure, 2 for wrong arguments, 130 for an interruption.
"""

import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich import print as show
from rich.markup import escape

from companion import claims
from companion import plan as planning
from companion import results as kept_results
from companion.sections import SCALES
from fedlib import paths
from fedlib.values import check_choice, from_code
from fedrun import cli
from papers import named
from papers.registry import REGISTRY

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Reproduce the five papers: run notebooks, plan and train experiments, keep and judge.",
    epilog="An interrupted command continues when given again. For single runs: python -m fedrun.",
)
_ONE_SCALE = f"{', '.join(SCALES[:-1])} or {SCALES[-1]}"
Scale = Annotated[str, typer.Option(help=_ONE_SCALE)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
Only = Annotated[str, typer.Option(help="names or numbers of notebooks, as in 00,01")]
Jobs = Annotated[int, typer.Option(min=0, help="notebooks at once, 0 for one per core")]
Count = Annotated[int, typer.Option(min=0, help="0 for the scale's own")]
Workers = Annotated[int, typer.Option(min=1, help="processes at once")]
_PART = "NAME[:DATASET][@SEEDS][/FIELD=VALUE]"
Sections = Annotated[
    list[str], typer.Option("--section", metavar=_PART, help="parts, in this order")
]
Blocks = Annotated[list[int], typer.Option("--block", help="of the campaign, in this order")]
Fields = Annotated[list[str], typer.Option("--set", metavar="NAME=VALUE")]


@app.command(epilog="[bold]Example[/bold]  figures --only 00,05 --scale standard --seeds 3")
def figures(
    scale: Scale = "quick",
    dataset: Annotated[str, typer.Option(help="one data set instead of the scale's own")] = "",
    seeds: Count = 0,
    rounds: Count = 0,
    device: Device = "auto",
    only: Only = "",
    jobs: Jobs = 0,
    stored: Annotated[bool, typer.Option("--stored", help="train nothing: what is there")] = False,
) -> None:
    """Run notebooks into executed copies and draw their figures into figures/<scale>/.

    Those of one data set, or of other seeds or rounds, have a folder of their own there.
    """
    from companion import notebooks as runner  # only here, as what trains needs no Jupyter

    more: dict[str, Any] = {"only": only, "jobs": jobs, "stored": stored}
    runner.figures(REGISTRY, scale, dataset, seeds, rounds, device, **more)


@app.command(epilog="[bold]Example[/bold]  notebooks --only 07")
def notebooks(only: Only = "", jobs: Jobs = 0) -> None:
    """Run notebooks at quick scale; write their outputs, and verdicts, back to the sources."""
    from companion import notebooks as runner

    runner.refresh(only, jobs)


@app.command()
def verdicts(only: Only = "") -> None:
    """Compare the stored verdicts with those of the figures folder, quick scale."""
    from companion import notebooks as runner

    numbers = [notebook.name[:2] for notebook in runner.select(only)]
    raise typer.Exit(not claims.compare(paths.figures() / "quick", numbers))


@app.command(
    epilog="[bold]Example[/bold]  campaign --scale standard --section fourteen:mnist@3 "
    "--section opt_out --workers 2"
)
def campaign(
    scale: Annotated[str, typer.Option(help=f"{_ONE_SCALE}, by default paper")] = "",
    section: Sections = [],  # noqa: B006
    block: Blocks = [],  # noqa: B006
    device: Device = "auto",
    workers: Workers = 1,
    plan: Annotated[bool, typer.Option("--plan", help="only say what would be trained")] = False,
    address: Annotated[
        str, typer.Option(help="a Ray cluster: auto or HOST:PORT", envvar="RAY_ADDRESS")
    ] = "",
) -> None:
    """Train the runs of a scale, of sections or of blocks that are left; --plan only lists them."""
    how: dict[str, Any] = {"device": device, "workers": workers, "address": address or None}
    planning.campaign(REGISTRY, scale, section, blocks=block, plan=plan, **how)


@app.command()
def blocks() -> None:
    """List the blocks of the campaign: what is stored of each, and what it cost."""
    print(planning.progress(REGISTRY).to_string(float_format="{:.2f}".format))


@app.command()
def results(scale: Scale = "standard") -> None:
    """Keep the finished runs of a scale with the project, in results/."""
    raise typer.Exit(kept_results.main(REGISTRY, scale))


@app.command()
def judge(scale: Scale = "standard") -> None:
    """Judge the claims on the stored runs of a scale: the tables of figures/<scale>, no figures."""
    from papers import claimed  # only here, as it imports every analysis

    print(f"judged the claims of notebooks {', '.join(claimed.write(scale))} at the {scale} scale")


@app.command()
def report() -> None:
    """Write docs/FINDINGS.md, its figure and README's parts from what is stored."""
    from papers import told  # only here, as it needs Jupyter

    told.main()


@app.command(epilog="[bold]Example[/bold]  tasks 001/dirichlet_cifar10 --set alpha=0.1")
def tasks(
    name: Annotated[str, typer.Argument(help="one of them")] = "",
    scale: Scale = "quick",
    options: Fields = [],  # noqa: B006
) -> None:
    """List the papers' settings by name, or show one as the code of its task."""
    if name:
        given = [option.partition("=") for option in options]
        if lacking := [field for field, _, code in given if not code]:
            raise ValueError(f"--set is NAME=VALUE, as in alpha=0.1, and not {lacking[0]!r}")
        print(named.named(name, scale, **{field: from_code(code) for field, _, code in given}))
        return
    if options:
        raise ValueError("--set is for one setting: name it, as in tasks 001/cifar10 --set p=0.6")
    check_choice("scale", scale, SCALES)
    for known in named.names():
        show(f"[bold]{known:24}[/bold] {escape(named.about(known))}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code; an error of this project is a single message."""
    ours = "fedlib", "fedrun", "companion", "papers"
    return cli.main(arguments, app, "python -m papers", ours, wrong=(ValueError,))


if __name__ == "__main__":
    # Let `kill` end this as ^C does: what is trained is stored, and no notebook outlives it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
