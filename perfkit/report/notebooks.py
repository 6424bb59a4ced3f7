"""The notebooks: where they lie, which of them a run can answer, and how to run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import nbformat

from perfkit.errors import PerfkitError
from perfkit.format import elided

if TYPE_CHECKING:
    from perfkit.diagnosis.finding import Figure, Finding, Refusal
    from perfkit.report.engine import Kernel
    from perfkit.run import Run

MIME = "application/vnd.perfkit.record+json"
# Begins the tag of a cell that has an answer only where one of the tables, or kinds of captures, it names was recorded.
NEEDS = "needs:"
# Tag of a cell for the person at the notebook: the explorer and the prose about it, and what the summary says already.
LIVE = "live"
BASELINE = "baseline"
UNSHARED = (BASELINE, "published")  # parameters that choose nothing of the run
JOB, RANKS = "job", "ranks"
SUMMARY = "0_executive_summary"
# Notebook, and the tables or kinds of captures of which the run must hold at least one for it to have an answer;
# BASELINE where an earlier run must have been given.
NOTEBOOKS: dict[str, tuple[str, ...]] = {
    SUMMARY: (),
    "1_baseline": ("network", "training", "memory", JOB),
    "2_monitoring": ("monitor",),
    "3_system": ("KERNELS", "COPIES", "API_CALLS", "RANGES", "timeline"),
    "3_call_paths": ("CALLTREE",),
    "4_kernels": ("LAUNCHES",),
    "5_framework": ("OPS",),
    "6_compare": (BASELINE,),
}
START = "start"  # leads to the others; a page for a person, no part of a report
LONGEST = 4000  # characters of an error's message


@dataclass(frozen=True)
class Failure:
    """Why a notebook is missing from a report: the kind of error, its message, and the code of the cell that failed."""

    error: str
    message: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.error}: {self.message}".removesuffix(": ")

    def cleaned(self, clean: Callable[[str], str]) -> Failure:
        """Return the same with other texts."""
        return Failure(clean(self.error), clean(self.message), clean(self.code))


Executed = nbformat.NotebookNode | Failure


def folder() -> Path:
    """Return the folder of the notebooks."""
    return _installed("notebooks")


def sample(name: str = "mlp_a100") -> Path:
    """Return the folder of a sample run."""
    return _installed("data") / name


def _installed(name: str) -> Path:
    """Return a folder inside the installed package, or next to the package in a checkout."""
    package = Path(__file__).parents[1]
    return next(p for p in (package / name, package.parent / name) if p.is_dir())


def recorded(run: Run) -> set[str]:
    """Return the tables that the profiles of a run hold and the kinds of these captures; JOB, and RANKS if several."""
    is_several = len(run.profiles) > 1 and len(set(run.capture["rank"])) > 1
    also = {JOB: bool(run.job), RANKS: is_several}
    return {
        *run.kinds,
        *(name for name in also if also[name]),
        *(name for profile in run.profiles for name in profile.loaders),
    }


def answering(run: Run, baseline: Run | None = None) -> list[str]:
    """Return the names of the notebooks that have something to say about this run, or this and an earlier one."""
    tables = recorded(run) | ({BASELINE} if baseline is not None else set())
    return [name for name, needs in NOTEBOOKS.items() if not needs or tables & set(needs)]


def stored(name: str) -> nbformat.NotebookNode:
    """Return a notebook as it is installed; tests have validated it."""
    notebook: nbformat.NotebookNode = nbformat.v4.reads(
        (folder() / f"{name}.ipynb").read_text(encoding="utf-8")
    )
    return notebook


def title(notebook: nbformat.NotebookNode) -> str:
    """Return the notebook's first heading, which is the question it answers."""
    return str(notebook.cells[0].source).partition("\n")[0].removeprefix("# ")


class Session:
    """A kernel that makes a report: it opens the run, runs notebooks one by one, and writes the pages.

    All that is asked of it happens in a thread of its own, so that an exception such as Ctrl-C,
    which only the main thread sees, ends the kernel at once, with its children.
    """

    def __init__(self) -> None:
        # A notebook imports this module too, and needs no papermill.
        from perfkit.report.engine import Kernel

        self._kernel = Kernel()
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._kernel.kill()
        self._thread.submit(self._kernel.close)
        self._thread.shutdown()

    def ask(self, name: str, **given: Any) -> Any:
        """Return what a function of `perfkit.report.pages` returns in the kernel, and raise what it raises.

        PerfkitError if the kernel ends meanwhile, or none starts.
        """
        return self._thread.submit(_asked, self._kernel, name, given).result()

    def execute(
        self,
        names: list[str],
        parameters: dict[str, Any],
        *,
        done: Callable[[str, Executed], None] = lambda name, executed: None,
    ) -> dict[str, Executed]:
        """Run notebooks of `NOTEBOOKS`, and return each by its name, or why it failed.

        Each gets those `parameters` that its parameters cell has; one that fails leaves the others.
        """
        return self._thread.submit(_executed, self._kernel, names, parameters, done).result()


