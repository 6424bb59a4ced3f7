"""Build a report: run the notebooks, then write the page, the summaries and the tables."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat

from perfkit.errors import PerfkitError
from perfkit.hardware import load_peaks
from perfkit.report import html, landing, links, notebooks, privacy, summary
from perfkit.report.pdf import browser, printed
from perfkit.report.places import presented
from perfkit.report.published import published as published_figures
from perfkit.report.record import collect, presentable
from perfkit.run import Run, load
from perfkit.selection import Selection, select
from perfkit.tables import TABLES


def build(
    profile: str | Path,
    out: str | Path,
    *,
    baseline: str | Path | None = None,
    ranks: tuple[int, ...] = (),
    gpus: tuple[int, ...] = (),
    window: tuple[int, ...] = (),
    kernels: str = "",
    families: tuple[str, ...] = (),
    peaks: str | Path | None = None,
    published: str | Path | None = None,
    pdf: bool = False,
    keep_paths: bool = False,
    progress: Callable[[int, int, str], None] = lambda done, of, what: None,
) -> Path:
    """Write a report of a run to a folder and return its page.

    Parameters
    ----------
    profile, baseline
        What `perfkit.load` takes; a baseline is an earlier run to compare with.
    out
        Folder that is made, or replaced if it holds an earlier report.
    ranks, gpus, window, kernels, families
        As in `perfkit.select`.
    peaks
        A CSV file of peaks of GPUs, see `perfkit.hardware.load_peaks`.
    published
        A JSON file of figures published of the program's call paths, see `perfkit.report.against_published`.
    pdf
        Print the page to ``report.pdf`` too, which needs Chromium.
    keep_paths
        Leave absolute paths, user name and host name of this machine in the report; see `perfkit.report.privacy`.
    progress
        Called with the number of finished steps, their total and the name of what just ended.

    Returns
    -------
    Path
        ``index.html``; beside it are ``summary.md``, ``summary.json``, ``notebooks/`` and ``tables/``.

    Raises
    ------
    PerfkitError
        If the input cannot be read, the choice does not fit it, or a notebook fails. Then nothing is
        written: the report is made in a folder of its own and moved to its place when it is whole.
    """
    target = Path(out).absolute()
    _check_target(target)
    view = select(load(profile), ranks=ranks, gpus=gpus, window=window, kernels=kernels, families=families)
    earlier = load(baseline) if baseline else None
    if peaks:
        load_peaks(peaks)
    if published:
        published_figures(Path(published))
    if pdf:
        browser()
    names = notebooks.answering(view.run, earlier)
    parameters = {
        "profile": str(Path(profile).absolute()),
        "baseline": str(Path(baseline).absolute()) if baseline else "",
        "ranks": list(ranks),
        "gpus": list(gpus),
        "window": list(window),
        "kernels": kernels,
        "families": list(families),
        "peaks": str(Path(peaks).absolute()) if peaks else "",
        "published": str(Path(published).absolute()) if published else "",
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        done = _counter(len(names) + 2 + pdf, progress)
        _write(view, earlier, names, parameters, made, done)
        if not keep_paths:
            inputs = {"profile": profile, "baseline": baseline, "peaks": peaks, "published": published}
            privacy.clean(made, inputs)
        if pdf:
            _print(made)
            done("PDF")
        if target.exists():
            shutil.rmtree(target)
        made.chmod(0o755)
        made.rename(target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return target / "index.html"


def _check_target(target: Path) -> None:
    """Refuse to replace anything but an earlier report."""
    if target.exists() and not (target.is_dir() and ((target / "summary.json").exists() or not any(target.iterdir()))):
        raise PerfkitError(f"{target}: exists and is not an earlier report. Choose another --out, or remove it.")


def _counter(total: int, progress: Callable[[int, int, str], None]) -> Callable[[str], None]:
    done: list[str] = []

    def step(what: str) -> None:
        done.append(what)
        progress(len(done), total, what)

    return step


def _write(
    view: Selection,
    earlier: Run | None,
    names: list[str],
    parameters: dict[str, Any],
    made: Path,
    done: Callable[[str], None],
) -> None:
    (made / "notebooks").mkdir()
    executed = notebooks.execute(names, parameters, made / "notebooks", done=done)
    tables = _write_tables(view, earlier, made / landing.FOLDER)
    done("tables")
    kept = {name: presentable(n, _told(name, view.run, earlier)) for name, n in executed.items()}
    linked = landing.Report(presented(executed, kept), frozenset(tables))
    for name, notebook in executed.items():
        nbformat.write(landing.beside(notebook, linked), made / "notebooks" / f"{name}.ipynb")
    found = collect(executed.items())
    summary.write(made, summary.inputs(view, parameters), found, linked)
    sources = ((id, figure["source"]) for id, figure in found.figures.items())
    shown = [(notebooks.title(notebook), notebook) for notebook in landing.page(kept, linked, sources).values()]
    title = f"perfkit: {Path(parameters['profile']).name}"
    (made / "index.html").write_text(html.pages(shown, title=title), encoding="utf-8")
    done("page")


def _print(made: Path) -> None:
    """Write the page as PDF, without the links to files: a PDF would keep where they lay when it was printed."""
    page = made / "print.html"
    page.write_text(links.without_files((made / "index.html").read_text(encoding="utf-8")), encoding="utf-8")
    printed(page, made / "report.pdf")
    page.unlink()


def _told(name: str, run: Run, earlier: Run | None) -> set[str]:
    """Return what was recorded for a notebook to tell: by both runs, where it compares them; and that there are two."""
    if earlier is None:
        return notebooks.recorded(run)
    compares = notebooks.BASELINE in notebooks.NOTEBOOKS[name]
    told = notebooks.recorded(run) & notebooks.recorded(earlier) if compares else notebooks.recorded(run)
    return told | {notebooks.BASELINE}


def _write_tables(view: Selection, earlier: Run | None, folder: Path) -> list[str]:
    """Write the tables that figures rest on, whole, as Parquet, and return their names: figures can be checked.

    They are the run's own, those of the framework's profiler where another tool recorded too, and the baseline's.
    """
    traced = view.framework.run
    runs = {"": view.run, "framework": None if traced is view.run else traced, "baseline": earlier}
    written = []
    for place, run in runs.items():
        for name in TABLES if run else ():
            frame = run.table(name) if run else None
            path = f"{place}/{name}".lstrip("/")
            if frame is None or not len(frame) or (place == "framework" and frame.equals(view.run.table(name))):
                continue
            (folder / place).mkdir(parents=True, exist_ok=True)
            frame.to_parquet(folder / f"{path.lower()}.parquet", compression="zstd", index=False)
            written.append(path)
    return written
