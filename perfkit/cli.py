"""The `perfkit` command; what fails outside perfkit ends as one line on standard error, with status 2."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click

from perfkit.errors import PerfkitError
from perfkit.format import elided

if TYPE_CHECKING:
    from pandas import DataFrame

    from perfkit.run import Run

LONGEST = 1500  # characters of a message
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
PATIENCE = 3.0  # s in which a second signal changes nothing: perfkit is ending its kernels


def say(text: object, *, err: bool = False) -> None:
    """Print text; a control or direction character in it, which a terminal would obey, becomes �."""
    click.echo(_clean(str(text)), err=err)


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else "�" for c in text)


class Errors(click.Group):
    """Prints what perfkit refuses, and what fails outside it, as one line on standard error; the status is then 2."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # not all encodings know all that a file may be called
        try:
            with _signals():
                return super().invoke(ctx)
        except PerfkitError as e:
            problem = str(e)
        except click.ClickException as e:
            if e.message == _clean(e.message):
                raise
            raise click.UsageError(elided(e.format_message(), LONGEST), ctx) from e
        except KeyboardInterrupt as e:
            problem = f"stopped by {e}." if str(e) else "stopped."
        except BrokenPipeError:  # whoever reads the output has read enough
            problem = ""
        except OSError as e:
            what = os.strerror(e.errno) if e.errno else str(e)
            problem = f"{os.fsdecode(e.filename)}: {what}." if isinstance(e.filename, str | bytes) else f"{what}."
        except MemoryError as e:
            problem = f"out of memory ({e}). Choose a part of the run with --window, or a machine with more memory."
        return _fail(problem)


UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "µs": 1_000, "ns": 1}


T = TypeVar("T")


class Parsed(click.ParamType[T]):
    """A text that a function reads; the words in which that refuses one, as ValueError, are click's."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        """Return what the text stands for; a default, which is no text, as it is."""
        try:
            return self._parse(value) if isinstance(value, str) else cast(T, value)
        except ValueError as e:
            self.fail(str(e), param, ctx)


def _duration(text: str) -> int:
    """Return a time with its unit, such as 5s or 200ms, as nanoseconds."""
    number = text.rstrip("nmuµs")
    try:
        return round(float(number) * UNITS[text[len(number) :]])
    except (KeyError, ValueError, OverflowError):
        units = ", ".join(UNITS)
        raise ValueError(f"{text!r} is no time with a unit of {units}, for example 5s or 200ms") from None


def _window(text: str) -> tuple[int, int]:
    """Return a window such as 5s:7.5s or 200ms:900ms, as nanoseconds."""
    first, colon, last = text.partition(":")
    if not colon:
        raise ValueError(f"{text!r} is not START:END, for example 5s:7s")
    return _duration(first), _duration(last)


def _numbers(text: str) -> tuple[int, ...]:
    """Return ranks or GPUs such as 0,2."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is no list of numbers, for example 0,2") from None


