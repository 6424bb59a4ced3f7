"""Rules about a program that hangs: which rank the others wait for."""

from collections.abc import Mapping
from typing import Any

from perfkit.diagnosis.rules.rule import Fact, Rule, now, today

OF_DUMPS: Mapping[str, Any] = {"needs": ("ENQUEUED", "GROUPS"), "target": "none"}
NOT_WHY = "dumps show where ranks wait, but not why"
STACKS = "Show what the threads of such a rank do while the program hangs: py-spy dump --pid PID"
AGAIN = (
    "Run the program again with stacks in the dumps: TORCH_NCCL_TRACE_BUFFER_SIZE=20000 "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1, and all ranks' dumps in one folder"
)

HANG_MISMATCH = Rule(
    name="hang_mismatch",
    question="Do ranks of a group call a collective differently?",
    **OF_DUMPS,
    evidence=("hang_mismatch_count",),
    threshold=(
        "Two ranks gave another operation, size, type or order under the same number of the same "
        "group. "
        "Sizes count for all-reduce, all-gather, reduce and reduce-scatter (convention)"
    ),
    advice=(
        today(
            "Let all ranks take the same branches between collectives: look for conditions on the "
            "rank or on the data",
            when=Fact.OTHER_OPERATION,
        ),
        today(
            "Give all ranks batches and parameters of the same sizes, or pad them",
            when=Fact.OTHER_SIZE,
        ),
        today(
            "Give all ranks the same types: the same settings of autocast, and the same dtype of "
            "parameters and buffers",
            when=Fact.OTHER_TYPE,
        ),
        today(
            "Let all ranks give the collectives of a group in one order: from one thread, and not "
            "in the order of a set or of arriving data",
            when=Fact.OTHER_ORDER,
        ),
        now("Test the program with TORCH_DISTRIBUTED_DEBUG=DETAIL, which checks each collective"),
    ),
    next=AGAIN,
    kind="mismatch",
)

HANG_ABSENT = Rule(
    name="hang_absent",
    question="Which rank did not join the operation that hangs?",
    **OF_DUMPS,
    evidence=("hang_absent_count", "hang_waiting_count", "hang_undumped_count"),
    threshold=(
        "Ranks gave a collective, a send or a receive to NCCL that a partner did not give, and "
        "that partner waits for nobody (convention)"
    ),
    advice=(
        today(
            "Look first at the log and the process of every rank that did not join: the others wait"
        ),
        today(STACKS),
        now("Let the job end and restart when a rank stops, instead of waiting for the timeout"),
    ),
    next=AGAIN,
    indirect=NOT_WHY,
    kind="absent",
)

HANG_RING = Rule(
    name="hang_ring",
    question="Do ranks wait for each other in a ring?",
    **OF_DUMPS,
    evidence=("hang_ring_count",),
    threshold=(
        "Each of some ranks waits for the next one, and the last for the first. Where all sends "
        "and receives "
        "have their other half, the oldest pending one of each rank counts (convention)"
    ),
    advice=(
        today(
            "Give the sends and receives that belong together in one call: "
            "torch.distributed.batch_isend_irecv",
            when=Fact.RING_OF_PAIRS,
        ),
        today(
            "Change the order on every other rank: even ranks send and then receive, odd ranks "
            "receive first",
            when=Fact.RING_OF_PAIRS,
        ),
        today("Let all ranks use their groups in the same order", when=~Fact.RING_OF_PAIRS),
    ),
    next=AGAIN,
    kind="ring",
)

HANG_BEHIND = Rule(
    name="hang_behind",
    question="Which GPU stopped finishing collectives before its peers?",
    **OF_DUMPS,
    evidence=("hang_behind_count",),
    threshold=(
        "The oldest pending collective of a rank is older than that of another member of its group "
        "(convention)"
    ),
    advice=(
        today(
            "Check each GPU named here and its node: nvidia-smi -q -d ECC,PERFORMANCE, and dmesg "
            "for Xid errors"
        ),
        today(STACKS),
        now("Leave such a node out of the job, and see whether the hang comes back"),
    ),
    next="Log the GPUs of all nodes while the program runs: {gpu_log}",
    indirect=NOT_WHY,
    kind="behind",
)