def _asked(kernel: Kernel, name: str, given: dict[str, Any]) -> Any:
    """Ask a kernel; PerfkitError if it ends meanwhile, or none starts."""
    from perfkit.report import engine

    try:
        return kernel.ask(name, given)
    except engine.DeadKernelError as e:
        what = f"the kernel died: {kernel.ending()}"
        raise PerfkitError(f"report: {what}. Choose a part of the run with --window.") from e
    except engine.NoKernelError as e:
        raise PerfkitError(f"report: the kernel did not start: {e}. Make the report again.") from e


def _executed(
    kernel: Kernel,
    names: list[str],
    parameters: dict[str, Any],
    done: Callable[[str, Executed], None],
) -> dict[str, Executed]:
    """Run notebooks in a kernel that has diagnosed the run."""
    kernel.setup = _setup(names, parameters)
    executed: dict[str, Executed] = {}
    for name in names:
        executed[name] = _one_executed(name, parameters, kernel)
        done(name, executed[name])
    return executed


def _setup(names: Iterable[str], parameters: Mapping[str, Any]) -> str:
    """Return the code that a kernel runs first: it diagnoses the run once for all notebooks."""
    needed = [name for name in names if "diagnosis" in "".join(_sources(name))]
    choices: list[dict[str, Any]] = []
    for name in needed:
        given = _accepted(name, parameters)
        choice = {key: value for key, value in given.items() if value and key not in UNSHARED}
        if "profile" in choice and choice not in choices:
            choices.append(choice)
    return "\n".join(
        ["from perfkit import diagnosis", *(f"diagnosis.prepare(**{each!r})" for each in choices)]
    )


def _sources(name: str) -> list[str]:
    """Return the code of a notebook's cells."""
    return [cell.source for cell in stored(name).cells if cell.cell_type == "code"]


def _one_executed(name: str, parameters: dict[str, Any], kernel: Kernel) -> Executed:
    """Run a notebook, and return it or why it failed."""
    from perfkit.report import engine

    try:
        return engine.execute(folder() / f"{name}.ipynb", _accepted(name, parameters), kernel)
    except engine.PapermillExecutionError as e:
        return Failure(e.ename, elided(e.evalue, LONGEST), e.source)
    except engine.DeadKernelError:
        return Failure("the kernel died", kernel.ending())
    except engine.NoKernelError as e:
        return Failure("the kernel did not start", str(e))


def _accepted(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return those parameters that a notebook has."""
    sources = [
        cell.source for cell in stored(name).cells if "parameters" in cell.metadata.get("tags", [])
    ]
    accepted = {line.partition(":")[0] for source in sources for line in source.split("\n")}
    return {key: value for key, value in parameters.items() if key in accepted}


def summary(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Return the first page that an executed notebook recorded (`record`); empty if it did not."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    recorded = [output["data"][MIME] for output in outputs if MIME in output.get("data", {})]
    return next((dict(each["summary"]) for each in recorded if each.get("summary")), {})


def record(
    figures: Iterable[Figure] = (),
    *,
    findings: Iterable[Finding] = (),
    refusals: Iterable[Refusal] = (),
    summary: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Record what a notebook found, for `summary.json` and whoever runs the notebook without a person.

    `summary` is what `perfkit.report.summary` returns.
    """
    from IPython.display import display

    from perfkit.diagnosis.finding import finite, plain

    findings = list(findings)
    by_id = {figure.id: figure for figure in (*figures, *(e for f in findings for e in f.evidence))}
    content: dict[str, Any] = {
        "figures": [plain(f) for f in by_id.values()],
        "findings": [plain(f) for f in findings],
        "refusals": [plain(r) for r in refusals],
    }
    counts = ", ".join(f"{len(items)} {kind}" for kind, items in content.items() if items)
    told = finite({**content, "summary": dict(summary)})
    display({MIME: told, "text/plain": f"recorded {counts or 'nothing'}"}, raw=True)