def _time(text: str) -> float:
    """Return a time such as 2026-01-31T10:00:00Z as seconds since 1970 UTC; its zone is never guessed."""
    with suppress(ValueError):
        return float(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time such as 2026-01-31T10:00:00Z") from None
    if when.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: append Z for UTC, or an offset such as +02:00")
    return when.timestamp()


NUMBERS = Parsed("numbers", _numbers)
WORDS = Parsed("words", lambda text: tuple(word.strip() for word in text.split(",")))
FILE = click.Path(path_type=Path)
PEAKS = click.option("--peaks", type=FILE, help="CSV file of the GPU's own peaks.")
OUT = click.option(
    "--out",
    type=FILE,
    default=Path("baseline.json"),
    show_default=True,
    help="JSON file to make or complete; beside it a CSV file for `perfkit report --peaks`.",
)


@click.group(cls=Errors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="perfkit")
def main() -> None:
    """Find out why a GPU program is slow."""


@main.command()
@click.argument("paths", type=FILE, nargs=-1, required=True, metavar="BEFORE AFTER...")
@click.option(
    "--labels",
    type=WORDS,
    default=(),
    metavar="LABEL,...",
    help="A word for each run, for example before,amp,compile; runs of one label are repeats.",
)
@PEAKS
@click.option("--out", type=FILE, help="Folder to make, with a page and the JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(
    paths: tuple[Path, ...], labels: tuple[str, ...], peaks: Path | None, out: Path | None, as_json: bool
) -> None:
    """Say what differs between two runs, or what each change of a series did.

    A run is a profile or a folder of any kind. More than two are a ledger: each is compared with the one before it.
    """
    from perfkit.report import comparison, output

    inputs = [*paths, *([peaks] if peaks else [])]
    if out:
        output.check(out, comparison.MADE_BY, inputs=inputs, note=_note)  # before time is spent on comparing
    series = comparison.series(_grouped(paths, labels), peaks=str(peaks or ""))
    page = comparison.write(series, out, inputs=inputs, note=_note) if out else None
    say(comparison.as_json(series).rstrip() if as_json else comparison.text(series))
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


@main.command()
@click.argument("paths", type=FILE, nargs=-1, required=True, metavar="RUN...")
@click.option("--baseline", "earlier", type=FILE, multiple=True, help="A run to compare with; several are repeats.")
@click.option("--budget", type=FILE, help="TOML file with the limits of figures.")
@PEAKS
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

    The exit status is 0 where nothing got worse, 1 where something did, 2 where of something it cannot be told.
    """
    from perfkit.diagnosis.check import check as judge
    from perfkit.report import comparison, output
    from perfkit.run import load

    runs, before = [load(path) for path in paths], [load(path) for path in earlier]
    checked = judge(runs, before or None, budget, peaks=str(peaks or ""))
    forms = ((junit, comparison.junit, comparison.JUNIT), (as_json, comparison.check_json, comparison.JSON))
    for file, content, first in forms:
        if file:
            output.write_file(file, content(checked), first=first)
    say(comparison.check_text(checked))
    sys.exit(checked.exit_code)


@main.group()
def baseline() -> None:
    """Measure what this machine can do, to hold programs against it (needs perfkit[torch])."""


@main.group()
def record() -> None:
    """Say or do what records a profile."""


@main.command()
@click.argument("path", type=FILE)
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
@click.argument("path", type=FILE)
@click.option("--out", type=FILE, default=Path("report"), show_default=True, help="Folder to make.")
@click.option("--baseline", type=FILE, help="An earlier run to compare with.")
@click.option("--ranks", type=NUMBERS, default=(), help="Ranks, for example 0,8; all if not given.")
@click.option("--gpus", type=NUMBERS, default=(), help="CUDA ordinals, for example 0,2; all if not given.")
@click.option(
    "--window", type=Parsed("start:end", _window), default=None, help="Part of the recording, for example 5s:7s."
)
@click.option("--peaks", type=FILE, help="CSV file of the GPU's own peaks, for the roofline.")
@click.option("--kernels", default="", help="Text in the kernels' names, or a pattern with * and ?.")
@click.option(
    "--families",
    type=WORDS,
    default=(),
    metavar="FAMILY,...",
    help="Families of kernels, for example gemm,attention; all if not given.",
)
@click.option("--pdf", is_flag=True, help="Print the page to report.pdf too (needs Chromium).")
@click.option("--published", type=FILE, help="JSON of published figures of the call paths.")
@click.option("--keep-paths", is_flag=True, help="Leave paths, user and host name of this machine in the report.")
def report(path: Path, out: Path, window: tuple[int, int] | None, **options: Any) -> None:
    """Run the notebooks on a profile or folder and write one page, summaries and tables."""
    from perfkit.report.pages import build

    notes: list[str] = []
    try:
        with _bar("report") as progress:
            page = build(path, out, window=window or (), progress=progress, note=notes.append, **options)
    finally:
        for note in notes:
            _note(note)
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
@click.argument("path", type=FILE, required=False)
@click.option("--folder", type=FILE, help="Working copy of the notebooks; perfkit-lab/NAME OF THE RUN if not given.")
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
@click.option("--out", type=FILE, help="Folder to make; NAME if not given.")
def sample(name: str | None, out: Path | None) -> None:
    """Copy the sample run NAME into a folder; without NAME, list the samples and what each one shows."""
    from perfkit.report import experiments

    if name is not None:
        say(experiments.copy(name, out or Path(name), note=_note))
        return
    if out is not None:
        raise click.UsageError(f"--out: which sample? Choose from {', '.join(experiments.SAMPLES)}.")
    width = max(map(len, experiments.SAMPLES))
    say("\n".join(f"{each:<{width}}  {what}" for each, what in experiments.SAMPLES.items()))


@baseline.command("gemm")
@OUT
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Time for each precision.")
def baseline_gemm(out: Path, seconds: float) -> None:
    """Measure the rate of matrix products in each precision, on the GPU or else the CPU."""
    from perfkit.format import number
    from perfkit.workloads.baseline import ceilings, gemm

    measured, files = _measured(out, "gemm", lambda: gemm(seconds=seconds))
    best = ceilings(measured)
    for precision, rate, is_plateau in zip(best["precision"], best["flops_per_s"], best["is_plateau"], strict=True):
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
@click.option("--seconds", type=float, default=1.0, show_default=True, help="Time for each direction.")
def baseline_copy(out: Path, seconds: float) -> None:
    """Measure the bandwidth of copies between host and GPU and inside their memory."""
    from perfkit.format import size
    from perfkit.workloads.baseline import copy

    measured, files = _measured(out, "copy", lambda: copy(seconds=seconds))
    for direction, memory, rate in zip(*(measured[c] for c in ("direction", "memory", "bytes_per_s")), strict=True):
        click.echo(f"{direction} {memory}: {size(rate)}/s")
    say(files)


@record.command("torch")
def record_torch() -> None:
    """Print the lines that record a PyTorch program."""
    from perfkit.workloads import SNIPPET

    click.echo(SNIPPET, nl=False)


@record.command("prometheus")
@click.argument("url")
@click.option(
    "--start", type=Parsed("time", _time), required=True, help="For example 2026-01-31T10:00:00Z, or s since 1970."
)
@click.option("--end", type=Parsed("time", _time), help="Now if not given.")
@click.option("--step", type=float, default=15.0, show_default=True, help="Distance of the points in s.")
@click.option("--match", default="", help="Label matchers, for example 'Hostname=~\"node0[12]\"'.")
@click.option("--out", type=FILE, default=Path("gpus.json"), show_default=True, help="File to write.")
def record_prometheus(url: str, start: float, end: float | None, step: float, match: str, out: Path) -> None:
    """Store the GPU metrics of a time range that the Prometheus server at URL has scraped."""
    from perfkit.readers.dcgm import fetch

    if os.path.lexists(out) and not out.is_dir():
        raise PerfkitError(f"{out}: the file is there already. Choose another --out, or remove it.")
    try:
        say(fetch(url, start, time.time() if end is None else end, step, out, match=match))
    except ValueError as e:
        raise click.UsageError(str(e)) from e


def _fail(problem: str) -> NoReturn:
    """Print a problem and exit with status 2."""
    with suppress(OSError):  # a terminal that is closed
        if problem:
            click.echo(f"perfkit: {elided(problem, LONGEST)}", err=True)
    try:
        if sys.stdout:  # it may have been closed before perfkit began
            sys.stdout.flush()
    except OSError:  # Python would flush once more at its end, and complain
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    gc.freeze()  # Python's last look through all objects takes a second on a busy machine
    sys.exit(2)


@contextmanager
def _signals() -> Iterator[None]:
    """Raise KeyboardInterrupt with the name of the first signal that asks perfkit to end.

    A command that ends closes what it has opened, which another signal must not interrupt. After `PATIENCE` a signal
    acts as it does without perfkit. Signals that are ignored, as those of a program under ``nohup`` are, stay so.
    """
    if threading.current_thread() is not threading.main_thread():  # Python allows no other to handle signals
        yield
        return
    began: list[float] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not began:
            began.append(time.monotonic())
            raise KeyboardInterrupt(signal.Signals(number).name)
        if time.monotonic() - began[0] > PATIENCE:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    caught = [number for number in numbers if before[number] not in (signal.SIG_IGN, None)]
    for number in caught:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])
