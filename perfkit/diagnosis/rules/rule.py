"""What a rule is: one object that holds what its finding asks, needs, rests on and advises.

Each module beside this one holds the rules of a theme. A rule either finds its finding itself
(`find`), or a module of `perfkit.diagnosis` calls `tell` with it, because one analysis tells
several rules.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from re import Pattern

from perfkit.diagnosis.finding import HORIZONS, Figure, Finding, Gain, Objection, severity
from perfkit.diagnosis.rules.changes import Change, Freed
from perfkit.selection import Selection

TODAY, IMMEDIATE, MEDIUM_TERM, LONG_TERM = HORIZONS
WORTH_A_LOOK = "10 % of the time is worth a look, 30 % is severe (conventions)"
Known = Mapping[str, Figure]
Find = Callable[[Selection, Known], Iterator[Finding]]
Claims = Callable[[Selection], Mapping[str, float]]
# Start and duration (ns) of the longest moment of a kind; None where there is none.
Moment = Callable[[Selection], tuple[int, int] | None]


class Fact(Enum):
    """What a run may show, which makes a step of advice sensible or pointless.

    `perfkit.diagnosis.evidence` finds each fact.
    """

    LINK_COPIES = "link_copies"
    PINNED = "pinned"
    SMALL_COPIES = "small_copies"
    TO_CPU = "to_cpu"
    PAGEABLE_TO_CPU = "pageable_to_cpu"
    REDUCED = "reduced"
    NO_MATRIX = "no_matrix"
    LIBRARY_KERNELS = "library_kernels"
    FULL_GRID = "full_grid"
    FULL_OCCUPANCY = "full_occupancy"
    SHARED_MEMORY_LIMITS = "shared_memory_limits"
    REGISTERS_LIMIT = "registers_limit"
    REGISTERS_FREE = "registers_free"
    REGISTERS_FULL = "registers_full"
    FEW_LANES = "few_lanes"
    DRAM_LIMITS = "dram_limits"
    TENSOR_CORES = "tensor_cores"
    MATRIX = "matrix"
    ELEMENTWISE = "elementwise"
    OPENACC = "openacc"
    OPENMP = "openmp"
    OPENMP_THREADS = "openmp_threads"
    CPU_PATHS = "cpu_paths"
    AMD = "amd"
    OCCUPIED = "occupied"
    FEW_BLOCKS_OF_LIBRARY = "few_blocks_of_library"
    GRAPHS = "graphs"
    PYTHON = "python"
    PYTORCH = "pytorch"
    FUSED_ATTENTION = "fused_attention"
    OPTIMIZER = "optimizer"
    OPTIMIZER_LOOP = "optimizer_loop"
    FUSED_OPTIMIZER = "fused_optimizer"
    UNFUSED_ATTENTION = "unfused_attention"
    UNCAPTURABLE = "uncapturable"
    CONVERSIONS = "conversions"
    INFERENCE = "inference"
    ANOMALY = "anomaly"
    COMPILED = "compiled"
    FLOAT64 = "float64"
    FLOAT32_PRODUCTS = "float32_products"
    FLOAT32_CONVOLUTIONS = "float32_convolutions"
    BEFORE_AMPERE = "before_ampere"
    BEFORE_ADA = "before_ada"
    VOLTA = "volta"
    SORTS = "sorts"
    REPEATS = "repeats"
    CONCATENATES = "concatenates"
    EMBEDDING_GRADIENT = "embedding_gradient"
    ONE_HOT = "one_hot"
    ONE_GPU = "one_gpu"
    ONE_STREAM = "one_stream"
    DEVICE_WAITS = "device_waits"
    CALL_PATHS = "call_paths"
    FAR_CARD = "far_card"
    AT_POWER_LIMIT = "at_power_limit"
    HEATED = "heated"
    BETWEEN_NODES = "between_nodes"
    LINKS = "links"
    MPI_SET_UP = "mpi_set_up"
    MPI = "mpi"
    MPI_WAITS = "mpi_waits"
    COUNTERS = "counters"
    STALLS = "stalls"
    LAST_WAVE = "last_wave"
    TIMELINE = "timeline"
    OPERATORS = "operators"
    RANGES = "ranges"
    STACKS = "stacks"
    LOOP = "loop"
    STEPS = "steps"
    IDLE_IN_COPIES = "idle_in_copies"
    UNOWNED_PAUSES = "unowned_pauses"
    TWO_LENGTHS = "two_lengths"
    DATALOADER = "dataloader"
    BACKWARD = "backward"
    GATHERS = "gathers"
    REDUCES = "reduces"
    SENDS = "sends"
    ALL_TO_ALL = "all_to_all"
    HELD_BEFORE = "held_before"
    OLD_GRADIENTS = "old_gradients"
    TENSOR_LIMITS = "tensor_limits"
    OTHER_OPERATION = "other_operation"
    OTHER_SIZE = "other_size"
    OTHER_TYPE = "other_type"
    OTHER_ORDER = "other_order"
    RING_OF_PAIRS = "ring_of_pairs"

    def __and__(self, other: "Fact | Condition") -> "Condition":
        """Return the condition that both hold."""
        return Condition((self,)) & other

    def __invert__(self) -> "Condition":
        """Return the condition that this fact does not hold."""
        return Condition(absent=(self,))


@dataclass(frozen=True)
class Condition:
    """Facts that must hold, and facts that must not: `Fact.PYTORCH & ~Fact.PINNED`."""

    holding: tuple[Fact, ...] = ()
    absent: tuple[Fact, ...] = ()

    def __and__(self, other: "Fact | Condition") -> "Condition":
        """Return the condition that both hold."""
        more = Condition((other,)) if isinstance(other, Fact) else other
        return Condition(self.holding + more.holding, self.absent + more.absent)


ALWAYS = Condition()


class Hides(Enum):
    """When a finding hides what the others say, so that it stands before all of them."""

    NEVER = "never"
    IF_SEVERE = "if severe"
    ALWAYS = "always"


@dataclass(frozen=True)
class Step:
    """Something to do, as `now`, `soon` and `later` make it.

    horizon: at once, for a program that stands still (TODAY), within days (IMMEDIATE), weeks to
    months (MEDIUM_TERM) or quarters (LONG_TERM).
    text: begins with a verb; {nsys}, {ncu}, {torch}, {callers} and {gpu_processes} become commands for the run.
    when: what the run must show; code: an example that shows how.
    """

    horizon: str
    text: str
    when: Condition
    code: str = ""


def today(text: str, *, when: Fact | Condition = ALWAYS, code: str = "") -> Step:
    """Return a step to take at once: the program stands still."""
    return Step(TODAY, text, ALWAYS & when, code)


def now(text: str, *, when: Fact | Condition = ALWAYS, code: str = "") -> Step:
    """Return a step for the next days."""
    return Step(IMMEDIATE, text, ALWAYS & when, code)


def soon(text: str, *, when: Fact | Condition = ALWAYS, code: str = "") -> Step:
    """Return a step for the next weeks or months."""
    return Step(MEDIUM_TERM, text, ALWAYS & when, code)


def later(text: str, *, when: Fact | Condition = ALWAYS) -> Step:
    """Return a step for the next quarters."""
    return Step(LONG_TERM, text, ALWAYS & when)


@dataclass(frozen=True)
class Notebook:
    """The notebook that goes on where a finding leaves off, and what to see there."""

    name: str
    why: str


LINKS = Notebook("1_baseline", "Compare the links with their line rate.")
TIMELINE = Notebook("3_system", "See on a timeline what keeps the GPU from working.")
CALLS = Notebook("3_call_paths", "See which calls lead to this.")
KERNELS = Notebook("4_kernels", "See why the longest kernels are slow.")
# Where a finding leads that has no notebook of its own, or is read there.
FURTHER = (
    Notebook("5_framework", "See which operators and lines of Python do this."),
    Notebook("3_system", "See on a timeline when this happens."),
)


@dataclass(frozen=True)
class Inside:
    """Code that the CPU is inside while the GPU waits: the pattern of its name, and what to do.

    tries: whether it runs kernels only to see how long they take, which go with it.
    """

    code: Pattern[str]
    remedy: str
    tries: bool = False


@dataclass(frozen=True)
class SlowPath:
    """A slow way to compute something: the pattern of its kernels, what it is, and what to do."""

    kernels: Pattern[str]
    what: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One finding, and all that does not depend on the run.

    What it is:
    name: identifies it; question: what it asks, in words.
    subject: what it is about, in a few words; its name, if nothing is said.
    needs: tables; "A|B" is either.
    evidence: ids of the figures that it rests on; * stands for any text.
    target: what the first figure should be: under a tenth of the time, if nothing is said.
    threshold: from which value on perfkit tells the finding, and who set that value.
    find: yields its finding; None where another module calls `tell`.
    claims: the share of the span, by cause of idle time, that it tells of in place of the rule
    about that cause; None where it claims nothing or another module says it.
    kind, title, label, unit, definition: of a rule that one analysis tells among others: what
    the analysis calls it, and words for its title and figure.

    What follows from it:
    advice: steps, by horizon; next: what to measure next, with commands as in `Step`.
    reason: why the GPU is idle, as a verdict ends: "The A100 was idle because REASON".
    change: what a replay does to predict the gain; None where no replay can.
    at_best: where no change does, what a replay does to see what goes with all of this time.
    shortens_kernels: whether its remedy makes kernels themselves shorter.
    notebook: the one that goes on where the finding leaves off.

    How sure it is:
    objections: checks (`perfkit.diagnosis.confidence`); each that holds lowers the confidence.
    indirect: why the evidence is no direct measurement, which lowers it too.
    direct_with: figures of which one must be known; without, the evidence is indirect as well.

    Where it stands among other findings:
    causes: the causes of idle time that it tells of.
    moment: its longest moment on the timeline.
    vagueness: among findings on the same kernels, the clearer one (0) comes first; None for all
    other findings.
    is_remainder: it tells of what remains when all other findings are mended.
    is_sign: a log shows that a GPU works little, and a timeline shows why: its findings come first.
    hides: when it stands before all others.
    phase: the phase outside of the judged part that it tells of, of `diagnosis.phases`.
    """

    name: str
    question: str
    needs: tuple[str, ...]
    evidence: tuple[str, ...]
    threshold: str
    advice: tuple[Step, ...]
    next: str
    subject: str = ""
    target: str = "under 10 %"
    find: Find | None = None
    claims: Claims | None = None
    kind: str = ""
    title: str = ""
    label: str = ""
    unit: str = ""
    definition: str = ""
    reason: str = ""
    change: Change | None = None
    at_best: Freed | None = None
    shortens_kernels: bool = False
    notebook: Notebook | None = None
    objections: tuple[Objection, ...] = ()
    indirect: str = ""
    direct_with: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    moment: Moment | None = None
    vagueness: int | None = None
    is_remainder: bool = False
    is_sign: bool = False
    hides: Hides = Hides.NEVER
    phase: str = ""

    @property
    def about(self) -> str:
        """What it is about, in a few words."""
        return self.subject or self.name.replace("_", " ")


def worth_a_look(what: str) -> str:
    """Return the threshold of a rule about a share of the time."""
    return f"{what}: {WORTH_A_LOOK}"


def tell(
    rule: Rule,
    title: str,
    text: str,
    evidence: tuple[Figure, ...],
    gain: Gain,
    *,
    level: str = "",
    first: str = "",
    place: str = "",
    is_mean: bool = False,
) -> Finding:
    """Return the finding of a rule, without advice but for a `first` step from its evidence.

    level: how much it matters; that of the share of its gain, if nothing is said.
    place: where in the program, such as a range or a kernel, where that is known.
    is_mean: whether the title gives a mean over all GPUs of the run as if it were of one.
    """
    advice: dict[str, tuple[str, ...]] = {IMMEDIATE: (first,)} if first else {}
    return Finding(
        rule.name,
        title,
        level or severity(gain.share or 0.0),
        text,
        evidence,
        rule.target,
        gain,
        advice,
        threshold=rule.threshold,
        place=place,
        is_mean=is_mean,
    )
