"""The figures of a run, or of a selection of one: what each part of the diagnosis knows of it."""

from perfkit.diagnosis import (
    framework,
    gpus,
    job,
    kernels,
    machine,
    paths,
    phases,
)
from perfkit.diagnosis.extensions import extensions
from perfkit.diagnosis.finding import (
    Figure,
)
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import doubted
from perfkit.diagnosis.timeline_figures import system_figures
from perfkit.run import Run
from perfkit.selection import Selection, select


def figures(run: Run | Selection, *, peaks: str = "") -> dict[str, Figure]:
    """Return the figures of a run, or a selection of one, by their id.

    What it cannot answer is absent. Ids are stable names with the unit as suffix
    (`kernel_busy_frac`, `idle_ns`, ...).
    """
    return dict(_figures(judged(run), peaks=peaks))


@kept
def _figures(view: Selection, *, peaks: str) -> dict[str, Figure]:
    further = [
        *kernels.figures(view, peaks=peaks),
        *paths.figures(view),
        *framework.figures(view, peaks=peaks),
    ]
    further += gpus.figures(view)
    for part in extensions():
        further += part.figures(view)
    further += machine.figures(view, peaks=peaks)
    known = doubted(view, {**system_figures(view), **{figure.id: figure for figure in further}})
    return {**known, **{figure.id: figure for figure in job.figures(view, known, peaks=peaks)}}


def judged(run: Run | Selection) -> Selection:
    """Return what is judged of a run, or of a selection of one: its loop, where no window was chosen and there is one.

    Figures, findings and the verdict speak of it; what is outside is one sentence of the verdict
    (`phases.judged`).
    """
    return phases.selection(run if isinstance(run, Selection) else select(run))
