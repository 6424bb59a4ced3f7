"""Rules about memory snapshots: what fills the memory, and why an allocation was refused."""

from collections.abc import Mapping
from typing import Any

from perfkit.diagnosis.rules.rule import Fact, Rule, now, soon

OF_SNAPSHOTS: Mapping[str, Any] = {"needs": ("ALLOCATIONS",)}
AGAIN = (
    "Record the same steps again after the change, and compare the peaks: "
    "torch.cuda.memory._record_memory_history(), then _dump_snapshot(FILE)"
)
CHECKPOINT = soon(
    "Compute activations again in the backward pass instead of keeping them: "
    "torch.utils.checkpoint around each block"
)
SMALLER_BATCH = now(
    "Lower the batch size or the sequence length, and accumulate gradients over several batches"
)
OTHERS = now(
    "Check for other processes on this GPU, and for a limit (set_per_process_memory_fraction)"
)
FRAGMENTS = now("Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")

MEMORY_REFUSED = Rule(
    name="memory_refused",
    question="Why did PyTorch run out of memory?",
    **OF_SNAPSHOTS,
    evidence=(
        "snapshot_refused_bytes",
        "snapshot_refused_held_bytes",
        "snapshot_refused_free_bytes",
    ),
    target="none",
    threshold="The snapshot holds an out-of-memory error (convention)",
    advice=(
        SMALLER_BATCH,
        OTHERS,
        CHECKPOINT,
    ),
    next=AGAIN,
    kind="refused",
)

MEMORY_FRAGMENTED = Rule(
    name="memory_fragmented",
    question="Does the allocator have memory that no tensor can use?",
    needs=("ALLOCATIONS", "RESERVATIONS"),
    evidence=("snapshot_unused_frac", "snapshot_reserved_bytes"),
    target="under 20 %",
    threshold="At its peak, the allocator has 20 % more than tensors hold at theirs (convention)",
    advice=(
        FRAGMENTS,
        now(
            "Allocate large buffers once, before the loop, and keep their sizes equal in all steps"
        ),
    ),
    next=AGAIN,
    indirect="the two peaks may be at different moments",
    kind="fragmented",
)

MEMORY_GROWS = Rule(
    name="memory_grows",
    question="Does the program keep more memory after each step?",
    **OF_SNAPSHOTS,
    evidence=("snapshot_growth_bytes",),
    target="none",
    threshold=(
        "The least memory that is held in a step grows in three steps or more, each time by 1 MiB "
        "or more. The first step does not count: it makes the optimizer state (convention)"
    ),
    advice=(
        now(
            "Keep numbers instead of tensors with their graph: loss.item() or loss.detach() in "
            "logs and lists"
        ),
        now("Look for lists and caches that get a tensor in each step"),
    ),
    next=AGAIN,
    kind="grows",
)

MEMORY_ACTIVATIONS = Rule(
    name="memory_activations",
    question="Do activations fill the memory?",
    **OF_SNAPSHOTS,
    evidence=("snapshot_activations_frac", "snapshot_peak_bytes"),
    target="under 50 %",
    threshold="Activations of forward passes hold half of the memory at its peak (convention)",
    advice=(
        SMALLER_BATCH,
        now("Run without gradients what needs none: torch.no_grad() or torch.inference_mode()"),
        now(
            "Use fused attention (F.scaled_dot_product_attention), which does not keep the "
            "attention matrix"
        ),
        CHECKPOINT,
        soon("Compute in 16-bit types (torch.autocast with bfloat16)"),
    ),
    next=AGAIN,
    kind="activations",
)

MEMORY_STATES = Rule(
    name="memory_states",
    question="Do parameters, gradients and optimizer state fill the memory?",
    **OF_SNAPSHOTS,
    evidence=("snapshot_states_frac", "snapshot_peak_bytes"),
    target="under 50 %",
    threshold=(
        "Parameters, gradients, optimizer state and what was there before the recording hold half "
        "of the memory at its peak (convention)"
    ),
    advice=(
        now(
            "Record from before the model is built, to see what this memory holds: "
            "torch.cuda.memory._record_memory_history()",
            when=Fact.HELD_BEFORE,
        ),
        now(
            "Free gradients before the next step: optimizer.zero_grad(set_to_none=True)",
            when=Fact.OLD_GRADIENTS,
        ),
        now(
            "Use an optimizer with less state: 8-bit Adam, Adafactor or SGD with momentum",
            when=~Fact.HELD_BEFORE,
        ),
        soon(
            "Shard parameters, gradients and optimizer state over the GPUs (FSDP, DeepSpeed ZeRO)"
        ),
        soon("Keep parameters and gradients in bfloat16"),
    ),
    next=AGAIN,
    kind="states",
)
