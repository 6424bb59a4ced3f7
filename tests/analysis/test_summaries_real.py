"""The summaries of real captures equal what the vendor's `nsys stats` printed for them, row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from real import SQLITE

import perfkit
from perfkit.analysis import host, kernels, memory, steps

CAPTURES = [c.removesuffix(".sqlite") for c in SQLITE]
COLUMNS = ["count", "total", "mean", "median", "min", "max", "std"]
TIMES = [f"{c} (ns)" for c in ("Total Time", "Avg", "Med", "Min", "Max", "StdDev")]
SIZES = [f"{c} (MB)" for c in ("Total", "Avg", "Med", "Min", "Max", "StdDev")]
DIRECTIONS = {"Host-to-Device": "H2D", "Device-to-Host": "D2H", "Device-to-Device": "D2D", "Peer-to-Peer": "P2P"}
DIRECTIONS |= {"HtoD": "H2D", "DtoH": "D2H", "DtoD": "D2D", "PtoP": "P2P"}
DIRECTIONS |= {f"Unified {vendor}": f"unified {ours}" for vendor, ours in DIRECTIONS.items()}
STYLES = {"push_pop": "PushPop", "start_end": "StartEnd"}


def golden(profiles: Path, capture: str, report: str, key: list[str], figures: list[str]) -> pd.DataFrame:
    """What the vendor printed, sorted by all of it; a report without data has no file."""
    path = profiles / "golden" / "nsys" / capture / f"{report}.csv"
    if not path.exists():
        return pd.DataFrame(columns=[*key, *COLUMNS])
    frame = pd.read_csv(path, keep_default_na=False)
    count = next(c for c in ("Instances", "Num Calls", "Count") if c in frame)
    return listed(frame[[*key, count, *figures]].set_axis([*key, *COLUMNS], axis=1))


def measured(summary: pd.DataFrame, keys: dict[str, pd.Series], unit: str) -> pd.DataFrame:
    """Our summary in the vendor's shape; one value has a deviation of 0.0 there."""
    found = {c: summary[c if c == "count" else f"{c}_{unit}"] for c in COLUMNS}
    found["std"] = found["std"].fillna(0.0)
    return listed(pd.DataFrame({**keys, **found}))


