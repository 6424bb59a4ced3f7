"""What does the host do in a step of the lab's MLP, call by call?

Conventions
-----------
The script is the naive one: pageable memory, ``loss.item()`` in every step, one stream. The counts of Table 5
of the lab report fix the rest: the first training step has no momentum yet and clones the gradients, the last one
has 96 images, the last test batch has 16, and one forward pass follows at the end.
A kernel's slot says which of its launches in the step it is; slot 0 is the slowest.

Functions
---------
setup         the model is copied to the GPU
training      one step of SGD with momentum
evaluation    one test batch
inference     one timed forward pass
copies, batch what they copy
"""

from __future__ import annotations

from make.timeline import Op, Plan

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
        for op in (Op("copy", direction, phase, size=size), Op("sync", "cudaStreamSynchronize_v3020", phase))
    )


def batch(images: int) -> Plan:
    """Return the plan of copying a batch of images and their labels to the GPU."""
    return copies("to device", "H2D", images * IMAGE_BYTES, images * LABEL_BYTES)


def setup() -> Plan:
    """Return the plan of ``model.to("cuda")``."""
    malloc = Op("call", "cudaMalloc_v3020", "model to device")
    return (*copies("model to device", "H2D", *PARAMETER_BYTES), malloc)


def training(images: int = 128, *, first: bool = False) -> Plan:
    """Return the plan of a training step on a batch of `images`."""
    backward = BACKWARD if images == 128 else BACKWARD.replace("gemm_nt_64", "gemm_nt:2")
    clones = tuple(Op("copy", "D2D", "optimizer", size=size) for size in PARAMETER_BYTES)
    return (
        *batch(images),
        *_launches("forward", f"{FORWARD} nll scale_loss"),
        *_launches("backward", backward, thread=1),
        *(clones if first else ()),
        *_launches("optimizer", "sgd_add:0" if first else OPTIMIZER),
        *copies("loss.item", "D2H", 4),
    )


def evaluation(images: int = 128, *, first: bool = False) -> Plan:
    """Return the plan of a test batch of `images`; the last one, of 16, also takes the mean of the loss."""
    last = images == 16
    return (
        *batch(images),
        *_launches("forward", FORWARD_16 if last else FORWARD),
        *_launches("metrics", f"nll {'add_first' if first else 'add_loss'} argmax equal to_long count_right"),
        *copies("metrics", "D2H", 8),
        *_launches("metrics", "mean_loss" if last else ""),
        *(copies("metrics", "D2H", 4) if last else ()),
    )


def inference() -> Plan:
    """Return the plan of the forward pass that the script times at its end."""
    return (
        *copies("to device", "H2D", 128 * IMAGE_BYTES),
        *_launches("forward", FORWARD),
        Op("sync", "cudaDeviceSynchronize_v3020", "forward"),
    )
