"""What is different from one experiment to the next: the settings of a simulated training program.

Classes
-------
Setup     all of them, of a program and of the transformer that it trains
"""

from __future__ import annotations

from dataclasses import dataclass

PRECISIONS = ("fp32", "tf32", "bf16")


@dataclass(frozen=True)
class Setup:
    """A training program; times in ns.

    Attributes
    ----------
    batch, precision, fused
        Sequences per step; one of PRECISIONS, of which bf16 is by autocast; whether a compiler fused what lies between
        the matrix products.
    read_loss
        Steps from one reading of the loss to the next; 0 for none before the end.
    loading_ns, workers
        Preparing one sequence on the CPU, 0 if the batch stays on the GPU; processes that do it, 0 for the program.
    pinned
        Whether batches are copied from pinned memory, so that the host does not wait for the copy.
    host_ns
        What the host does from one step to the next, beside launching and loading.
    steps, seed
        Steps; seed of all random lengths.
    sequence, hidden, layers, heads
        Tokens of a sequence; size of the transformer.
    product_frac, other_frac
        Times of the matrix products and of all other kernels, over what the roofline model gives.
    """

    batch: int = 16
    precision: str = "fp32"
    fused: bool = False
    read_loss: int = 0
    loading_ns: int = 0
    workers: int = 0
    pinned: bool = True
    host_ns: int = 1_000_000
    steps: int = 24
    seed: int = 0
    sequence: int = 128
    hidden: int = 768
    layers: int = 4
    heads: int = 12
    product_frac: float = 1.0
    other_frac: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated."""
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision: {self.precision!r} is not one of {list(PRECISIONS)}")
        if min(self.batch, self.steps, self.sequence, self.layers) < 1:
            raise ValueError("batch, steps, sequence and layers: at least 1 each")
        if self.workers and not self.loading_ns:
            raise ValueError("workers: there is nothing to load; give loading_ns")
