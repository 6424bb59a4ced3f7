"""What do HPCToolkit's versions call the metrics of GPUs, and what does it divide by for their unit?

Conventions
-----------
A metric's name carries its unit in parentheses. Amounts are integers, ns for times, and are divided by `per_unit` when
written. The names of 2025 have units in seconds and bytes, ``(sec)`` and ``(B)``, and stalls of ``GINS``; those of 2026
have ``(s)`` and ``(b)`` and count cycles, and each vendor has some of its own.
"""

from __future__ import annotations

from typing import NamedTuple

NS = 1_000_000_000


class Metric(NamedTuple):
    """A metric: its name in the file, and how many of what it is measured in are one of its unit."""

    name: str
    per_unit: int = 1


def named(names: str) -> tuple[Metric, ...]:
    """Return metrics of names separated by commas.

    Examples
    --------
    >>> named("GKER (sec), GKER:COUNT")
    (Metric(name='GKER (sec)', per_unit=1000000000), Metric(name='GKER:COUNT', per_unit=1))
    """
    each = (name.strip() for name in names.split(","))
    return tuple(Metric(name, NS if name.lower().endswith(("(s)", "(sec)")) else 1) for name in each)


NVIDIA = named(
    "CPUTIME (sec), GPUOP (sec), GKER (sec), GKER:COUNT, GKER:BLKS_ACUMU, GKER:BLK_THR_ACUMU, GKER:BLK_SM_ACUMU, "
    "GKER:THR_REG_ACUMU, GKER:FGP_ACT_ACUMU, GKER:FGP_MAX_ACUMU, GKER:STMEM_ACUMU (B), GKER:DYMEM_ACUMU (B), "
    "GXCOPY (sec), GXCOPY:COUNT, GXCOPY:H2D (B), GXCOPY:D2H (B), GXCOPY:D2D (B), GSYNC (sec), GSYNC:COUNT, "
    "GSYNC:STR (sec), GMEM (sec), GMEM:COUNT, GMEM:DEV (B), GMSET (sec), GMSET:COUNT, GMSET:DEV (B), "
    "GSAMP:TOT, GSAMP:EXP, GSAMP:DRP, GSAMP:PER (cyc), GINS, GINS:STL_ANY, GINS:STL_IFET, GINS:STL_IDEP, "
    "GINS:STL_GMEM, GINS:STL_SYNC, GINS:STL_CMEM, GINS:STL_PIPE, GINS:STL_MTHR, GINS:STL_OTHR"
)
NVIDIA_2026 = named(
    "CPUTIME (s), GPUOP (s), GKER (s), GKER:COUNT, GKER:BLKS_AVG_ACUMU, GKER:WARP_ACT_ACUMU, GKER:STMEM_ACUMU (b), "
    "GXCOPY (s), GXCOPY:COUNT, GXCOPY:H2D (b), GXCOPY:D2H (b), GSYNC (s), GPAGE:UMPCNT (bytes), "
    "GSAMP:TOT, GSAMP:EXP, GSAMP:PER (cyc), GCYCLES, GCYCLES:ISU, GCYCLES:ISU:UNK, GCYCLES:STL, "
    "GCYCLES:STL:IFET, GCYCLES:STL:IDEP, GCYCLES:STL:GMEM, GCYCLES:STL:PIPE, GCYCLES:STL:HID"
)
AMD = named(
    "GPUOP (s), GKER (s), GKER:COUNT, GKER:THR_VREG_ACUMU, GXCOPY (s), GXCOPY:COUNT, GXCOPY:H2D (b), GXCOPY:D2H (b), "
    "GMEM:UNK (b), GCYCLES, GCYCLES:ISU, GCYCLES:ISU:VEC, GCYCLES:ISU:MESG, GCYCLES:STL, GCYCLES:STL:MEM, "
    "GCYCLES:STL:SLP, GCYCLES:WAVE_IN_GRP, GCYCLES:THR_ACT, GPIPE:ISU:MATR, GPIPE:STL:LDS, GPIPE:STL:VEC"
)
INTEL = named(
    "GPUOP (s), GKER (s), GKER:COUNT, GSCR (s), GXCOPY (s), GXCOPY:COUNT, GXCOPY:H2D (b), GXCOPY:D2H (b), "
    "GPAGE:FLTSZ (b), GCYCLES, GCYCLES:ISU, GCYCLES:ISU:MATR, GCYCLES:STL, GCYCLES:STL:TMEM, GCYCLES:STL:SYNC, GINS:LAT"
)
