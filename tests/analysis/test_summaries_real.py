"""The summaries of real captures equal what the vendor's `nsys stats` printed for them, row by row."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from analysis.spans import loaded
from real import SQLITE

import perfkit
from perfkit.analysis import kernels, memory, steps
from perfkit.analysis.grouping import totals

CAPTURES = [c.removesuffix(".sqlite") for c in SQLITE]
COLUMNS = ["count", "total", "mean", "median", "min", "max", "std"]
EXACT = ["count", "total", "min", "max"]
TIMES = [f"{c} (ns)" for c in ("Total Time", "Avg", "Med", "Min", "Max", "StdDev")]
SIZES = [f"{c} (MB)" for c in ("Total", "Avg", "Med", "Min", "Max", "StdDev")]
DIRECTIONS = {
    "Host-to-Device": "H2D",
    "Device-to-Host": "D2H",
    "Device-to-Device": "D2D",
    "Peer-to-Peer": "P2P",
}
DIRECTIONS |= {"HtoD": "H2D", "DtoH": "D2H", "DtoD": "D2D", "PtoP": "P2P"}
DIRECTIONS |= {f"Unified {vendor}": f"unified {ours}" for vendor, ours in DIRECTIONS.items()}
STYLES = {"push_pop": "PushPop", "start_end": "StartEnd"}


def golden(
    profiles: Path, capture: str, report: str, key: list[str], figures: list[str]
) -> pd.DataFrame:
    path = profiles / "golden" / "nsys" / capture / f"{report}.csv"
    if not path.exists():
        return pd.DataFrame(columns=[*key, *COLUMNS])
    frame = pd.read_csv(path, keep_default_na=False)
    count = next(c for c in ("Instances", "Num Calls", "Count") if c in frame)
    return listed(frame[[*key, count, *figures]].set_axis([*key, *COLUMNS], axis=1))


def measured(summary: pd.DataFrame, keys: dict[str, pd.Series], unit: str) -> pd.DataFrame:
    found = {c: summary[c if c == "count" else f"{c}_{unit}"] for c in COLUMNS}
    found["std"] = found["std"].fillna(0.0)
    return listed(pd.DataFrame({**keys, **found}))


def listed(frame: pd.DataFrame) -> pd.DataFrame:
    keys = [c for c in frame if c not in COLUMNS]
    return (
        frame.astype(dict.fromkeys(keys, str)).sort_values([*keys, *COLUMNS]).reset_index(drop=True)
    )


def assert_equal(
    expected: pd.DataFrame, actual: pd.DataFrame, exact: list[str], rounding: float
) -> None:
    rounded = [c for c in COLUMNS if c not in exact]
    whole = expected.columns.drop(rounded)
    pd.testing.assert_frame_equal(
        expected[whole], actual[whole], check_dtype=False, check_index_type=False
    )
    assert expected.empty or (expected[rounded] - actual[rounded]).abs().max(
        axis=None
    ) <= rounding * (1 + 1e-6)


@pytest.fixture(scope="module", params=CAPTURES)
def capture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def run(profiles: Path, capture: str) -> perfkit.Run:
    return loaded(profiles / "nsys" / f"{capture}.sqlite")


def test_kernels_by_full_name(profiles: Path, capture: str, run: perfkit.Run) -> None:
    expected = golden(profiles, capture, "cuda_gpu_kern_sum", ["Name"], TIMES)
    summary = kernels.summary(run.kernels, by="full_name")
    assert_equal(expected, measured(summary, {"Name": summary["full_name"]}, "ns"), EXACT, 0.05)
    # In the vendor's order; its Time (%) is our share of the table's total, in percent and rounded to 0.1.
    vendor = pd.read_csv(profiles / "golden" / "nsys" / capture / "cuda_gpu_kern_sum.csv")
    assert vendor["Total Time (ns)"].tolist() == summary["total_ns"].tolist()
    assert (vendor["Time (%)"] - 100 * summary["share_frac"]).abs().max() <= 0.05 + 1e-9


def test_copies(profiles: Path, capture: str, run: perfkit.Run) -> None:
    expected = golden(profiles, capture, "cuda_gpu_mem_time_sum", ["Operation"], TIMES)
    summary = memory.copied(migrations_apart(run.copies), by=["direction"])
    summary = summary.rename(columns={"bytes": "total_bytes"})
    keys = {"Operation": summary["direction"]}
    assert_equal(directed(expected), measured(summary, keys, "ns"), EXACT, 0.05)
    expected = golden(profiles, capture, "cuda_gpu_mem_size_sum", ["Operation"], SIZES)
    actual = measured(summary, keys, "bytes")
    actual[COLUMNS[1:]] /= 1e6
    assert_equal(directed(expected), actual, ["count"], 0.0005)


def directed(expected: pd.DataFrame) -> pd.DataFrame:
    words = (
        expected["Operation"].str.strip("[]").str.removeprefix("CUDA ").str.removeprefix("memcpy ")
    )
    return listed(expected.assign(Operation=words.replace({**DIRECTIONS, "memset": "memset"})))


def migrations_apart(copies: pd.DataFrame) -> pd.DataFrame:
    migrates = (copies["src_memory"] == "managed") & (copies["dst_memory"] == "managed")
    words = copies["direction"].astype(str)
    return copies.assign(direction=words.where(~migrates, "unified " + words).astype("category"))


def test_api_calls(profiles: Path, capture: str, run: perfkit.Run) -> None:
    expected = golden(profiles, capture, "cuda_api_sum", ["Name"], TIMES)
    expected = listed(
        once_each(expected.assign(Name=expected["Name"].str.replace(r"_v\d+$", "", regex=True)))
    )
    summary = totals(run.api_calls, ["name"])
    assert_equal(expected, measured(summary, {"Name": summary["name"]}, "ns"), EXACT, 0.05)


def once_each(expected: pd.DataFrame) -> pd.DataFrame:
    single = dict.fromkeys(
        ("mean", "median", "std"), lambda values: values.iloc[0] if len(values) == 1 else np.nan
    )
    how = {"count": "sum", "total": "sum", "min": "min", "max": "max", **single}
    merged = expected.groupby("Name", as_index=False).agg(how)
    return merged.assign(mean=merged["mean"].fillna(merged["total"] / merged["count"]))[
        expected.columns
    ]


def test_ranges(profiles: Path, capture: str, run: perfkit.Run) -> None:
    expected = golden(profiles, capture, "nvtx_sum", ["Style", "Range"], TIMES)
    with_tables = "gpubootcamp__mpi" in capture  # of MPI, which the vendor sums up elsewhere
    ranges = run.ranges[run.ranges["kind"] != "mark"]
    ranges = ranges[ranges["domain"].ne("MPI")] if with_tables else ranges
    summary = totals(ranges, ["domain", "name", "kind"])
    domain = summary["domain"].astype(str).str.replace(r"^domain \d+$", "", regex=True)
    text = domain.where(domain == "", domain + ":") + summary["name"].astype(str)
    keys = {"Style": summary["kind"].map(STYLES), "Range": text}
    assert_equal(expected, measured(summary, keys, "ns"), EXACT, 0.05)


def test_steps_agree_and_kernels_by_grid(profiles: Path) -> None:
    folder = profiles / "nsys"
    named, bare = (
        perfkit.load(folder / f"openhackathons-org__AI-Profiler__baseline{n}.sqlite")
        for n in ("_nvtx", "")
    )
    ways = (named.ranges, named, "nvtx"), (named.ranges.iloc[:0], named, "kernel sequence")
    for ranges, run, how in (*ways, (bare.ranges, bare, "kernel sequence")):
        found = steps.detect(ranges, run.kernels)
        assert (59, how) == (len(found), found["how"].iloc[0])
    summary = kernels.summary(named.kernels, by="grid")
    assert (124, 9345) == (len(summary), summary["count"].sum())