def listed(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows sorted by text and figures, so that tables in any order compare."""
    keys = [c for c in frame if c not in COLUMNS]
    return frame.astype(dict.fromkeys(keys, str)).sort_values([*keys, *COLUMNS]).reset_index(drop=True)


def assert_equal(expected: pd.DataFrame, actual: pd.DataFrame, exact: list[str], rounding: float) -> None:
    """Names and `exact` are equal; the other figures to the vendor's rounding, half of the last digit it prints."""
    rounded = [c for c in COLUMNS if c not in exact]
    whole = expected.columns.drop(rounded)
    pd.testing.assert_frame_equal(expected[whole], actual[whole], check_dtype=False, check_index_type=False)
    assert expected.empty or (expected[rounded] - actual[rounded]).abs().max(axis=None) <= rounding * (1 + 1e-6)


@pytest.fixture(scope="module", params=CAPTURES)
def capture(request: pytest.FixtureRequest) -> str:
    """The name of one capture."""
    return str(request.param)


@pytest.fixture(scope="module")
def run(profiles: Path, capture: str) -> perfkit.Run:
    """One capture, loaded."""
    return perfkit.load(profiles / "nsys" / f"{capture}.sqlite")


def test_kernels_by_full_name(profiles: Path, capture: str, run: perfkit.Run) -> None:
    """Kernels grouped by full name are the vendor's cuda_gpu_kern_sum."""
    expected = golden(profiles, capture, "cuda_gpu_kern_sum", ["Name"], TIMES)
    summary = kernels.summary(run.kernels, by="full_name")
    assert_equal(
        expected, measured(summary, {"Name": summary["full_name"]}, "ns"), ["count", "total", "min", "max"], 0.05
    )


def test_kernels_in_the_vendors_order(profiles: Path, capture: str, run: perfkit.Run) -> None:
    """Kernels come in the order of the vendor's table: by falling total."""
    path = profiles / "golden" / "nsys" / capture / "cuda_gpu_kern_sum.csv"
    expected = pd.read_csv(path)["Total Time (ns)"].tolist()
    assert expected == kernels.summary(run.kernels, by="full_name")["total_ns"].tolist()


def test_kernel_shares(profiles: Path, capture: str, run: perfkit.Run) -> None:
    """The vendor's Time (%) is our share of the table's total, in percent and rounded to 0.1."""
    expected = pd.read_csv(profiles / "golden" / "nsys" / capture / "cuda_gpu_kern_sum.csv")["Time (%)"]
    share = kernels.summary(run.kernels, by="full_name")["share_frac"]
    assert (expected - 100 * share).abs().max() <= 0.05 + 1e-9


def test_copy_times(profiles: Path, capture: str, run: perfkit.Run) -> None:
    """Copies per direction are the vendor's cuda_gpu_mem_time_sum."""
    expected = golden(profiles, capture, "cuda_gpu_mem_time_sum", ["Operation"], TIMES)
    summary = memory.copied(migrations_apart(run.copies), by=["direction"])
    actual = measured(summary, {"Operation": summary["direction"]}, "ns")
    assert_equal(directed(expected), actual, ["count", "total", "min", "max"], 0.05)


def test_copy_sizes(profiles: Path, capture: str, run: perfkit.Run) -> None:
    """Bytes per direction are the vendor's cuda_gpu_mem_size_sum, in MB of 1e6 bytes with three decimals."""
    expected = golden(profiles, capture, "cuda_gpu_mem_size_sum", ["Operation"], SIZES)
    summary = memory.copied(migrations_apart(run.copies), by=["direction"])
    summary = summary.rename(columns={"bytes": "total_bytes"})
    actual = measured(summary, {"Operation": summary["direction"]}, "bytes")
    actual[COLUMNS[1:]] /= 1e6
    assert_equal(directed(expected), actual, ["count"], 0.0005)


def directed(expected: pd.DataFrame) -> pd.DataFrame:
    """The vendor's "[CUDA memcpy Host-to-Device]" (2022: "HtoD") as our directions."""
    words = expected["Operation"].str.strip("[]").str.removeprefix("CUDA ").str.removeprefix("memcpy ")
    return listed(expected.assign(Operation=words.replace({**DIRECTIONS, "memset": "memset"})))


def migrations_apart(copies: pd.DataFrame) -> pd.DataFrame:
    """Copies with the migrations of unified memory, whose ends are both managed, under directions of their own."""
    migrates = (copies["src_memory"] == "managed") & (copies["dst_memory"] == "managed")
    words = copies["direction"].astype(str)
    return copies.assign(direction=words.where(~migrates, "unified " + words).astype("category"))


def test_kernels_by_grid(profiles: Path) -> None:
    """The vendor's table by grid has 125 rows here, two of which differ only in the shape of as many blocks."""
    run = perfkit.load(profiles / "nsys" / "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite")
    summary = kernels.summary(run.kernels, by="grid")
    assert len(summary) == 124
    assert summary["count"].sum() == 9345


def test_api_calls(profiles: Path, capture: str, run: perfkit.Run) -> None:
    """CUDA calls are the vendor's cuda_api_sum.

    It strips the ABI version of four digits (_v7000) but not of five (_v10000), nor the driver's _v2: our names
    have lost the last such suffix whatever its length. Exports that hold a call and, inside it, its versioned form
    have both here, as there.
    """
    expected = golden(profiles, capture, "cuda_api_sum", ["Name"], TIMES)
    expected = listed(once_each(expected.assign(Name=expected["Name"].str.replace(r"_v\d+$", "", regex=True))))
    summary = host.calls(run.api_calls)
    assert_equal(expected, measured(summary, {"Name": summary["name"]}, "ns"), ["count", "total", "min", "max"], 0.05)


def once_each(expected: pd.DataFrame) -> pd.DataFrame:
    """One row of each name; of two rows of one name nothing can be said of the median and the deviation."""
    single = dict.fromkeys(("mean", "median", "std"), lambda values: values.iloc[0] if len(values) == 1 else np.nan)
    how = {"count": "sum", "total": "sum", "min": "min", "max": "max", **single}
    merged = expected.groupby("Name", as_index=False).agg(how)
    return merged.assign(mean=merged["mean"].fillna(merged["total"] / merged["count"]))[expected.columns]


def test_ranges(profiles: Path, capture: str, run: perfkit.Run) -> None:
    """Ranges are the vendor's nvtx_sum: "domain:text", without the domain where it is the default or has no name."""
    expected = golden(profiles, capture, "nvtx_sum", ["Style", "Range"], TIMES)
    with_tables = "gpubootcamp__mpi" in capture  # of MPI, which the vendor sums up elsewhere
    summary = host.spans(run.ranges[run.ranges["domain"].ne("MPI")] if with_tables else run.ranges)
    domain = summary["domain"].astype(str).str.replace(r"^domain \d+$", "", regex=True)
    text = domain.where(domain == "", domain + ":") + summary["name"].astype(str)
    keys = {"Style": summary["kind"].map(STYLES), "Range": text}
    assert_equal(expected, measured(summary, keys, "ns"), ["count", "total", "min", "max"], 0.05)


def test_steps_agree(profiles: Path) -> None:
    """The 59 training steps that NVTX shows are found without it, from the kernels of the same and of another run."""
    folder = profiles / "nsys"
    named = perfkit.load(folder / "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite")
    bare = perfkit.load(folder / "openhackathons-org__AI-Profiler__baseline.sqlite")
    found = [
        steps.detect(named.ranges, named.kernels),
        steps.detect(named.ranges.iloc[:0], named.kernels),
        steps.detect(bare.ranges, bare.kernels),
    ]
    assert [len(s) for s in found] == [59, 59, 59]
    assert [s["how"].iloc[0] for s in found] == ["nvtx", "kernel sequence", "kernel sequence"]


@pytest.mark.parametrize(
    ("name", "number", "how"),
    [
        ("openhackathons-org__AI-Profiler__secondOptimization.window5.0-7.0s", 12, "nvtx"),
        ("hpcgroup__pipit__perlmutter-cloverleaf-cuda", 10, "kernel sequence"),
        ("openhackathons-org__nways_accelerated_programming__jacobi_report", 1000, "kernel sequence"),
        ("openhackathons-org__gpubootcamp__mpi_report1", 2000, "kernel sequence"),
    ],
)
def test_steps_of_other_programs(profiles: Path, name: str, number: int, how: str) -> None:
    """Batches 34 to 45 of a window, the time steps of CloverLeaf, the sweeps of Jacobi solvers of 1000 sweeps each."""
    run = perfkit.load(profiles / "nsys" / f"{name}.sqlite")
    found = steps.detect(run.ranges, run.kernels)
    assert found["how"].unique().tolist() == [how]
    assert len(found) == number


@pytest.mark.parametrize("name", ["NVIDIA__Fuser__report1_2025.1", "MohanadOdema__DLProf__w_Relu_nsys_profile"])
def test_programs_without_steps(profiles: Path, name: str) -> None:
    """A compiler's test and a single inference, both full of ranges that repeat, have no steps."""
    run = perfkit.load(profiles / "nsys" / f"{name}.sqlite")
    assert steps.detect(run.ranges, run.kernels).empty
