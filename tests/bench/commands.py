"""The command: its help, reports, and `perfkit ingest` of many ranks; of these also loading them in one process.

Up to 16 ingested ranks are a real trace of 109 thousand events. Up to 1,000 are made ones of 20 thousand kernels, with
a rank of their own written into each of eight traces.
"""

import compileall
import gzip
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import perfkit
from make import kineto
from perfkit import analysis
from tests.bench import captures, fresh
from tests.bench.captures import FOLDER
from tests.bench.table import Row, median_row

SAMPLE, PANDAS = Path("data/mlp_a100"), "import pandas, CPU"
TIMES, RANKS, KERNELS = 3, 16, 50_000
THOUSAND, EVENTS, MADE = 1000, 120_000, 8
FEW, MANY = 4, 16  # ranks of 109 thousand events each


def rows(kernels: int) -> Iterator[Row]:
    """Measure loading and summing up; yields the row of the table."""
    folder = captures.ranks(RANKS, each := min(kernels, KERNELS))
    pairs = [(_measured(folder), _measured(folder / "rank_0.sqlite")) for _ in range(TIMES)]
    many = [of_all._replace(wall_s=of_all.wall_s / RANKS) for of_all, _ in pairs]
    peer_s = sorted(of_one.wall_s for _, of_one in pairs)[TIMES // 2]
    work = f"{RANKS} ranks of {each:,} kernels, load and kernels.summary, per rank"
    bars = {"peer_seconds": peer_s, "most_ratio": 1.1, "bar": "linear: at most 1.1"}
    yield median_row(work, many, "perfkit on one rank", **bars)


def kernel_summary(path: str) -> int:
    """Load the kernels and sum them up."""
    return len(analysis.kernels.summary(perfkit.load(path).kernels))


def _measured(path: Path) -> fresh.Measured:
    with tempfile.TemporaryDirectory(dir=FOLDER) as cache:
        return fresh.call(kernel_summary, path, cache=Path(cache))


def store_rows(kernels: int) -> Iterator[Row]:
    """Measure ingesting: the cost of a rank, two workers against one, a second question, files opened."""
    if not captures.profiles():
        yield Row("ingest of ranks", None, captures.NONE, None)
        return
    many = max(FEW, min(MANY, kernels // 100_000))
    of_few, of_many = (captures.trace_ranks(captures.OF_SIXTEEN, count)[0] for count in (FEW, many))
    yield from _ingested(f"perfkit ingest, {many} ranks", (of_few, FEW), (of_many, many))
    count = max(20, min(THOUSAND, kernels // 10_000))
    with tempfile.TemporaryDirectory(dir=FOLDER) as made:
        few, all_of_them = (
            fresh.call(write, Path(made, f"of {n}"), n).answer for n in (count // 10, count)
        )
        opened = fresh.call(open_headers, all_of_them)
        work = f"perfkit ingest, {count} made ranks"
        yield from _ingested(work, (Path(few), count // 10), (Path(all_of_them), count))
    yield median_row(f"{count} traces opened", [opened], most_seconds=10, bar="10 s for 1,000")


def _ingested(work: str, fewer: tuple[Path, int], many: tuple[Path, int]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=FOLDER) as made:
        few, one, two = (
            fresh.family(
                [
                    *fresh.PERFKIT,
                    "ingest",
                    files,
                    "--out",
                    Path(made, f"{n}"),
                    "--workers",
                    f"{workers}",
                ],
                env={"PERFKIT_CACHE": "off"},
            )
            for n, (files, workers) in enumerate([(fewer[0], 1), (many[0], 1), (many[0], 2)])
        )
        second = fresh.call(kernels_count, Path(made, "2"))
    few_s, each_s = few.cpu_s / fewer[1], one.cpu_s / many[1]
    yield Row(f"{work}, CPU per rank", each_s, f"{fewer[1]} ranks", few_s, 1.1, bar="constant: 1.1")
    bars = {
        "peer_seconds": one.wall_s,
        "most_ratio": 1 / 1.8,
        "most_bytes": 1.5e9,
        "bar": "1/1.8, 1.5 GB",
    }
    yield median_row(f"{work}, two workers", [two], "one worker", **bars)
    yield median_row(f"{work}, a second question", [second], most_seconds=3.0, bar="under 3 s")


def write(folder: str, count: str) -> str:
    """Write so many traces: those of eight ranks, with another rank in each copy."""
    kineto.ranks(Path(folder), ranks=MADE, events=EVENTS)
    texts = [
        gzip.decompress(Path(folder, f"rank-{rank}.pt.trace.json.gz").read_bytes())
        for rank in range(MADE)
    ]
    for rank in range(MADE, int(count)):
        text = re.sub(rb'("rank": ?)\d+', rb"\g<1>%d" % rank, texts[rank % MADE], count=1)
        Path(folder, f"rank-{rank}.pt.trace.json.gz").write_bytes(gzip.compress(text, 1))
    return folder


def open_headers(path: str) -> int:
    """Open the files as far as their headers; return how many ranks they state."""
    return int(perfkit.load(path).headers()["rank"].nunique())


def kernels_count(path: str) -> int:
    """Return the number of kernels of all ranks."""
    return int(perfkit.load(path).reduced.by_device()["kernels_count"].sum())


def report_rows(kernels: int) -> Iterator[Row]:
    """Measure; the first report of a machine makes the chart library too, which later ones of any run find.

    perfkit is compiled before, as pip does when it installs it; what stands in a checkout may not be.
    """
    compileall.compile_dir(Path(perfkit.__file__).parent, quiet=1)
    pandas_s = min(
        fresh.command([*fresh.PERFKIT[:1], "-c", "import pandas"]).cpu_s for _ in range(TIMES)
    )
    told = [fresh.command([*fresh.PERFKIT, "--help"]) for _ in range(TIMES)]
    bars = {"peer_seconds": pandas_s, "most_ratio": 0.15, "bar": "at most 0.15"}
    yield median_row("perfkit --help, CPU", told, PANDAS, by="cpu_s", **bars)
    with tempfile.TemporaryDirectory(dir=FOLDER) as cache:
        bars = {"peer_seconds": pandas_s, "most_ratio": 10.0, "bar": "at most 10"}
        for work in (
            "perfkit report of the sample, first on a machine, CPU",
            "perfkit report of the sample, CPU",
        ):
            done = report(SAMPLE, Path(cache))
            yield median_row(work, [done], PANDAS, by="cpu_s", **bars)
        bars = {
            "peer_seconds": done.cpu_s,
            "most_ratio": 0.65,
            "bar": "at most 0.65 on two idle cores",
        }
        yield median_row("perfkit report of the sample", [done], "its CPU", **bars)
        work, path = (
            f"perfkit report, {min(kernels, 10_000):,} kernels",
            captures.made(min(kernels, 10_000)),
        )
        yield median_row(
            work, [report(path, Path(cache))], most_seconds=30.0, bar="under 30 s on two cores"
        )


def trace_rows(kernels: int) -> Iterator[Row]:
    """Measure; yields the row of the table. A trace has 109 thousand events; fewer make fewer ranks."""
    if not captures.profiles():
        yield Row("report of ranks", None, captures.NONE, None)
        return
    path, events = captures.trace_ranks(captures.OF_SIXTEEN, max(2, min(16, kernels // 100_000)))
    with tempfile.TemporaryDirectory(dir=FOLDER) as cache:
        done = report(path, Path(cache))
    work = f"perfkit report, {len(list(path.iterdir()))} ranks of {events:,} events"
    yield median_row(work, [done], most_seconds=120.0, most_bytes=2e9, bar="under 120 s, 2 GB")


def report(path: Path, cache: Path) -> fresh.Measured:
    """Measure the command, with all processes that it starts."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as made:
        program = [*fresh.PERFKIT, "report", path, "--out", Path(made, "report")]
        return fresh.family(program, env={"PERFKIT_CACHE": str(cache)})
