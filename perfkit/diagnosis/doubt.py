"""A doubt: why a part of a recording cannot be believed, and what it makes unknown."""

import enum
from dataclasses import dataclass, field

import pandas as pd

from perfkit.analysis import completeness, timeline
from perfkit.diagnosis.stored import kept
from perfkit.schema import Column, Table
from perfkit.selection import Part, Selection

NOTABLE = 0.1  # of the time or the launches: such a doubt stands in the verdict (convention)


class Kind(enum.Enum):
    """What makes a recording doubtful; the value is how a table calls it."""

    TOO_LITTLE = "too little work to judge"
    UNSEEN = "work that was not recorded"
    LOST = "lost operations"
    LOST_CALLS = "lost calls of the CPU"
    BEYOND_WORK = "wait beyond the work"
    ENDS_EARLY = "recording ends early"
    BROKEN_TIMES = "broken times"
    NOT_RECORDED = "not recorded, written as 0"
    MESSAGE = "message of the profiler"
    COLLECTOR = "time of the profiler"
    DISTORTED = "distorted by recording"
    ELSEWHERE = "another time or machine"


BESIDE_LOOPS = (Kind.ENDS_EARLY, Kind.UNSEEN, Kind.LOST_CALLS)
OF_TIMES = (
    *(Kind.UNSEEN, Kind.LOST, Kind.BEYOND_WORK, Kind.ENDS_EARLY),
    *(Kind.BROKEN_TIMES, Kind.COLLECTOR),
)


@dataclass(frozen=True)
class Doubt:
    """Why a part of the recording cannot be believed.

    `seen` says what was seen, as a sentence without its full stop; `count` of `total` rows are
    concerned, each of them a `unit` ("launches"). `stretches` (`completeness.STRETCHES`) are
    unknown because of it, cut to the time that is looked at; `unknown_frac` is the share of that
    time which they cover, `touched_frac` the same, or the share of the rows where that is more.
    `remedy` begins with a verb, `consequence` says what perfkit does about it.
    """

    kind: Kind
    seen: str
    count: int
    total: int
    unit: str
    consequence: str
    remedy: str
    touched_frac: float = 0.0
    unknown_frac: float = 0.0
    stretches: pd.DataFrame = field(
        default_factory=completeness.STRETCHES.empty, compare=False, repr=False
    )

    @property
    def text(self) -> str:
        """What a reader of the figures should know, as a note."""
        return f"{self.seen}. {self.consequence}. {self.remedy}."

    @property
    def is_about_times(self) -> bool:
        """Whether it makes times of the GPU doubtful."""
        return self.kind in OF_TIMES

    @property
    def lowers_confidence(self) -> bool:
        """Whether findings that rest on times of the GPU are less sure because of it."""
        return self.is_about_times or self.kind in (Kind.LOST_CALLS, Kind.TOO_LITTLE)

    @property
    def leaves_nothing_sure(self) -> bool:
        """Whether no finding that rests on times of the GPU is more than a guess because of it."""
        return self.spoils_figures or self.kind is Kind.TOO_LITTLE

    @property
    def may_hide_a_loop(self) -> bool:
        """Whether operations between those recorded may be missing, so that what repeats is unknown."""
        return self.kind not in BESIDE_LOOPS

    @property
    def spoils_figures(self) -> bool:
        """Whether a tenth of the time is unknown because of it, or of the rows have times that
        cannot be.
        """
        is_broken = self.kind is Kind.BROKEN_TIMES and self.is_leading
        return is_broken or self.unknown_frac >= NOTABLE

    @property
    def is_leading(self) -> bool:
        """Whether it touches so much that it stands first in the verdict."""
        return self.touched_frac >= NOTABLE


DOUBTS = Table(
    "DOUBTS",
    "a reason not to believe a part of the recording",
    (
        Column("kind", "category", "what makes the recording doubtful"),
        Column("seen", "string", "what was seen"),
        Column("count", "int64", "rows that it concerns", least=0),
        Column("unit", "string", "what the rows are"),
        Column(
            "touched_frac",
            "float64",
            "share of the GPUs' time, or of the lost rows, that it touches",
            0,
            1,
        ),
        Column("unknown_ns", "int64", "time of the GPUs that it makes unknown, ns", least=0),
        Column("remedy", "string", "what to do"),
    ),
    (),
)


@kept
def spans(view: Selection) -> pd.DataFrame:
    """Return the time of each GPU that is looked at, known or not: rank, gpu, start_ns, span_ns."""
    seen = timeline.busy(view.kernels, view.copies, window=view.measured, others=view.other_kernels)
    return seen[["rank", "gpu", "start_ns", "span_ns"]]


def of_ranks(view: Selection, name: str) -> pd.DataFrame:
    """Return a table of the whole run, of the chosen ranks: every GPU and kernel, whichever were
    chosen.
    """
    frame = view.run.table(name)
    return frame[frame["rank"].isin(view.ranks)].reset_index(drop=True) if view.ranks else frame


def operations(view: Selection) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the kernels and the copies of the chosen ranks."""
    return of_ranks(view, "KERNELS"), of_ranks(view, "COPIES")


def touched(view: Selection, stretches: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """Return stretches cut to the time that is looked at, and the share of it that they cover."""
    of = spans(view)
    inside = completeness.within(stretches, of)
    whole = int(of["span_ns"].sum())
    return inside, completeness.length_ns(inside) / whole if whole else 0.0


def is_elsewhere(view: Selection, inside: pd.DataFrame) -> bool:
    """Tell whether a window was chosen that nothing of a doubt lies in."""
    return view.window is not None and inside.empty


def is_chosen(view: Selection) -> bool:
    """Tell whether a person chose the window; that of a loop is perfkit's own."""
    return view.window is not None and view.part is Part.CHOICE
