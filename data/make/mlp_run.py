"""How does the lab's run of the MLP lie in time, so that all its printed figures hold?

The script is the naive one: pageable memory, ``loss.item()`` in every step, one stream. The counts of Table 5 of the
lab report fix the rest: the first training step has no momentum yet and clones the gradients, the last one has 96
images, the last test batch has 16, and one forward pass follows at the end. A kernel's slot says which of its launches
in the step it is; slot 0 is the slowest. Times are int64 ns since the start of the capture. A segment is a number of
steps of one plan. How long the host loads data before each step is what makes the whole fit.
"""

from collections import defaultdict
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from make import timeline
from make.kernels import TABLE_5
from make.timeline import Int, Laid, Op, Plan, Times, draw_durations, lay_out

PARAMETER_BYTES = (802_816, 1_024, 131_072, 512, 5_120, 40)
IMAGE_BYTES = 784 * 4
LABEL_BYTES = 8
SEMAPHORE_BYTES = 512

FORWARD = "gemm_tn:0 split_k relu:0 gemm_tn:1 relu:1 gemm_tn:2 relu:2 softmax"
FORWARD_16 = "gemm_tn_wide split_k relu:0 gemm_tn_64 relu:1 gemm_small relu:2 softmax"
BACKWARD = (
    "fill:1 fill:0 nll_back softmax_back relu_back:2 gemm_nn_128 gemm_nt:1 bias_sum:1 "
    "relu_back:1 gemm_nn gemm_nt:0 bias_sum:0 relu_back:0 gemm_nt_64 memset bias_sum_wide"
)
OPTIMIZER = "sgd_mul sgd_add:1 sgd_add:0"


def _launches(phase: str, names: str, thread: int = 0) -> Plan:
    ops = []
    for word in names.split():
        key, _, slot = word.partition(":")
        if key == "memset":
            ops.append(Op("memset", key, phase, thread=thread, size=SEMAPHORE_BYTES))
        else:
            ops.append(Op("kernel", key, phase, int(slot or 0), thread))
    return tuple(ops)


def copies(phase: str, direction: str, *sizes: int) -> Plan:
    """Return copies as ``tensor.to(device)`` and ``tensor.item()`` make them: each is waited for."""
    return tuple(
        op
        for size in sizes
        for op in (
            Op("copy", direction, phase, size=size),
            Op("sync", "cudaStreamSynchronize_v3020", phase),
        )
    )


def batch_plan(images: int) -> Plan:
    """Return the plan of copying a batch of images and their labels to the GPU."""
    return copies("to device", "H2D", images * IMAGE_BYTES, images * LABEL_BYTES)


def setup_plan() -> Plan:
    """Return the plan of ``model.to("cuda")``."""
    malloc = Op("call", "cudaMalloc_v3020", "model to device")
    return (*copies("model to device", "H2D", *PARAMETER_BYTES), malloc)


def training_plan(images: int = 128, *, first: bool = False) -> Plan:
    """Return the plan of a training step on a batch of `images`."""
    backward = BACKWARD if images == 128 else BACKWARD.replace("gemm_nt_64", "gemm_nt:2")
    clones = tuple(Op("copy", "D2D", "optimizer", size=size) for size in PARAMETER_BYTES)
    return (
        *batch_plan(images),
        *_launches("forward", f"{FORWARD} nll scale_loss"),
        *_launches("backward", backward, thread=1),
        *(clones if first else ()),
        *_launches("optimizer", "sgd_add:0" if first else OPTIMIZER),
        *copies("loss.item", "D2H", 4),
    )


def evaluation_plan(images: int = 128, *, first: bool = False) -> Plan:
    """Return the plan of a test batch of `images`; the last one, of 16, also takes the mean of the loss."""
    last = images == 16
    return (
        *batch_plan(images),
        *_launches("forward", FORWARD_16 if last else FORWARD),
        *_launches(
            "metrics",
            f"nll {'add_first' if first else 'add_loss'} argmax equal to_long count_right",
        ),
        *copies("metrics", "D2H", 8),
        *_launches("metrics", "mean_loss" if last else ""),
        *(copies("metrics", "D2H", 4) if last else ()),
    )


def inference_plan() -> Plan:
    """Return the plan of the forward pass that the script times at its end."""
    return (
        *copies("to device", "H2D", 128 * IMAGE_BYTES),
        *_launches("forward", FORWARD),
        Op("sync", "cudaDeviceSynchronize_v3020", "forward"),
    )


# section 2.2 of the report: first start and last end of copies and of kernels
FIRST_COPY_NS, LAST_COPY_NS = 9_531_670_700, 19_447_603_756
FIRST_KERNEL_NS, LAST_KERNEL_NS = 9_644_169_424, 19_447_882_187

CUBLAS_NS = 55_000_000
COLD_NS = {"train": 100_000_000, "test": 10_000_000}
PAUSE_NS = 2_000_000

