"""`perfkit compare` and `perfkit check`: what a change did, and whether a run got worse."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from perfkit.cli.messages import say
from perfkit.cli.types import WordsType

if TYPE_CHECKING:
    from perfkit.run import Run

FILE = click.Path(path_type=Path)


@click.command()
@click.argument("paths", type=FILE, nargs=-1, required=True, metavar="BEFORE AFTER...")
@click.option(
    "--labels",
    type=WordsType(),
    default=(),
    metavar="LABEL,...",
    help="A word for each run, for example before,amp,compile; runs of one label are repeats.",
)
@click.option("--peaks", type=FILE, help="CSV file of the GPU's own peaks.")
@click.option("--out", type=FILE, help="Folder to make, with a page and the JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(
    paths: tuple[Path, ...], labels: tuple[str, ...], peaks: Path | None, out: Path | None, as_json: bool
) -> None:
    """Say what differs between two runs, or what each change of a series did.

    A run is a profile or a folder of any kind. More than two are a ledger: each is compared with the one before it.
    """
    from perfkit.report import compared, output

    inputs = [*paths, *([peaks] if peaks else [])]
    if out:
        output.check(out, compared.MADE_BY, inputs=inputs, note=_note)  # before time is spent on comparing
    told = compared.series(_grouped(paths, labels), peaks=str(peaks or ""))
    page = compared.write(told, out, inputs=inputs, note=_note) if out else None
    say(compared.as_json(told).rstrip() if as_json else compared.text(told))
    if page:
        say(page, err=as_json)


def _note(text: str) -> None:
    say(f"note: {text}", err=True)


def _grouped(paths: tuple[Path, ...], labels: tuple[str, ...]) -> dict[str, list[Run]]:
    """Return the runs by their labels in order; without labels by their names, with a number if they share one."""
    from perfkit.run import load

    if labels and len(labels) != len(paths):
        raise click.UsageError(f"--labels: {len(labels)} labels for {len(paths)} runs. Give each run one.")
    names = [path.name for path in paths]
    numbered = [f"{number}: {name}" for number, name in enumerate(names, start=1)]
    called = labels or (names if len(set(names)) == len(names) else numbered)
    runs: dict[str, list[Run]] = {}
    for label, path in zip(called, paths, strict=True):
        runs.setdefault(label or path.name, []).append(load(path))
    return runs


@click.command()
@click.argument("paths", type=FILE, nargs=-1, required=True, metavar="RUN...")
@click.option("--baseline", "earlier", type=FILE, multiple=True, help="A run to compare with; several are repeats.")
@click.option("--budget", type=FILE, help="TOML file with the limits of figures.")
@click.option("--peaks", type=FILE, help="CSV file of the GPU's own peaks.")
@click.option("--junit", type=FILE, help="JUnit XML file to write.")
@click.option("--json", "as_json", type=FILE, help="JSON file to write.")
def check(
    paths: tuple[Path, ...],
    earlier: tuple[Path, ...],
    budget: Path | None,
    peaks: Path | None,
    junit: Path | None,
    as_json: Path | None,
) -> None:
    """Say whether a run is worse than its baseline or over its budget; several runs are repeats.

    The exit status is 0 where nothing got worse, 1 where something did, 2 where something could not be judged.
    """
    from perfkit.diagnosis.check import check as judge
    from perfkit.report import checked, output
    from perfkit.run import load

    runs, before = [load(path) for path in paths], [load(path) for path in earlier]
    found = judge(runs, before or None, budget, peaks=str(peaks or ""))
    forms = ((junit, checked.junit, checked.JUNIT), (as_json, checked.as_json, checked.JSON))
    for file, content, first in forms:
        if file:
            output.write_file(file, content(found), first=first)
    say(checked.text(found))
    sys.exit(found.exit_code)
