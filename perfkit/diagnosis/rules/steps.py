"""Rules about what the steps of a program wait for, and what happens once or now and then."""

from perfkit.diagnosis.finding import Objection
from perfkit.diagnosis.rules.advice import FOR_DATA_LOADING
from perfkit.diagnosis.rules.changes import HIDDEN_LOADING
from perfkit.diagnosis.rules.longest_moments import (
    longest_gap,
    longest_pause,
    longest_start_up,
    longest_step,
)
from perfkit.diagnosis.rules.rule import Fact, Hides, Rule, later, now, soon, worth_a_look

SHOW_CHECKPOINT = """\
from torch.distributed.checkpoint import async_save
saving = async_save({"model": model.state_dict()}, checkpoint_id=path)"""

STEADY_STEPS = now(
    "Leave the first steps out of each measurement: choose a window of steady steps with --window",
    when=Fact.STEPS,
)

INPUT = Rule(
    name="input",
    question="Does each step wait for its data?",
    needs=("OPS", "RANGES"),
    evidence=("input_wait_frac", "idle_frac"),
    threshold=(
        "Waiting for the loader: 10 % of the time is worth a look, 30 % is severe (conventions). "
        "Case 1 of the course's chapter waits for 40 %"
    ),
    advice=FOR_DATA_LOADING,
    next="Record the GPU and the loader at the same time: {nsys}",
    reason="each step waited for its data",
    change=HIDDEN_LOADING,
    moment=longest_gap("data_loading"),
)

PREPARATION = Rule(
    name="preparation",
    question="Is the GPU idle while the CPU prepares data?",
    needs=("KERNELS", "OPS"),
    evidence=("preparing_idle_frac",),
    threshold=worth_a_look("Idle time while the CPU prepares data"),
    advice=(
        now("Prepare items in batches instead of one by one"),
        now("Use fast tokenizers and image processors (use_fast=True)"),
        now("Move the preparation into workers of the DataLoader", when=Fact.DATALOADER),
        now("Move the preparation into processes of their own", when=~Fact.DATALOADER),
        soon("Prepare the data once and store the result"),
        soon("Resize and normalise images on the GPU"),
        soon("Cache results that the program needs again"),
        later("Run the preparation on separate machines or GPUs"),
    ),
    next="Time the preparation alone, per batch, and compare it with the step",
    reason="the CPU was preparing data",
    indirect="perfkit recognised the work by the names of functions and ranges",
    moment=longest_gap("host_code"),
)

CHECKPOINTING = Rule(
    name="checkpointing",
    question="Do checkpoints or file writes stop the GPU?",
    needs=("KERNELS",),
    evidence=("checkpoint_frac", "checkpoint_*"),
    target="under 5 %",
    threshold=(
        "perfkit reports 5 % of the time or more; 10 % is worth a look, 30 % is severe "
        "(conventions). The guide asks for 140 GB in 60 s"
    ),
    advice=(
        now(
            (
                "Save asynchronously: torch.distributed.checkpoint.async_save, --async-save of "
                "Megatron"
            ),
            when=Fact.PYTORCH,
            code=SHOW_CHECKPOINT,
        ),
        now(
            "Save checkpoints less often: every sqrt(2 x time to save x mean time between "
            "failures) (Young's formula)"
        ),
        soon("Write to local NVMe and copy to shared storage in the background"),
        soon(
            (
                "Let each rank write its own shard, instead of letting rank 0 write everything "
                "(torch.distributed.checkpoint)"
            ),
            when=~Fact.ONE_GPU,
        ),
        later(
            "Use parallel storage that can store a checkpoint in under a minute (140 GB need "
            "2.3 GB/s)"
        ),
    ),
    next=(
        "Record at least two checkpoints, each in an NVTX range, with the calls that write: {nsys}"
    ),
    reason="checkpoints or file writes stopped the GPU",
    objections=(Objection.ONE_CHECKPOINT,),
    direct_with=("checkpoint_named_frac", "checkpoint_written_frac"),
)

WARM_UP = Rule(
    name="warm_up",
    question="Does the measurement contain warm-up?",
    needs=("KERNELS",),
    evidence=("warm_up_frac", "start_up_frac", "start_up_count"),
    target="0 %",
    threshold=(
        "Warm-up steps take more than 1.5 times the median of the later steps (convention): 10 % "
        "of the time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        STEADY_STEPS,
        now("Record with torch.profiler.schedule(wait=1, warmup=2, active=6)", when=Fact.PYTORCH),
        soon(
            "Keep the results of compilation and autotuning between runs (TORCHINDUCTOR_CACHE_DIR)",
            when=Fact.PYTORCH,
        ),
        later("Keep shapes fixed so that the compiler has no work after the first step"),
    ),
    next=(
        "Choose a window of steady steps: --capture-range=cudaProfilerApi, or the window parameter "
        "of this report"
    ),
    moment=longest_start_up,
    hides=Hides.IF_SEVERE,
    phase="start_up",
)

STEP_LENGTHS = Rule(
    name="step_lengths",
    question="Do the steps of the loop have two lengths?",
    needs=("KERNELS",),
    evidence=("short_step_ns", "long_step_ns"),
    target="one length",
    threshold=(
        "The long steps take 1.5 times as long as the short ones or more, and each kind is 5 % of "
        "the steps (conventions)"
    ),
    advice=(
        now(
            "Find what the long steps do besides: choose one of each kind with --window, and "
            "compare the two reports"
        ),
        soon("Do what only some steps need in another thread, or less often"),
    ),
    next="Give the long and the short steps names (NVTX ranges), and compare their parts: {nsys}",
    moment=longest_step,
)

PAUSES = Rule(
    name="pauses",
    question="Does the program pause between its repetitions?",
    needs=("KERNELS",),
    evidence=("pause_frac",),
    target="none",
    threshold=(
        "A gap is a pause if it alone is half of the idle time, longer pauses left out: 10 % of the "
        "recording is worth a look (conventions)"
    ),
    advice=(
        now("Find what the program does at these times, and whether it must do it there"),
        now(
            "Check whether Python's garbage collector makes these pauses (gc.freeze, gc.disable)",
            when=Fact.PYTHON & Fact.LOOP & Fact.UNOWNED_PAUSES,
        ),
        soon(
            "Do this work before the loop, or in another thread (std::async, or "
            "concurrent.futures.ThreadPoolExecutor)",
            when=Fact.LOOP,
        ),
        soon(
            "Do this work in another thread (std::async, or concurrent.futures.ThreadPoolExecutor)",
            when=~Fact.LOOP,
        ),
    ),
    next="Mark what happens in the pause with an NVTX range, and record its call stacks: {nsys}",
    moment=longest_pause,
    phase="pause",
)

START_UP = Rule(
    name="start_up",
    question="Does the GPU wait for kernels to be loaded or compiled?",
    needs=("KERNELS", "API_CALLS"),
    evidence=("start_up_frac", "start_up_count"),
    target="0 %",
    threshold=(
        "Idle time while kernels are loaded: 10 % of the time is worth a look (convention). A "
        "first launch loads its kernel if it lasts at least 0.1 ms and 10 times the median of the "
        "later launches (convention)"
    ),
    advice=(
        now(
            "Load kernels before the measured part: run a few warm-up steps, or set "
            "CUDA_MODULE_LOADING=EAGER"
        ),
        STEADY_STEPS,
    ),
    next="Record a longer run, or steady steps only: --capture-range=cudaProfilerApi",
    moment=longest_start_up,
)
