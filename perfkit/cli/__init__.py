"""The `perfkit` command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from perfkit.cli.comparing import check, compare
from perfkit.cli.measuring import baseline
from perfkit.cli.messages import Errors, say
from perfkit.cli.recording import record
from perfkit.cli.types import NumbersType, WindowType, WordsType


@click.group(cls=Errors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="perfkit")
def main() -> None:
    """Find out why a GPU program is slow."""


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def inspect(path: Path, as_json: bool) -> None:
    """Say what a profile or folder holds, and what is missing and how to record it."""
    from perfkit.readers import kind
    from perfkit.run import load

    run = load(path)
    content = {
        "schema": 1,  # goes up when a key goes, or means something else
        "profiles": [
            {
                "path": str(p.path),
                "reader": p.reader,
                "kind": kind(p.reader),
                **{
                    k: p.capture[k].astype(object).where(p.capture[k].notna(), None).iloc[0]
                    for k in ("tool", "tool_version", "dur_ns")
                },
                "rows": {name.lower(): len(p.table(name)) for name in p.loaders},
            }
            for p in run.profiles
        ],
        "devices": sorted({str(name) for name in run.devices["name"]}),
        "missing": [{"table": m.table.lower(), "what": m.what, "record": m.record} for m in run.missing],
        "notes": list(run.notes),
    }
    say(json.dumps(content, indent=1) if as_json else _described(content))


def _described(content: dict[str, Any]) -> str:
    from perfkit.format import duration, printable

    lines = []
    for profile in content["profiles"]:
        lasted = f", {duration(profile['dur_ns'])}" if profile["dur_ns"] else ""
        lines += [f"{profile['path']}", f"  {profile['tool']} {profile['tool_version']}".rstrip() + lasted]
        lines += [f"  {rows:>12,} {name}" for name, rows in profile["rows"].items()]
    lines += ["GPUs: " + (", ".join(printable(d, 80) for d in content["devices"]) or "not recorded")]
    lines += [f"missing: {m['what']}\n         record with: {m['record']}" for m in content["missing"]]
    lines += [f"note: {printable(note, 300)}" for note in content["notes"]]
    return "\n".join(lines)


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("report"), show_default=True, help="Folder to make."
)
@click.option("--baseline", type=click.Path(path_type=Path), help="An earlier run to compare with.")
@click.option("--ranks", type=NumbersType(), default=(), help="Ranks, for example 0,8; all if not given.")
@click.option("--gpus", type=NumbersType(), default=(), help="CUDA ordinals, for example 0,2; all if not given.")
@click.option("--window", type=WindowType(), default=None, help="Part of the recording, for example 5s:7s.")
@click.option("--peaks", type=click.Path(path_type=Path), help="CSV file of the GPU's own peaks, for the roofline.")
@click.option("--kernels", default="", help="Text in the kernels' names, or a pattern with * and ?.")
@click.option(
    "--families",
    type=WordsType(),
    default=(),
    metavar="FAMILY,...",
    help="Families of kernels, for example gemm,attention; all if not given.",
)
@click.option("--pdf", is_flag=True, help="Print the page to report.pdf too (needs Chromium).")
@click.option("--published", type=click.Path(path_type=Path), help="JSON of published figures of the call paths.")
@click.option("--keep-paths", is_flag=True, help="Leave paths, user and host name of this machine in the report.")
def report(
    path: Path,
    out: Path,
    window: tuple[int, int] | None,
    **options: Any,
) -> None:
    """Run the notebooks on a profile or folder and write one page, summaries and tables."""
    from perfkit.report import build

    notes: list[str] = []
    try:
        with _bar("report") as progress:
            page = build(path, out, window=window or (), progress=progress, note=notes.append, **options)
    finally:
        for note in notes:
            say(f"note: {note}", err=True)
    say(page)


@contextmanager
def _bar(label: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yield what shows how many steps are done: nothing, unless a person watches."""
    if not sys.stderr.isatty():
        yield lambda done, of, what: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr, item_show_func=lambda what: what or "") as bar:

        def progress(done: int, of: int, what: str) -> None:
            bar.length = of
            bar.update(done - bar.pos, what)

        yield progress


@main.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Working copy of the notebooks; perfkit-lab/NAME OF THE RUN if not given.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--jupyter", multiple=True, help="An option for JupyterLab, for example --jupyter=--port=9999.")
def lab(path: Path | None, folder: Path | None, no_browser: bool, jupyter: tuple[str, ...]) -> None:
    """Open JupyterLab on a working copy of the notebooks, with PATH or the sample run as their profile.

    The first page says which of them the run can answer.
    """
    from perfkit.report.lab import command, description, prepare
    from perfkit.run import load

    if path:
        load(path)
    place = prepare(folder, path)
    click.echo("\n".join(description(place, path)), err=True)
    sys.exit(command(place, [*(["--no-browser"] if no_browser else []), *jupyter]))


@main.command()
@click.argument("name", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make; NAME if not given.")
def sample(name: str | None, out: Path | None) -> None:
    """Copy the sample run NAME into a folder; without NAME, list the samples and what each one shows."""
    from perfkit.report import samples

    if name is not None:
        say(samples.copy(name, out or Path(name), note=lambda text: say(f"note: {text}", err=True)))
        return
    if out is not None:
        raise click.UsageError(f"--out: which sample? Choose from {', '.join(samples.SAMPLES)}.")
    width = max(map(len, samples.SAMPLES))
    say("\n".join(f"{each:<{width}}  {what}" for each, what in samples.SAMPLES.items()))


main.add_command(record)
main.add_command(baseline)
main.add_command(compare)
main.add_command(check)
