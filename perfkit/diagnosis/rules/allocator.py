"""A rule about memory: PyTorch allocates and frees each tensor by a CUDA call, because its caching allocator is off.

With the allocator a step needs such calls for new sizes only. Without it there is a call to
allocate for most kernels' results, and one to free for each, in every step: three tenths of the
kernels, and eight tenths of what is allocated (conventions). `torch.cuda.empty_cache()` in each
step frees a few large segments, not one for each tensor.
"""

import re
from collections.abc import Iterator, Mapping

from perfkit.analysis.causes import where
from perfkit.analysis.intervals import cut
from perfkit.diagnosis.finding import Figure, Finding, removing
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.advice import EXISTING_BUFFERS
from perfkit.diagnosis.rules.changes import NO_MEMORY_CALLS
from perfkit.diagnosis.rules.rule import Known, Rule, now, tell
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import idle_gaps, idle_of_gpus, is_judged, span_ns
from perfkit.format import percent
from perfkit.names.parsing import library_of
from perfkit.selection import Selection

NOTABLE = 0.1
PER_KERNEL = 0.3
FREED = 0.8
FEWEST = 100
ALLOCATES = re.compile(r"(?:cuda|hip)Malloc(?!Async|Host|Managed)")
FREES = re.compile(r"(?:cuda|hip)Free(?!Async|Host|Array)")


@kept
def per_kernel(view: Selection) -> float:
    """Return the allocations for each kernel, where about as many are freed.

    0 where the allocator keeps memory.
    """
    kernels = cut(view.kernels, view.window)
    if not bool(where(kernels["full_name"], lambda name: library_of(name) == "PyTorch").any()):
        return 0.0
    calls = cut(view.api_calls, view.window)
    allocated = int(where(calls["name"], ALLOCATES.match).sum())
    freed = int(where(calls["name"], FREES.match).sum())
    if allocated < FEWEST or freed < FREED * allocated or allocated < PER_KERNEL * len(kernels):
        return 0.0
    return allocated / len(kernels)


def _claims(view: Selection) -> Mapping[str, float]:
    share = _share(view)
    return {"memory": share} if share >= NOTABLE else {}


@kept
def _share(view: Selection) -> float:
    if not is_judged(view) or idle_gaps(view) is None or not per_kernel(view):
        return 0.0
    return float(idle_of_gpus(view)["memory"].sum() / span_ns(view))


def _allocator_off(view: Selection, known: Known) -> Iterator[Finding]:
    share = _share(view)
    if share < NOTABLE:
        return
    idle = known["idle_memory_frac"]
    ratio = Figure(
        "allocations_per_kernel_ratio",
        "Allocations per kernel",
        per_kernel(view),
        "1",
        "calls that allocate the GPU's memory, for each kernel of the window",
        "KERNELS, API_CALLS",
    )
    text = (
        f"The program allocates memory of the GPU for {ratio.text} of its kernels, and frees as "
        "often. PyTorch's "
    )
    text += "caching allocator keeps memory that tensors free: it is off."
    gain = removing(
        share, "best case: the allocator keeps the memory, and the run saves all of this time"
    )
    title = (
        "Each tensor allocates and frees memory of the GPU, which keeps the GPU idle "
        f"{percent(share)} {of_the_time(view)}"
    )
    yield tell(ALLOCATOR_OFF, title, text, (idle, ratio), gain, is_mean=True)


ALLOCATOR_OFF = Rule(
    name="allocator_off",
    question="Does each tensor allocate and free memory of the GPU?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("idle_memory_frac", "allocations_per_kernel_ratio"),
    target="none in steady steps",
    threshold=(
        "At least 100 calls allocate, for three tenths of the kernels, and eight tenths as many "
        "free. Idle time in these calls: 10 % of the time is worth a look, 30 % is severe "
        "(conventions)"
    ),
    advice=(
        now(
            "Turn PyTorch's caching allocator on: unset PYTORCH_NO_CUDA_MEMORY_CACHING (on "
            "AMD's GPUs PYTORCH_NO_HIP_MEMORY_CACHING)"
        ),
        now(
            "Check that no pluggable allocator replaces it "
            "(torch.cuda.memory.change_current_allocator)"
        ),
        EXISTING_BUFFERS,
    ),
    next=(
        "Print the settings: env | grep MEMORY_CACHING, and record the same steps again without "
        "them"
    ),
    reason="the CPU was allocating and freeing the memory of each tensor",
    at_best=NO_MEMORY_CALLS,
    find=_allocator_off,
    claims=_claims,
)