Part = Literal["setup", "train", "test", "inference"]


class Segment(NamedTuple):
    """Steps of one plan: `start` is where data loading begins, `begin` where the plan does, ns."""

    part: Part
    plan: Plan
    laid: Laid
    start: Int
    begin: Int


PARTS: tuple[tuple[Part, Plan, int], ...] = (
    ("setup", setup_plan(), 1),
    ("train", training_plan(first=True), 1),
    ("train", training_plan(), 467),
    ("train", training_plan(96), 1),
    ("test", evaluation_plan(first=True), 1),
    ("test", evaluation_plan(), 77),
    ("test", evaluation_plan(16), 1),
    ("inference", inference_plan(), 1),
)


def run(rng: np.random.Generator) -> list[Segment]:
    """Return the segments of the run in order of time."""
    times = [timeline.draw_times(plan, steps, timeline.EAGER, rng) for _, plan, steps in PARTS]
    _deal([each.work for each in times], rng)
    _warm_up(times, rng)
    last = PARTS[-1][1]
    times[-1].gap[_first_kernel(last)] += _delay(lay_out(last, times[-1]))
    return _placed(
        [lay_out(plan, each) for (_, plan, _), each in zip(PARTS, times, strict=True)], rng
    )


def _deal(work: list[Int], rng: np.random.Generator) -> None:
    """Give every kernel a duration from its row of Table 5, slot 0 the longest ones."""
    wanted: dict[str, dict[int, list[Int]]] = defaultdict(lambda: defaultdict(list))
    for (_, plan, _), durations_of_plan in zip(PARTS, work, strict=True):
        for op, row in zip(plan, durations_of_plan, strict=True):
            if op.kind == "kernel":
                wanted[op.what][op.slot].append(row)
    for key, kernel in TABLE_5.items():
        durations = draw_durations(kernel, rng)
        for _, rows_of_slot in sorted(wanted[key].items()):
            ends = np.cumsum([len(row) for row in rows_of_slot])
            dealt, durations = rng.permutation(durations[: ends[-1]]), durations[ends[-1] :]
            for row, values in zip(rows_of_slot, np.split(dealt, ends[:-1]), strict=True):
                row[:] = values


def _warm_up(times: list[Times], rng: np.random.Generator) -> None:
    """Slow the first launch of each kernel, which loads its code, and before the very first start cuBLAS."""
    seen: set[str] = set()
    for (part, plan, _), each in zip(PARTS, times, strict=True):
        for i, op in enumerate(plan):
            if op.kind != "kernel" or op.what in seen:
                continue
            if seen:
                each.call[i, 0] += int(COLD_NS[part] * (0.4 + 1.2 * rng.random()))
            else:
                each.gap[i, 0] += CUBLAS_NS
            seen.add(op.what)


def _first_kernel(plan: Plan) -> int:
    return next(i for i, op in enumerate(plan) if op.kind == "kernel")


def _delay(laid: Laid) -> int:
    """How much later the kernels of the last pass have to follow its copy for the report's figures."""
    last_copy, last_kernel = laid.end[0, 0], laid.end.max()
    return LAST_KERNEL_NS - LAST_COPY_NS - int(last_kernel - last_copy)


def _placed(laid: list[Laid], rng: np.random.Generator) -> list[Segment]:
    """Put the steps behind each other; data loading fills what is left between the fixed times."""
    setup, first, last = laid[0], laid[1], laid[-1]
    lengths = np.concatenate([each.length for each in laid[1:-1]])
    begin = FIRST_KERNEL_NS - int(first.start[_first_kernel(PARTS[1][1]), 0])
    end = LAST_KERNEL_NS - int(last.end.max())
    loading = _shares(end - PAUSE_NS - begin - int(lengths.sum()), len(lengths) - 1, rng)
    begins = begin + np.r_[0, np.cumsum(lengths[:-1] + loading)]
    setup_begin = np.array([FIRST_COPY_NS - int(setup.start[0, 0])])
    starts = np.r_[setup_begin + setup.length, (begins + lengths)[:-1]]
    bounds = np.cumsum([0, *[len(each.length) for each in laid[1:-1]]])
    placed = [(setup_begin, setup_begin)]
    placed += [(starts[i:j], begins[i:j]) for i, j in pairwise(bounds)]
    placed += [(np.array([end]), np.array([end]))]
    return [
        Segment(part, plan, each, *times)
        for (part, plan, _), each, times in zip(PARTS, laid, placed, strict=True)
    ]


def _shares(total: int, count: int, rng: np.random.Generator) -> Int:
    """Split `total` into `count` parts that vary by a quarter, one in forty being three times as long."""
    weight = (0.75 + 0.5 * rng.random(count)) * np.where(rng.random(count) < 1 / 40, 3, 1)
    return timeline.shares(total, weight)
