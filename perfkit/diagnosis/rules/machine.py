"""Rules about the machine: its clock, and the share of its arithmetic that a training uses."""

from collections.abc import Iterator

from perfkit.diagnosis.finding import Figure, Finding, Objection, removing
from perfkit.diagnosis.rules.rule import TIMELINE, Fact, Known, Rule, later, now, soon, tell
from perfkit.format import percent
from perfkit.selection import Selection

# Shares of the arithmetic peak (MFU); `perfkit.diagnosis.machine` says where they come from.
LOW_MFU = 0.35
POOR_MFU = 0.2
GOOD_MFU = 0.55
NOTABLE = 0.1  # of an iteration (convention)


MFU, OPTIMIZER = "baseline_mfu_frac", "baseline_optimizer_frac"


def _each(known: Known, kind: str) -> list[Figure]:
    """Return the figure of each training."""
    return [figure for figure in known.values() if figure.kind == kind]


def _poor_mfu(_: Selection, known: Known) -> Iterator[Finding]:
    for share in _each(known, MFU):
        if share.value < LOW_MFU:
            level = "high" if share.value < POOR_MFU else "medium"
            title = f"The training{share.log} uses {share.text} of the GPU's arithmetic (MFU)"
            reason = f"good trainings of dense models reach {percent(GOOD_MFU)}"
            worst = "worst case: this training cannot get faster"
            gain = removing(1 - share.value / GOOD_MFU, reason, worst=worst)
            text = f"{share.label}: {share.definition}."
            yield tell(TRAINING_MFU, title, text, (share,), gain, level=level)


def _long_optimizer(_: Selection, known: Known) -> Iterator[Finding]:
    for share in _each(known, OPTIMIZER):
        if share.value >= NOTABLE:
            time = known[share.amount]
            title = f"The optimizer step takes {share.text} of an iteration{share.log}"
            text = f"{time.label}: {time.text}. "
            text += "The forward and the backward pass do the GPU's arithmetic."
            gain = removing(share.value, "best case: the run saves the whole step of the optimizer")
            yield tell(TRAINING_OPTIMIZER, title, text, (share, time), gain)


CLOCK_LOWERED = Rule(
    name="clock_lowered",
    question="Did the clock fall while kernels ran?",
    needs=("KERNELS", "SAMPLES"),
    evidence=("clock_low_frac", "clock_ratio", "clock_kernel_ratio"),
    threshold=(
        "The clock is 10 % below its highest value for 10 % of the time in which kernels ran. "
        "Losing 10 % of the time to it is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now("Check power, temperature and the reasons for the low clock ({gpu_state})"),
        now("Check the power limit and whether the clocks are locked ({gpu_state}, {power_limit})"),
        soon(
            "Improve the cooling, or spread hot jobs over nodes; compare runs only at equal clocks"
        ),
    ),
    next=(
        "Record why the clock falls: nvidia-smi "
        "--query-gpu=clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active --format=csv "
        "-lms 100"
    ),
    objections=(Objection.SAME_SPEED,),
    notebook=TIMELINE,
    shortens_kernels=True,
)

TRAINING_MFU = Rule(
    name="training_mfu",
    subject="MFU",
    question="Does the training use little of the GPU's arithmetic (MFU)?",
    needs=("SAMPLES",),
    evidence=("baseline_mfu_frac*",),
    target="35 to 55 %",
    threshold=(
        "Under 35 %, severe under 20 %: published trainings of dense models reach 35 to 55 % "
        "(PaLM, Megatron-LM, Llama 3)"
    ),
    find=_poor_mfu,
    advice=(
        now("Train in bfloat16", when=~Fact.REDUCED),
        now("Raise the micro-batch size as far as the GPU memory allows"),
        now(
            "Call fused attention (attn_implementation='flash_attention_2' or 'sdpa')",
            when=~Fact.FUSED_ATTENTION,
        ),
        soon(
            "Record a few steps and remove the largest wait of the GPU: {nsys}", when=~Fact.TIMELINE
        ),
        soon("Overlap the gradient exchange with the backward pass", when=~Fact.ONE_GPU),
        soon("Recompute activations only if the GPU memory is too small"),
        later(
            "Measure different parallel layouts: tensor parallel inside a node, more micro-batches",
            when=~Fact.ONE_GPU,
        ),
    ),
    next="Record where a few steady steps spend their time: {nsys}",
    indirect=(
        "the log does not show the precision of the computation: perfkit assumes the 16-bit peak"
    ),
    notebook=TIMELINE,
)

TRAINING_OPTIMIZER = Rule(
    name="training_optimizer",
    subject="optimizer",
    question="Does the optimizer take a large part of each iteration?",
    needs=("SAMPLES",),
    evidence=("baseline_optimizer_frac*", "baseline_optimizer_ns*"),
    target="below 10 %",
    threshold="10 % of the iteration; severe from 30 % on (conventions)",
    find=_long_optimizer,
    advice=(
        now(
            "Use a fused optimizer on the GPU (torch.optim.AdamW(fused=True), DeepSpeed FusedAdam)"
        ),
        now(
            "Turn off the optimizer's offload to the CPU if the GPU memory allows it "
            "(offload_optimizer of DeepSpeed)"
        ),
        soon(
            "Overlap the optimizer with the gradient exchange, and shard its state where it is not "
            "(ZeRO stage 1)",
            when=~Fact.ONE_GPU,
        ),
    ),
    next="Record whether the optimizer runs on the GPU or on the CPU: {nsys}",
    notebook=TIMELINE,
)
