"""What does a DLRM's training step ask of the GPU, in which order, and from which place in the program?

Conventions
-----------
A line names a place of `dlrm_paths` and what is asked for there: kernels by their keys, other operations as
``kind:bytes``. A memset is made by the call of the kernel behind it. The batch has 2,048 samples of 480 dense features
and 10 rows of each of four embedding tables; it comes from pageable memory.

Data
----
FORWARD, BACKWARD, OPTIMISER    a step; the backward pass runs in a thread of its own
PARAMETERS, BLOCKS              bytes that are copied, and allocated, when the model goes to the GPU

Functions
---------
lines    places and what is asked for there
"""

from __future__ import annotations

from collections.abc import Iterator

FORWARD = """
indices           H2D:163840 H2D:163840 H2D:163840 H2D:163840
offsets           H2D:65536
dense             H2D:3932160
bottom.linear     gemm_wide
bottom.relu       relu
bottom.linear     gemm_mid
bottom.relu       relu
bottom.linear     gemm_small split_k
bottom.relu       relu
embedding         embedding_bag embedding_bag embedding_bag embedding_bag
interact.cat      cat
interact.bmm      bmm
interact.index.to H2D:48 H2D:48
interact.index    index
interact.join     cat
top.linear        gemm_mid
top.relu          relu
top.linear        gemm_small split_k
top.relu          relu
top.linear        gemm_small
top.sigmoid       sigmoid
target            H2D:8192
loss              mse memset:4 mean
loss.cpu          D2H:4 sync:0
scores.cpu        D2H:8192 sync:0
ones_like         fill
"""
BACKWARD = """
grad.mse         mse_back
grad.sigmoid     sigmoid_back
grad.bias        memset:512 sum
grad.addmm       gemm_nt_small gemm_nn
grad.relu        relu_back
grad.bias        memset:512 sum
grad.addmm       gemm_nt_mid split_k gemm_nn
grad.relu        relu_back
grad.bias        memset:512 sum
grad.addmm       gemm_nt_mid gemm_nn
grad.cat         D2D:524288
grad.accumulate  add_strided
grad.index       fill divide radix_sort index_put
grad.bmm         bmm bmm
grad.cat         add_strided
grad.embedding   index_select index_select index_select index_select
grad.relu        relu_back
grad.bias        sum
grad.addmm       gemm_nt_small split_k gemm_nn
grad.relu        relu_back
grad.addmm       gemm_nt_mid gemm_nn
grad.relu        relu_back
grad.addmm       gemm_nt_wide split_k
"""
OPTIMISER = """
sgd.dense   add add add add add add add add add add add add
sgd.sparse  index_add index_add index_add index_add
"""
# weights and biases of 480-512-256-64 and 100-256-128-1, then four tables of 20,000 rows of 64
PARAMETERS = (983_040, 2_048, 524_288, 1_024, 65_536, 256, 102_400, 1_024, 131_072, 512, 512, 4, *[5_120_000] * 4)
BLOCKS = (2_097_152, 20_971_520, 20_971_520, 2_097_152)  # what the caching allocator asks the driver for


def lines(plan: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each line's place and what is asked for there.

    Examples
    --------
    >>> list(lines("loss mse memset:4 mean"))
    [('loss', ['mse', 'memset:4', 'mean'])]
    """
    for line in plan.strip().splitlines():
        name, *works = line.split()
        yield name, works
