"""A rule about memory: PyTorch allocates and frees each tensor by a CUDA call, because its caching allocator is off.

With the allocator a step needs such calls for new sizes only. Without it there is a call to allocate for most kernels'
results, and one to free for each, in every step: three tenths of the kernels, and eight tenths of what is allocated
(conventions). `torch.cuda.empty_cache()` in each step frees a few large segments, not one for each tensor.
"""

import re
from collections.abc import Iterator, Mapping

from perfkit.analysis.causes import where
from perfkit.analysis.intervals import cut
from perfkit.diagnosis.finding import Figure, Finding, kept, removing, severity
from perfkit.diagnosis.rules.operators import ALLOCATOR_OFF
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.timeline import idle_gaps, idle_of_gpus, span_ns, unrecorded
from perfkit.format import percent
from perfkit.names.parsing import library_of
from perfkit.selection import Selection

NOTABLE, PER_KERNEL, FREED, FEWEST = 0.1, 0.3, 0.8, 100
ALLOCATES = re.compile(r"(?:cuda|hip)Malloc(?!Async|Host|Managed)")
FREES = re.compile(r"(?:cuda|hip)Free(?!Async|Host|Array)")


@kept
def per_kernel(view: Selection) -> float:
    """Return the allocations for each kernel, where about as many are freed; 0 where the allocator keeps memory."""
    kernels = cut(view.kernels, view.window)
    if not bool(where(kernels["full_name"], lambda name: library_of(name) == "PyTorch").any()):
        return 0.0
    calls = cut(view.api_calls, view.window)
    allocated = int(where(calls["name"], ALLOCATES.match).sum())
    freed = int(where(calls["name"], FREES.match).sum())
    if allocated < FEWEST or freed < FREED * allocated or allocated < PER_KERNEL * len(kernels):
        return 0.0
    return allocated / len(kernels)


def idle_causes(view: Selection) -> Mapping[str, float]:
    """Return the share of the span, by cause of idle time, that this rule tells of."""
    share = _share(view)
    return {"memory": share} if share >= NOTABLE else {}


@kept
def _share(view: Selection) -> float:
    if unrecorded(view) or idle_gaps(view) is None or not per_kernel(view):
        return 0.0
    return float(idle_of_gpus(view)["memory"].sum() / span_ns(view))


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what it costs that the caching allocator is off."""
    share = _share(view)
    if share < NOTABLE:
        return
    idle = known["idle_memory_frac"]
    definition = "calls that allocate the GPU's memory, for each kernel of the window"
    ratio = Figure(
        *("allocations_per_kernel_ratio", "Allocations per kernel", per_kernel(view), "1"),
        *(definition, "KERNELS, API_CALLS"),
    )
    text = f"The program allocates memory of the GPU for {ratio.text} of its kernels, and frees as often. PyTorch's "
    text += "caching allocator keeps memory that tensors free: it is off."
    gain = removing(share, "best case: the allocator keeps the memory, and the run saves all of this time")
    title = f"Each tensor allocates and frees memory of the GPU, which keeps the GPU idle {percent(share)} of the time"
    yield tell(ALLOCATOR_OFF, title, severity(share), text, (idle, ratio), gain, is_mean=True)
