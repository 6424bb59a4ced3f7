"""The start page: the six steps of an analysis, and which of them a run can answer.

Functions
---------
steps   a table with a line for each notebook
"""

from __future__ import annotations

from html import escape

import nbformat

from perfkit.format import Shown
from perfkit.readers.nvidia_smi import QUERY
from perfkit.report.notebooks import NOTEBOOKS, answering, folder, title
from perfkit.run import Run

# What it takes to answer a notebook, where no profile of the run is of a tool that says so itself.
RECORD = {
    "1_baseline": "`perfkit baseline gemm` and `copy`, `all_reduce_perf` of nccl-tests, or the log of a training",
    "2_monitoring": f"`{QUERY}` while the program runs",
    "3_system": "`nsys profile --trace=cuda,nvtx --gpu-metrics-devices=all PROGRAM`",
    "3_call_paths": "`hpcrun -e CPUTIME -e gpu=nvidia,pc -t PROGRAM`, then `hpcstruct` and `hpcprof`",
    "4_kernels": "`ncu --set full --launch-count 50 -o report PROGRAM`",
    "5_framework": "a trace of PyTorch's profiler, by the lines that `perfkit record torch` prints",
    "6_compare": "a recording before a change and one after it; name the earlier one in the parameter `baseline`",
}
STYLE = (
    "<style>.perfkit-steps th,.perfkit-steps td{text-align:left!important;white-space:normal!important;"
    "vertical-align:top;padding:.4em 1.2em .4em 0}</style>"
)


def steps(run: Run) -> Shown:
    """Return the notebooks in their order: step, question, and whether the run can answer it, else what to record.

    Parameters
    ----------
    run
        The run at hand.

    Returns
    -------
    Shown
        A table with links to the notebooks, which lie beside the page.

    Examples
    --------
    >>> steps(Run([])).text.splitlines()[0]
    '0 Executive summary: yes'
    """
    able = answering(run)
    rows = [(*_named(name), name, _answer(run, name, name in able)) for name in NOTEBOOKS]
    body = "".join(
        f'<tr><td>{number}</td><td>{_safe(question)}</td><td><a href="{name}.ipynb">{name}</a></td>'
        f"<td>{_safe(answer)}</td></tr>"
        for number, question, name, answer in rows
    )
    head = "".join(f'<th scope="col">{each}</th>' for each in ("step", "question", "notebook", "this run answers it"))
    table = f'{STYLE}<table class="perfkit-steps"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return Shown(table, "\n".join(f"{number} {question}: {answer}" for number, question, _, answer in rows))


def _named(name: str) -> tuple[str, str]:
    """Return a notebook's step and its question."""
    heading = title(nbformat.read(folder() / f"{name}.ipynb", as_version=4))
    question = heading.partition(": ")[2] or heading
    return name.partition("_")[0], question[:1].upper() + question[1:]


def _answer(run: Run, name: str, is_able: bool) -> str:
    """Return yes, or no and what to record: in the words of the profile that lacks it, if there is one."""
    if is_able:
        return "yes"
    own = [f"`{missing.record}`" for missing in run.missing if missing.table in NOTEBOOKS[name]]
    return f"not yet; what it takes: {(own or [RECORD[name]])[0]}"


def _safe(text: str) -> str:
    """Return text as HTML, with what stands between backquotes as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
