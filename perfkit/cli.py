"""The `perfkit` command."""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from perfkit.errors import PerfkitError

UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "µs": 1_000, "ns": 1}


class Errors(click.Group):
    """Prints what perfkit refuses as one line on standard error and exits with status 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; see the class."""
        try:
            return super().invoke(ctx)
        except PerfkitError as e:
            click.echo(f"perfkit: {e}", err=True)
            sys.exit(2)


class DurationType(click.ParamType[int]):
    """A time with its unit, such as 5s or 200ms, as nanoseconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return nanoseconds."""
        text = str(value)
        number = text.rstrip("nmuµs")
        try:
            return round(float(number) * UNITS[text[len(number) :]])
        except (KeyError, ValueError, OverflowError):
            self.fail(f"{text!r} is no time with a unit of {', '.join(UNITS)}, for example 5s or 200ms", param, ctx)


class WindowType(click.ParamType[tuple[int, int]]):
    """A window such as 5s:7.5s or 200ms:900ms, as nanoseconds."""

    name = "start:end"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Return (start_ns, end_ns)."""
        first, colon, last = str(value).partition(":")
        if not colon:
            self.fail(f"{value!r} is not START:END, for example 5s:7s", param, ctx)
        time = DurationType()
        return time.convert(first, param, ctx), time.convert(last, param, ctx)


class GpusType(click.ParamType[tuple[int, ...]]):
    """GPUs such as 0,2 as a tuple."""

    name = "gpus"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Return the ordinals."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no list of GPU numbers, for example 0,2", param, ctx)


class WhenType(click.ParamType[float]):
    """A time such as 2026-01-31T10:00:00Z or seconds since 1970, as the latter; its zone is never guessed."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds since 1970 UTC."""
        try:
            return float(value)
        except ValueError:
            pass
        try:
            when = datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is no time such as 2026-01-31T10:00:00Z", param, ctx)
        if when.tzinfo is None:
            self.fail(f"{value!r} has no time zone: append Z for UTC, or an offset such as +02:00", param, ctx)
        return when.timestamp()


