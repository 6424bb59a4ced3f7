"""The commands of `perfkit`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from perfkit import options
from perfkit.course.commands import grade, labs
from perfkit.terminal import Errors, progress_bar, say, say_above, say_note

if TYPE_CHECKING:
    from pandas import DataFrame

    from perfkit.run import Run
    from perfkit.selection import Selection

SIMULATED = "Simulated, not measured:"  # above the verdict of such a run
FILE = click.Path(path_type=Path)
PEAKS = click.option("--peaks", type=FILE, help="CSV file of the GPU's own peaks.")
OUT = click.option(
    "--out",
    type=FILE,
    default=Path("baseline.json"),
    show_default=True,
    help="JSON file to make or complete; a CSV file for `perfkit report --peaks` goes next to it.",
)


@click.group(cls=Errors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="perfkit")
def main() -> None:
    """Find out why a GPU program is slow."""
    if any(Path().glob(".*-perfkit-*")):  # what killed commands left in this folder
        from perfkit.report import output

        output.sweep(Path.cwd(), say_note)


@main.command()
@click.argument("paths", type=options.RUN, nargs=-1, required=True, metavar="BEFORE AFTER...")
@click.option(
    "--labels",
    type=options.WORDS,
    default=(),
    metavar="LABEL,...",
    help="A label for each run, for example before,amp,compile; runs with the same label are repeats.",
)
@PEAKS
@click.option("--out", type=FILE, help="Folder to make, with a page and the JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--markdown", type=FILE, help="Markdown file to write, for the comment of a pull request."
)
def compare(
    paths: tuple[Path, ...],
    labels: tuple[str, ...],
    peaks: Path | None,
    out: Path | None,
    as_json: bool,
    markdown: Path | None,
) -> None:
    """Show the differences between two runs, or the effect of each change in a series.

    A run is a profile, a folder of any kind, or a report of one. More than two are a ledger: each
    is compared with the one before it.
    """
    from perfkit.report import comparison, output

    inputs = [*paths, *([peaks] if peaks else [])]
    if out:
        output.check(
            out, comparison.MADE_BY, inputs=inputs, note=say_note
        )  # before time is spent on comparing
    series = comparison.series(_grouped(paths, labels), peaks=str(peaks or ""))
    page = comparison.write(series, out, inputs=inputs, note=say_note) if out else None
    if markdown:
        output.write_file(markdown, comparison.as_markdown(series), first=comparison.MARKDOWN)
    say(comparison.as_json(series).rstrip() if as_json else comparison.text(series))
    if page:
        say(page, err=as_json)


def _grouped(paths: tuple[Path, ...], labels: tuple[str, ...]) -> dict[str, list[Run | Selection]]:
    """Return the runs by their labels in order; without labels by their names, with a number if they share one."""
    from perfkit.report.earlier import given

    if labels and len(labels) != len(paths):
        raise click.UsageError(
            f"--labels: {len(labels)} labels for {len(paths)} runs. Give each run one."
        )
    names = [path.name for path in paths]
    numbered = [f"{number}: {name}" for number, name in enumerate(names, start=1)]
    called = labels or (names if len(set(names)) == len(names) else numbered)
    runs: dict[str, list[Run | Selection]] = {}
    for label, path in zip(called, paths, strict=True):
        runs.setdefault(label or path.name, []).append(given(path))
    return runs


@main.command()
@click.argument("paths", type=options.RUN, nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--baseline",
    "earlier",
    type=options.RUN,
    multiple=True,
    help="A run to compare with, or the report of one; several are repeats.",
)
@click.option("--budget", type=FILE, help="TOML file with the limits of figures.")
@PEAKS
@click.option("--junit", type=FILE, help="JUnit XML file to write.")
@click.option("--json", "as_json", type=FILE, help="JSON file to write.")
@click.option(
    "--markdown", type=FILE, help="Markdown file to write, for the comment of a pull request."
)
def check(
    paths: tuple[Path, ...],
    earlier: tuple[Path, ...],
    budget: Path | None,
    peaks: Path | None,
    junit: Path | None,
    as_json: Path | None,
    markdown: Path | None,
) -> None:
    """Check whether a run is worse than its baseline or over its budget; several runs are repeats.

    The exit status is 1 if something surely got worse, else 2 if perfkit cannot tell of something, else 0.
    """
    from perfkit.diagnosis import explained
    from perfkit.diagnosis.check import check as judge
    from perfkit.report import checked as written
    from perfkit.report import output
    from perfkit.report.earlier import given

    runs = [given(path) for path in paths]
    before = [given(path) for path in earlier]
    checked = judge(runs, before or None, budget, peaks=str(peaks or ""))
    forms = (
        (junit, written.junit, written.JUNIT),
        (as_json, written.as_json, written.JSON),
    )
    for file, content, first in forms:
        if file:
            output.write_file(file, content(checked), first=first)
    if markdown:
        lines = explained.lines(before, runs) if before else explained.EXPLAINED.empty()
        comment = written.as_markdown(checked, lines)
        output.write_file(markdown, comment, first=written.MARKDOWN)
    say(written.text(checked))
    sys.exit(checked.exit_code)


@main.group()
def baseline() -> None:
    """Measure the peaks of this machine, to compare programs with them (needs perfkit[torch])."""


class Recorders(click.Group):
    """The commands of `perfkit record`: its own, and what readers bring by RECORDER."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all."""
        from perfkit.recorders import commands

        return sorted([*commands.COMMANDS, *_recorders()])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; the module of a reader's is imported now."""
        from perfkit.recorders import commands

        own = commands.COMMANDS.get(cmd_name)
        if own is not None or cmd_name not in _recorders():
            return own
        command: click.Command = import_module(_recorders()[cmd_name]).command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take `--all` for the command `all`."""
        if args[:1] == ["--all"]:
            args = ["all", *args[1:]]
        return super().parse_args(ctx, args)


def _recorders() -> dict[str, str]:
    """Return the modules that readers bring, by the names of their commands."""
    from perfkit.readers import offered

    return dict(offered("RECORDER"))  # type: ignore[arg-type]


@main.group(cls=Recorders)
def record() -> None:
    """Record a program with a profiler, and make the report.

    For example: perfkit record nsys -- python train.py
    """


@main.command()
@click.argument("path", type=options.RUN)
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def inspect(path: Path, as_json: bool) -> None:
    """List what a profile or folder holds, what is missing, and how to record it."""
    from perfkit.diagnosis import recording
    from perfkit.readers import kind
    from perfkit.run import load

    run = load(path)
    doubts = recording.table(run)
    content = {
        "schema": 1,  # goes up when a key goes, or means something else
        "profiles": [
            {
                "path": str(p.path),
                "reader": p.reader,
                "kind": kind(p.reader),
                **{
                    k: p.capture[k].astype(object).where(p.capture[k].notna(), None).iloc[0]
                    for k in ("tool", "tool_version", "dur_ns", "traced", "sampled", "platform")
                },
                "rows": {name.lower(): len(p.table(name)) for name in p.loaders},
            }
            for p in run.profiles
        ],
        "devices": sorted({str(name) for name in run.devices["name"]}),
        "missing": [
            {"table": m.table.lower(), "what": m.what, "record": m.record}
            for m in recording.missing(run)
        ],
        "doubts": doubts.astype({"kind": str}).to_dict("records"),
        "notes": list(run.notes),
    }
    say(json.dumps(content, indent=1) if as_json else _described(content))


def _described(content: dict[str, Any]) -> str:
    from perfkit.format import duration, printable

    lines = []
    for profile in content["profiles"]:
        lasted = f", {duration(profile['dur_ns'])}" if profile["dur_ns"] else ""
        lines += [
            f"{profile['path']}",
            f"  {profile['tool']} {profile['tool_version']}".rstrip() + lasted,
        ]
        asked = [
            f"{key}: {profile[key]}" for key in ("traced", "sampled", "platform") if profile[key]
        ]
        lines += [f"  {printable('; '.join(asked), 200)}"] * bool(asked)
        lines += [
            f"  {rows:>12,} {name.replace('_', ' ')}" for name, rows in profile["rows"].items()
        ]
    lines += [
        "GPUs: " + (", ".join(printable(d, 80) for d in content["devices"]) or "not recorded")
    ]
    lines += [
        f"missing: {m['what']}\n         record with: {m['record']}" for m in content["missing"]
    ]
    for doubt in content["doubts"]:
        lines.append(f"doubt: {doubt['kind']}: {printable(doubt['seen'], 300)}. {doubt['remedy']}.")
    lines += [f"note: {printable(note, 300)}" for note in content["notes"]]
    return "\n".join(lines)


@main.command()
@click.argument("paths", type=FILE, nargs=-1, required=True, metavar="PATH...")
@click.option("--out", type=FILE, required=True, metavar="STORE", help="Store to make or complete.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="Processes; one per core if not given, fewer for large files.",
)
@click.option(
    "--dask",
    default="",
    metavar="ADDRESS",
    help="Dask scheduler; `local` starts one (needs perfkit[dask]).",
)
@click.option("--part", type=options.PART, default="1/1", help="Part of a job array, as 3/8.")
@click.option(
    "--rank-regex", default="", help=r"Finds the rank in a path, for example 'report\.(\d+)\.'."
)
def ingest(
    paths: tuple[Path, ...],
    out: Path,
    workers: int | None,
    dask: str,
    part: tuple[int, int],
    rank_regex: str,
) -> None:
    """Read the profiles of many ranks into a store, which every command then takes as a run.

    Run it again to complete a store: files that did not change are kept. Files that cannot be read are named.
    """
    from perfkit import store

    with progress_bar("ingest") as progress:
        made = store.ingest(
            paths,
            out,
            workers=workers or 0,
            dask=dask,
            part=part,
            rank_regex=rank_regex,
            done=lambda number, of: (
                progress(number, of, "files") if number % (1 + of // 20) == 0 else None
            ),
        )
    for refusal in made.refused:
        say_note(f"{refusal.path}: {refusal.reason}")
    say(f"{out}: {made.read} files read, {made.kept} kept, {len(made.refused)} refused")
    sys.exit(2 if made.refused else 0)


@main.command()
@click.argument("path", type=options.RUN)
@click.option("--out", type=FILE, default=Path("report"), show_default=True, help="Folder to make.")
@click.option("--baseline", type=options.RUN, help="An earlier run to compare with.")
@click.option(
    "--ranks", type=options.NUMBERS, default=(), help="Ranks, for example 0,8; all if not given."
)
@click.option(
    "--gpus",
    type=options.NUMBERS,
    default=(),
    help="CUDA ordinals, for example 0,2; all if not given.",
)
@click.option("--window", type=options.WINDOW, help="Part of the recording, for example 5s:7s.")
@click.option("--peaks", type=FILE, help="CSV file of the GPU's own peaks, for the roofline.")
@click.option(
    "--kernels", default="", help="Text in the kernels' names, or a pattern with * and ?."
)
@click.option(
    "--families",
    type=options.WORDS,
    default=(),
    metavar="FAMILY,...",
    help="Families of kernels, for example gemm,attention; all if not given.",
)
@click.option(
    "--pdf",
    is_flag=False,
    flag_value="summary",
    default="",
    type=click.Choice(["", "summary", "all"]),
    metavar="[all]",
    help="Print the first page to report.pdf too, with all the steps; needs Chromium.",
)
@click.option("--published", type=FILE, help="JSON of published figures of the call paths.")
@options.job
@click.option(
    "--keep-paths",
    is_flag=True,
    help="Leave paths, user and host name of this machine in the report.",
)
def report(path: Path, out: Path, window: tuple[int, int] | None, **given: Any) -> None:
    """Run the notebooks on a profile or folder and write pages, summaries and tables.

    What only you know (parameters of the model, tokens per step, price, ...) can also stand in perfkit.toml beside the
    run, in a table [job].
    """
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # more would wait for matrices, each with a core of its own
    from perfkit.report.making import build

    notes: list[str] = []
    try:
        with progress_bar("report") as progress:
            page = build(
                path,
                out,
                window=window or (),
                progress=progress,
                note=notes.append,
                first_page=lambda summary: say_above(_first_page(summary)),
                **given,
            )
    finally:
        for note in notes:
            say_note(note)
    say(page)


def _first_page(summary: Mapping[str, Any]) -> str:
    """Return the verdict of a report and its first actions, as a terminal shows them; empty if there are none."""
    if "verdict" not in summary:
        return ""
    marked = SIMULATED if summary["is_simulated"] else ""
    told = [
        f"{n}. {f['title']}. {f['gain']}".strip()
        for n, f in enumerate(summary["ranking"][:3], start=1)
    ]
    actions = [
        f"   Do first: {f['action']}." if f["action"] else "" for f in summary["ranking"][:3]
    ]
    lines = (line for both in zip(told, actions, strict=True) for line in both)
    return "\n".join(filter(None, [marked, summary["verdict"], *lines]))


@main.command()
@click.argument("path", type=options.RUN, required=False)
@click.option(
    "--folder",
    type=FILE,
    help="Working copy of the notebooks; perfkit-lab/NAME OF THE RUN if not given.",
)
@click.option("--baseline", type=FILE, help="An earlier run to compare with.")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option(
    "--jupyter", multiple=True, help="An option for JupyterLab, for example --jupyter=--port=9999."
)
@click.option(
    "--labs", is_flag=True, help="Open the labs of the course instead, copied to perfkit-lab/labs."
)
def lab(
    path: Path | None,
    folder: Path | None,
    baseline: Path | None,
    no_browser: bool,
    jupyter: tuple[str, ...],
    labs: bool,
) -> None:
    """Open JupyterLab on a working copy of the notebooks, with PATH or the sample run as their profile.

    The first page says which of them the run can answer.
    """
    from perfkit.report.lab import command, description, prepare, prepare_course
    from perfkit.run import load

    options = [*(["--no-browser"] if no_browser else []), *jupyter]
    if labs:
        if path:
            raise click.UsageError("--labs: the labs have their own profiles; leave PATH out.")
        sys.exit(command(prepare_course(folder), options, "lab1_the_gpu"))
    for given in filter(None, (path, baseline)):
        load(given)
    place = prepare(folder, path, baseline)
    click.echo("\n".join(description(place, path)), err=True)
    sys.exit(command(place, options))


main.add_command(grade)
main.add_command(labs)


@main.command()
@click.argument("name", required=False)
@click.option("--out", type=FILE, help="Folder to make; NAME if not given.")
def sample(name: str | None, out: Path | None) -> None:
    """Copy the sample run NAME into a folder; without NAME, list the samples and what each one shows."""
    from perfkit.report import experiments

    if name is not None:
        say(experiments.copy(name, out or Path(name), note=say_note))
        return
    if out is not None:
        raise click.UsageError(
            f"--out: which sample? Choose from {', '.join(experiments.SAMPLES)}."
        )
    width = max(map(len, experiments.SAMPLES))
    say("\n".join(f"{each:<{width}}  {what}" for each, what in experiments.SAMPLES.items()))


@baseline.command("gemm")
@OUT
@click.option(
    "--seconds", type=float, default=2.0, show_default=True, help="Time for each precision."
)
def baseline_gemm(out: Path, seconds: float) -> None:
    """Measure the rate of matrix products in each precision, on the GPU or else the CPU."""
    from perfkit.format import number
    from perfkit.workloads.baseline import ceilings, gemm

    measured, files = _measured(out, "gemm", lambda: gemm(seconds=seconds))
    best = ceilings(measured)
    for precision, rate, is_plateau in zip(
        best["precision"], best["flops_per_s"], best["is_plateau"], strict=True
    ):
        remark = "" if is_plateau else " and still rising: give more --seconds"
        click.echo(f"{precision}: {number(rate / 1e12)} TFLOP/s{remark}")
    say(files)


def _measured(out: Path, name: str, measure: Callable[[], DataFrame]) -> tuple[DataFrame, str]:
    """Measure, and save under a name in `out`, if that can be completed; return the table and the files."""
    from perfkit.workloads.baseline import held, saved

    try:
        held(out)  # before time is spent on measuring
        measured = measure()
        return measured, "\n".join(map(str, saved(out, **{name: measured})))
    except ValueError as e:
        raise click.UsageError(str(e)) from e


@baseline.command("copy")
@OUT
@click.option(
    "--seconds", type=float, default=1.0, show_default=True, help="Time for each direction."
)
def baseline_copy(out: Path, seconds: float) -> None:
    """Measure the bandwidth of copies between host and GPU and inside their memory."""
    from perfkit.format import size
    from perfkit.workloads.baseline import copy

    measured, files = _measured(out, "copy", lambda: copy(seconds=seconds))
    for direction, memory, rate in zip(
        *(measured[c] for c in ("direction", "memory", "bytes_per_s")), strict=True
    ):
        click.echo(f"{direction} {memory}: {size(rate)}/s")
    say(files)


@main.command()
@click.argument("folders", type=FILE, nargs=-1, required=True, metavar="FOLDER...")
def mcp(folders: tuple[Path, ...]) -> None:
    """Answer an agent's questions about the runs in folders (needs perfkit[mcp]).

    A server of the Model Context Protocol on standard input and output. It reads nothing outside the folders.
    """
    from perfkit.agents import serve

    serve(folders)
