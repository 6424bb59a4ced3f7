"""Which operators does PyTorch run in a training step of the lab's MLP, and what does each ask the GPU for?

Conventions
-----------
`mlp_operators.csv` lists them. The kernels are those of `mlp_run`, in its order, each in the operator that PyTorch
launches it in. Names, arguments and nesting are those of PyTorch 2, eager, with SGD's for-each implementation.
Autograd's thread runs the backward nodes while the script's waits for them. A node runs in the engine's
``evaluate_function``, which also sums gradients over what the forward pass broadcast (the bias) and frees what the node
has used up. Of the data loader only the joining of the images is an operator. Memory is that of the tensors in blocks
of 512 bytes, of cuBLAS's workspace by CUBLAS_WORKSPACE_CONFIG's default :4096:2:16:8, and of cuBLASLt's for the time of
a product.
"""

from __future__ import annotations

from make.spans import BATCH, LAYERS, Memory, Part, parts

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def before() -> tuple[Memory, ...]:
    """Return what lies in the GPU's memory: the model, its momentum and gradients, and what the last step left."""
    return tuple(part for part in parts("mlp_operators", "before") if isinstance(part, Memory))


def step() -> tuple[Part, ...]:
    """Return the parts of one step, in order."""
    return parts("mlp_operators", "step")


def flops() -> dict[str, int]:
    """Return the operations of the matrix products of a step, FLOP, by operator: 2 M N K each.

    All layers have a forward product and the gradient of their weights; all but the first that of their input, too.

    Examples
    --------
    >>> flops()
    {'aten::addmm': 60096512, 'aten::mm': 68812800}
    """
    each = [2 * BATCH * inputs * outputs for inputs, outputs in LAYERS]
    return {"aten::addmm": sum(each), "aten::mm": sum(each) + sum(each[1:])}