@click.group(cls=Errors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="perfkit")
def main() -> None:
    """Find out why a GPU program is slow."""


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON.")
def inspect(path: Path, as_json: bool) -> None:
    """Say what a profile or folder holds, and what is missing and how to record it."""
    from perfkit.run import load

    run = load(path)
    content = {
        "profiles": [
            {
                "path": str(p.path),
                "reader": p.reader,
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
    click.echo(json.dumps(content, indent=1, ensure_ascii=False) if as_json else _described(content))


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
@click.option("--gpus", type=GpusType(), default=(), help="CUDA ordinals, for example 0,2; all if not given.")
@click.option("--window", type=WindowType(), default=None, help="Part of the recording, for example 5s:7s.")
@click.option("--peaks", type=click.Path(path_type=Path), help="CSV file of the GPU's own peaks, for the roofline.")
@click.option("--kernels", default="", help="Text in the kernels' names, or a pattern with * and ?.")
@click.option("--published", type=click.Path(path_type=Path), help="JSON of published figures of the call paths.")
def report(
    path: Path,
    out: Path,
    baseline: Path | None,
    gpus: tuple[int, ...],
    window: tuple[int, int] | None,
    kernels: str,
    peaks: Path | None,
    published: Path | None,
) -> None:
    """Run the notebooks on a profile or folder and write one page, summaries and tables."""
    from perfkit.report import build

    with click.progressbar(length=1, label="report", file=sys.stderr, item_show_func=lambda what: what or "") as bar:

        def progress(done: int, of: int, what: str) -> None:
            bar.length = of
            bar.update(done - bar.pos, what)

        page = build(
            path,
            out,
            baseline=baseline,
            gpus=gpus,
            window=window or (),
            kernels=kernels,
            peaks=peaks,
            published=published,
            progress=progress,
        )
    click.echo(page)


@main.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("perfkit-lab"),
    show_default=True,
    help="Working copy of the notebooks.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--jupyter", multiple=True, help="An option for JupyterLab, for example --jupyter=--port=9999.")
def lab(path: Path | None, folder: Path, no_browser: bool, jupyter: tuple[str, ...]) -> None:
    """Open JupyterLab on a working copy of the notebooks, with PATH or the sample run as their profile."""
    from perfkit.report.lab import command, prepare
    from perfkit.run import load

    if path:
        load(path)
    prepare(folder, path)
    sys.exit(command(folder, [*(["--no-browser"] if no_browser else []), *jupyter]))


@main.command()
@click.argument("name")
@click.option("--out", type=click.Path(path_type=Path), help="Folder to make; data/NAME if not given.")
def simulate(name: str, out: Path | None) -> None:
    """Write a simulated run with known truth (for example mlp_a100)."""
    from perfkit.simulate import SIMULATIONS

    if name not in SIMULATIONS:
        raise PerfkitError(f"{name}: no such simulation. Choose from {', '.join(sorted(SIMULATIONS))}.")
    click.echo(SIMULATIONS[name](out or Path("data", name)))


@main.group()
def record() -> None:
    """Say or do what records a profile."""


@record.command("torch")
def record_torch() -> None:
    """Print the lines that record a PyTorch program."""
    from perfkit.workloads.record import SNIPPET

    click.echo(SNIPPET, nl=False)


@record.command("prometheus")
@click.argument("url")
@click.option("--start", type=WhenType(), required=True, help="For example 2026-01-31T10:00:00Z, or s since 1970.")
@click.option("--end", type=WhenType(), help="Now if not given.")
@click.option("--step", type=float, default=15.0, show_default=True, help="Distance of the points in s.")
@click.option("--match", default="", help="Label matchers, for example 'Hostname=~\"node0[12]\"'.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("gpus.json"), show_default=True, help="File to write."
)
def record_prometheus(url: str, start: float, end: float | None, step: float, match: str, out: Path) -> None:
    """Store the GPU metrics of a time range that the Prometheus server at URL has scraped."""
    from perfkit.readers.dcgm.prometheus import fetch

    try:
        click.echo(fetch(url, start, time.time() if end is None else end, step, out, match=match))
    except ValueError as e:
        raise click.UsageError(str(e)) from e


@record.command("monitor")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="CSV file to make.")
@click.option("--interval", type=DurationType(), default="1s", show_default=True, help="Time from sample to sample.")
@click.option("--for", "dur_ns", type=DurationType(), help="For example 60s; until Ctrl-C if not given.")
@click.option("--gpus", type=GpusType(), default=(), help="NVML's indices, for example 0,2; all if not given.")
def record_monitor(out: Path, interval: int, dur_ns: int | None, gpus: tuple[int, ...]) -> None:
    """Sample the NVIDIA GPUs of this machine into a log (needs perfkit[live])."""
    from perfkit.workloads.monitor import gpu_log

    try:
        lines = gpu_log(out, interval_ns=interval, dur_ns=dur_ns, gpus=gpus)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    click.echo(f"{out}: {lines} lines")


@main.group()
def baseline() -> None:
    """Measure what this machine can do, to hold programs against it (needs perfkit[torch])."""


OUT = click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("baseline.json"),
    show_default=True,
    help="JSON file to make or complete; beside it a CSV file for `perfkit report --peaks`.",
)


@baseline.command("gemm")
@OUT
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Time for each precision.")
def baseline_gemm(out: Path, seconds: float) -> None:
    """Measure the rate of matrix products in each precision, on the GPU or else the CPU."""
    from perfkit.format import number
    from perfkit.workloads.baseline import ceilings, gemm, held, saved

    try:
        held(out)  # before time is spent on measuring
        measured = gemm(seconds=seconds)
        files = saved(out, gemm=measured)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    best = ceilings(measured)
    for precision, rate, is_plateau in zip(best["precision"], best["flops_per_s"], best["is_plateau"], strict=True):
        remark = "" if is_plateau else " and still rising: give more --seconds"
        click.echo(f"{precision}: {number(rate / 1e12)} TFLOP/s{remark}")
    click.echo("\n".join(map(str, files)))


@baseline.command("copy")
@OUT
@click.option("--seconds", type=float, default=1.0, show_default=True, help="Time for each direction.")
def baseline_copy(out: Path, seconds: float) -> None:
    """Measure the bandwidth of copies between host and GPU and inside their memory."""
    from perfkit.format import size
    from perfkit.workloads.baseline import copy, held, saved

    try:
        held(out)  # before time is spent on measuring
        measured = copy(seconds=seconds)
        files = saved(out, copy=measured)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    for direction, memory, rate in zip(*(measured[c] for c in ("direction", "memory", "bytes_per_s")), strict=True):
        click.echo(f"{direction} {memory}: {size(rate)}/s")
    click.echo("\n".join(map(str, files)))
