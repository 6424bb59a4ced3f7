"""Rules that follow from the shapes of operators: bytes per second of elementwise ones, tiles of products.

An elementwise operator moves at least the bytes of its tensors; a large one that reaches under 60 %
of the memory's bandwidth has kernels that could be faster (convention, as Nsight Compute's rule
SOLBottleneck). A matrix product is cut into tiles of its output, one per block: fewer tiles than
half of the SMs leave most of the GPU idle.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping

from perfkit.analysis import flops
from perfkit.analysis.causes import where
from perfkit.analysis.grouping import largest
from perfkit.analysis.intervals import cut
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing, severity
from perfkit.diagnosis.framework import data_sheet, gpu_time
from perfkit.diagnosis.rules.kernels import ELEMENTWISE_BANDWIDTH, FEW_TILES
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.timeline import unrecorded
from perfkit.format import percent, printable, size
from perfkit.selection import Selection

SLOW = 0.6
TAKEN = 0.3
LONG_NS = 10_000
TOO_FEW = (
    16  # where the number of SMs is not known; GPUs for computing have 56 and more (convention)
)
PRODUCT = re.compile(r"aten::(?:mm|addmm)")
TILE = re.compile(r"_MT(\d+)x(\d+)x\d+|_tilesize(\d+)x(\d+)x\d+")  # of Tensile, of cuBLAS


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what shapes of operators say of the kernels that they launch."""
    of_ops = view.framework
    if of_ops.ops.empty or unrecorded(view) or "kernel_busy_frac" not in known:
        return
    yield from _elementwise(of_ops, known["kernel_busy_frac"].value)
    yield from _few_tiles(of_ops, known["kernel_busy_frac"].value)


def _elementwise(view: Selection, busy: float) -> Iterator[Finding]:
    """Elementwise operators move fewer bytes per second than the memory can."""
    kernel_ns = float(cut(view.kernels, view.window)["dur_ns"].sum())
    sheet = data_sheet(view)
    points = flops.roofline(view.ops, gpu_time(view))
    rows = points[points["model"].eq("elementwise") & points["bytes"].notna()]
    rows = rows[rows["gpu_ns"] >= LONG_NS * rows["count"].clip(lower=1)]
    time = float(rows["gpu_ns"].sum())
    if sheet is None or not sheet.memory_bytes_per_s or not kernel_ns or time < TAKEN * kernel_ns:
        return
    rate = float(rows["bytes"].sum()) / time * 1e9
    used = rate / sheet.memory_bytes_per_s
    if used >= SLOW:
        return
    longest = largest(rows, "gpu_ns")
    moved = Figure(
        "elementwise_bytes_per_s",
        "Elementwise operators",
        rate,
        "bytes/s",
        (
            "bytes of the tensors of elementwise operators, by their shapes, per second of their "
            "kernels"
        ),
        "flops.roofline",
    )
    part = Figure(
        "elementwise_dram_frac",
        "Bandwidth they use",
        used,
        "1",
        f"that rate over the bandwidth of the data sheet ({sheet.name})",
        "flops.roofline",
    )
    share = busy * time / kernel_ns
    title = f"Elementwise operators use only {part.text}, {moved.text}, of the bandwidth of the device memory"
    text = (
        f"They take {percent(share)} of the time and move {moved.text}, of "
        f"{size(sheet.memory_bytes_per_s)}/s. "
    )
    text += f"Most of it is {printable(longest['name'], 60)}: {int(longest['count']):,} times."
    gain = removing(share * (1 - used), "best case: they use the whole bandwidth of the data sheet")
    yield tell(ELEMENTWISE_BANDWIDTH, title, text, (part, moved), gain)


def _sizes(shapes: str) -> tuple[int, int, int]:
    """Return rows, inner size and columns of a matrix product; zeros where the shapes are not those of one.

    >>> _sizes("[[256,131072],[131072,512]]"), _sizes("[]")
    ((256, 131072, 512), (0, 0, 0))
    """
    matrices = [
        shape for shape in json.loads(shapes) if isinstance(shape, list) and len(shape) == 2
    ]
    if len(matrices) < 2 or matrices[-2][1] != matrices[-1][0]:
        return 0, 0, 0
    return int(matrices[-2][0]), int(matrices[-1][0]), int(matrices[-1][1])


def _few_tiles(view: Selection, busy: float) -> Iterator[Finding]:
    """The output of the products with one shape and one kernel has few tiles.

    Their rate needs no launch: products of one shape and kernels of one name that are equally many
    belong together.
    """
    products = view.ops[where(view.ops["name"], PRODUCT.fullmatch)]
    kernels = view.kernels  # of all the recording: operators begin before their kernels do
    tiled = kernels[where(kernels["full_name"], TILE.search)]
    shapes = products["shapes"].dropna().astype(str).unique()
    names = tiled["full_name"].astype(str).unique()
    if len(shapes) != 1 or len(names) != 1 or len(products) != len(tiled):
        return
    rows, inner, columns = _sizes(shapes[0])
    found = TILE.search(names[0])
    # What a library launches before or after its product belongs to it.
    is_gemm = kernels["family"].eq("gemm")
    of_product = kernels[is_gemm | kernels["full_name"].astype(str).str.contains("Cijk_")]
    time = float(of_product["dur_ns"].sum())
    share = time / float(kernels["dur_ns"].sum())
    if not rows or found is None or share < TAKEN:
        return
    high, wide = (int(length) for length in found.groups() if length is not None)
    count = max(
        math.ceil(rows / first) * math.ceil(columns / second)
        for first, second in ((high, wide), (wide, high))
    )
    sms = float(view.devices["sm_count"].astype("float64").max())
    if count >= (TOO_FEW if math.isnan(sms) else sms / 2):
        return
    tiles = Figure(
        "tiles_count",
        "Tiles of the output",
        count,
        "count",
        (
            "tiles of the output of a matrix product, by its shapes and the tile in the kernel's name"
        ),
        "OPS, KERNELS",
    )
    rate = Figure(
        "tiles_flops_per_s",
        "Rate of the products",
        2.0 * rows * inner * columns * len(products) / time * 1e9,
        "FLOP/s",
        "operations of these products, by their shapes, per second of their kernels",
        "OPS, KERNELS",
    )
    share *= busy
    title = (
        f"The output of a matrix product has only {tiles.text} tiles: most of the GPU has no work"
    )
    text = (
        f"The output is {rows:,} x {columns:,}, and “{printable(names[0], 60)}” cuts it into tiles of "
        f"{high:,} x {wide:,}, one per block. "
    )
    text += f"These products take {percent(share)} of the time and reach {rate.text}."
    gain = Gain(
        1.0,
        math.inf,
        "the recording does not show how many blocks share the inner dimension already",
    )
    if not math.isnan(sms):
        gain = removing(share * (1 - count / sms), "best case: all SMs work on them")
    yield tell(FEW_TILES, title, text, (tiles, rate), gain, level=severity(share))
