"""How fast is this machine: the rate of its matrix products and the bandwidth of its copies, measured with PyTorch?

Conventions
-----------
Measured is the GPU that PyTorch has chosen, or the CPU where it has none; nothing else should run on it. Rates are of
the median repeat. A product of two square matrices of n rows is 2 n^3 FLOP, on random numbers: with zeros a GPU draws
less power and clocks higher. A copy inside one memory reads and writes every byte; one over a link moves it once.

Functions
---------
gemm      rate of matrix products, by precision and size
ceilings  the highest rate of each precision, and whether larger sizes would be faster
copy      bandwidth of copies, by direction and memory
held      what a file says of this machine
saved     both in a JSON file, and as peaks that `hardware.load_peaks` reads
"""

from perfkit.workloads.baseline.copies import copy
from perfkit.workloads.baseline.products import ceilings, gemm
from perfkit.workloads.baseline.saving import held, saved

__all__ = ["ceilings", "copy", "gemm", "held", "saved"]
