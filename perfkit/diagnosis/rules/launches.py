"""Rules about launching: waits for the GPU, small kernels, and launches that wait."""

from collections.abc import Mapping
from typing import Any

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import FOR_LAUNCH, FOR_SYNC
from perfkit.diagnosis.rules.changes import GRAPHS, NO_WAITS
from perfkit.diagnosis.rules.longest_moments import longest_gap
from perfkit.diagnosis.rules.rule import WORTH_A_LOOK, Hides, Rule, now, worth_a_look

SYNCHRONISATION = Rule(
    name="synchronisation",
    question="Does the GPU run out of work because the CPU waits for it?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("sync_idle_frac", "wait_idle_frac", "sync_count"),
    threshold=worth_a_look("Idle time after waits"),
    advice=FOR_SYNC,
    next="Remove one wait and record again; step 5 shows the line that waits ({torch})",
    reason="the CPU waited for the GPU before it launched more work",
    objections=(Objection.WARM_UP,),
    change=NO_WAITS,
    causes=("sync", "launch", "host_code", "kernel_wait"),
    moment=longest_gap("sync"),
)

LAUNCH_BLOCKING = Rule(
    name="launch_blocking",
    question="Does each launch wait until its kernel has ended?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("blocking_launch_frac", "blocking_wait_frac"),
    target="0 %",
    threshold=(
        "At least 95 % of 50 launches or more return only after their kernel has ended (convention)"
    ),
    advice=(
        now(
            "Unset CUDA_LAUNCH_BLOCKING (on AMD's GPUs HIP_LAUNCH_BLOCKING and "
            "AMD_SERIALIZE_KERNEL): they are for debugging"
        ),
        now("Run the program without other tools for debugging, such as compute-sanitizer"),
    ),
    next="Run the same steps without the setting, and compare the two runs",
    moment=longest_gap(),
    hides=Hides.ALWAYS,
)

# What the rules about small kernels share.
TOO_SMALL: Mapping[str, Any] = {
    "evidence": ("launch_pause_frac", "small_op_frac"),
    "threshold": (
        "Half of the kernels run under 10 µs; one launch costs 5 to 10 µs (chapter). Idle time "
        f"between them: {WORTH_A_LOOK}"
    ),
    "advice": FOR_LAUNCH,
    "change": GRAPHS,
    "causes": ("launch", "host_code", "kernel_wait"),
    "moment": longest_gap("launch"),
}

SMALL_OPERATORS = Rule(
    name="small_operators",
    question="Are operators too small for the GPU?",
    **TOO_SMALL,
    needs=("KERNELS", "API_CALLS", "OPS"),
    next="Run the same steps under torch.compile(mode='reduce-overhead'), and compare the two runs",
    reason="launching the small operators takes longer than running them",
    objections=(Objection.WARM_UP, Objection.PROFILED, Objection.BLOCKED),
)

LAUNCH_OVERHEAD = Rule(
    name="launch_overhead",
    question="Are kernels too small for the GPU?",
    **TOO_SMALL,
    needs=("KERNELS", "API_CALLS"),
    next="Run the same steps in a CUDA graph, and compare the two runs",
    reason="launching the small kernels takes longer than running them",
    objections=(Objection.WARM_UP, Objection.BLOCKED),
)
