"""What does the host do when it answers a batch of questions with BERT, call by call?

Conventions
-----------
The script is the naive one: tokens, their kinds and a mask are copied from pageable memory, the pass is launched kernel
by kernel, and the two logits of each token are copied back, which waits for them. With a CUDA graph the pass is one
launch.

Functions
---------
setup      the model is copied to the GPU
passes     the places of a forward pass, in their order
answering  one batch
"""

from __future__ import annotations

from make import mlp_steps
from make.bert_kernels import (
    FLOAT_BYTES,
    HIDDEN,
    LAYERS,
    POSITIONS,
    SEQUENCE,
    TOKEN_BYTES,
    VOCABULARY,
    WIDE,
    Precision,
    key,
    places,
)
from make.timeline import Op, Plan

_NORM = (HIDDEN, HIDDEN)
_LAYER = (*((HIDDEN * HIDDEN, HIDDEN) * 4), *_NORM, WIDE * HIDDEN, WIDE, HIDDEN * WIDE, HIDDEN, *_NORM)
PARAMETERS = (VOCABULARY * HIDDEN, POSITIONS * HIDDEN, 2 * HIDDEN, *_NORM, *(_LAYER * LAYERS), 2 * HIDDEN, 2)
MASK = ("mask_to_float", "mask_from_one", "mask_scaled")
EMBEDDING = ("look_up", "look_up", "add", "look_up_places", "add", "norm")
HEAD = ("head", "logits", "logits")


def setup() -> Plan:
    """Return the plan of ``model.to("cuda")``.

    Examples
    --------
    >>> len(PARAMETERS), sum(PARAMETERS)
    (199, 107721218)
    """
    return mlp_steps.copies("model to device", "H2D", *(FLOAT_BYTES * size for size in PARAMETERS))


def passes(batch: int) -> tuple[str, ...]:
    """Return the places of a forward pass.

    Examples
    --------
    >>> len(passes(1)), len(passes(32))
    (216, 252)
    """
    return (*MASK, *EMBEDDING, *(places(batch) * LAYERS), *HEAD)


def answering(batch: int, *, precision: Precision = "fp32", graph: bool = False) -> Plan:
    """Return the plan of one batch."""
    keys = [key(place, batch, precision) for place in passes(batch)]
    if graph:
        forward = [Op("graph", "forward", "forward"), *(Op("node", each, "forward") for each in keys)]
    else:
        forward = [Op("kernel", each, "forward") for each in keys]
    tokens, logits = batch * SEQUENCE * TOKEN_BYTES, batch * SEQUENCE * FLOAT_BYTES
    given = mlp_steps.copies("to device", "H2D", *[tokens] * 3)
    return (*given, *forward, *mlp_steps.copies("to host", "D2H", *[logits] * 2))
