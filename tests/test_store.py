"""A store of many ranks: complete or absent, the same figures as the files, what is missing named (made traces)."""

import gzip
import json
import random
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cells import Session
from click.testing import CliRunner
from frames import tuples
from readers import nsys_files
from readers import torch_files as made
from widgets.viewed import specs, still

import perfkit
import perfkit.selection
from perfkit import cache, report, store, widgets
from perfkit.analysis import ranks, timeline
from perfkit.cli import main
from perfkit.errors import PerfkitError, ReadError
from perfkit.store import Ingested
from perfkit.widgets import views

STEPS = 4


def events(rank: int) -> Iterator[made.Event]:
    """Steps of three kernels and a collective, longer on a higher rank."""
    for step in range(STEPS):
        at = 1000.0 * step
        yield made.event("user_annotation", f"ProfilerStep#{step}", at, 900.0)
        for i in range(3):
            yield made.call("cudaLaunchKernel", at + 100 * i, 5.0, 10 * step + i)
            yield made.kernel(f"gemm_{i}", at + 100 * i + 10, 20.125 + rank + i, 10 * step + i)
        yield made.kernel(made.NCCL, at + 400, 50.0 - rank, 10 * step + 9, **made.message())


def trace(rank: int, world_size: int = 8) -> made.Trace:
    """A trace that states its rank."""
    stated = {"backend": "nccl", "rank": rank, "world_size": world_size}
    return made.trace(*events(rank), distributedInfo=stated, baseTimeNanoseconds=made.BASE)


def folder(path: Path, count: int) -> Path:
    path.mkdir()
    for rank in range(count):
        made.packed(path / f"rank{rank}_trace.json.gz", trace(rank, count))
    return path


def names(made: Ingested) -> list[str]:
    return [Path(refusal.path).name for refusal in made.refused]


def noted(run: perfkit.Run, word: str) -> list[str]:
    """The notes of a run that hold a word."""
    return [note for note in run.notes if word in note]


def test_a_store_is_a_run_like_any_other(tmp_path: Path) -> None:
    files = folder(tmp_path / "job", 4)
    assert Ingested(4, 0, []) == store.ingest([files], tmp_path / "store", workers=1)
    run, direct = perfkit.load(tmp_path / "store"), perfkit.load(files)
    shutil.rmtree(files)
    assert [0, 1, 2, 3] == run.capture["rank"].tolist()
    for name in ("kernels", "api_calls", "ranges", "collectives", "devices", "capture"):
        pd.testing.assert_frame_equal(getattr(direct, name), getattr(run, name))
    assert direct.reduced == run.reduced
    by_hand = run.kernels.groupby("rank")["dur_ns"].sum().tolist()
    assert by_hand == run.reduced.by_device()["kernels_ns"].tolist()
    assert (4 * STEPS, {0, 1, 2, 3}) == (len(run.reduced.steps), {*run.reduced.by_step()["rank"]})
    pd.testing.assert_frame_equal(
        run.on_rank(2).kernels, run.kernels.query("rank == 2").reset_index(drop=True)
    )


def test_engines_and_parts_give_the_same_bits(tmp_path: Path) -> None:
    files = folder(tmp_path / "job", 5)
    store.ingest([files], tmp_path / "serial", workers=1)
    store.ingest([files], tmp_path / "processes", workers=2)
    with ThreadPoolExecutor(3) as pool:
        parts = [(i, 3) for i in (1, 2, 3)]
        done = list(
            pool.map(
                lambda part: store.ingest([files], tmp_path / "array", workers=1, part=part), parts
            )
        )
    assert 5 == sum(each.read for each in done)
    stores = ["serial", "processes", "array"]
    if find_spec("distributed"):
        store.ingest([files], tmp_path / "dask", workers=2, dask="local")
        stores.append("dask")
    assert 1 == len({repr(perfkit.load(tmp_path / name).reduced) for name in stores})


def test_files_are_refused_only_where_they_were_named(tmp_path: Path) -> None:
    # As a shell's *.json.gz names them.
    files = sorted(folder(tmp_path / "job", 3).iterdir())
    files[1].write_bytes(b"")
    made = store.ingest(files, tmp_path / "store", workers=1)
    assert (2, ["rank1_trace.json.gz"]) == (made.read, names(made))
    with pytest.raises(ReadError, match="no such file"):
        store.ingest([*files, tmp_path / "absent.json"], tmp_path / "store", workers=1)
    with pytest.raises(ReadError, match="rank1_trace"):
        store.ingest([files[1]], tmp_path / "other", workers=1)
    assert Ingested(2, 0, []) == store.ingest([files[0], files[2]], tmp_path / "named", workers=1)
    run = perfkit.load(tmp_path / "named")
    assert ([0, 2], []) == (run.capture["rank"].tolist(), noted(run, "refused"))


def test_parts_that_begin_at_the_same_moment_make_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whatever one part sees of a store that another part is making, it takes the store and refuses other folders.
    files, out = folder(tmp_path / "job", 2), tmp_path / "store"
    out.mkdir()
    listed, others = Path.iterdir, [2]

    def after_another_part(path: Path) -> Iterator[Path]:
        if path == out and others:
            store.ingest([files], out, workers=1, part=(others.pop(), 2))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", after_another_part)
    assert Ingested(1, 0, []) == store.ingest([files], out, workers=1, part=(1, 2))
    assert ([], [0, 1]) == (others, perfkit.load(out).capture["rank"].tolist())
    with pytest.raises(PerfkitError, match="is no store of perfkit, and not empty"):
        store.ingest([files], files)


def test_broken_ranks_are_named_and_a_second_ingest_completes_the_store(tmp_path: Path) -> None:
    files = folder(tmp_path / "job", 6)
    broken = {number: files / f"rank{number}_trace.json.gz" for number in (1, 3, 4)}
    whole = {path: path.read_bytes() for path in broken.values()}
    broken[1].write_bytes(b"")
    cut = b'{"schemaVersion": 1, "deviceProperties": [], "traceEvents": [{"ph": "X", "ts'
    broken[3].write_bytes(gzip.compress(cut))
    broken[4].write_bytes(
        gzip.compress(json.dumps(made.trace({"ph": "X", "cat": "kernel", "ts": "x"})).encode())
    )
    arguments = ["ingest", str(files), "--out", str(tmp_path / "store"), "--workers", "1"]
    answer = CliRunner().invoke(main, arguments)
    assert (2, True) == (answer.exit_code, "3 files read, 0 kept, 3 refused" in answer.output)
    assert all(path.name in answer.output for path in broken.values())
    run = perfkit.load(tmp_path / "store")
    assert ([0, 2, 5], 3) == (run.capture["rank"].tolist(), len(noted(run, "refused by ingest")))
    for path, content in whole.items():
        path.write_bytes(content)
    answer = CliRunner().invoke(main, arguments)
    assert (0, True) == (answer.exit_code, "3 files read, 3 kept, 0 refused" in answer.output)
    run = perfkit.load(tmp_path / "store")
    assert (list(range(6)), []) == (run.capture["rank"].tolist(), noted(run, "refused"))


def test_missing_ranks_are_named_once(tmp_path: Path) -> None:
    # Rank 7 of 8 is an eighth of the GPUs.
    files = folder(tmp_path / "job", 8)
    assert not noted(perfkit.load(files), "missing")
    (files / "rank7_trace.json.gz").unlink()
    store.ingest([files], tmp_path / "store", workers=1)
    said = "the files state a world size of 8, and {} of 8 GPUs ({} %) have no file"
    for path in (files, tmp_path / "store"):
        run = perfkit.load(path)
        assert [f"rank 7 is missing: {said.format(1, 12.5)}"] == noted(run, "missing")
        assert not noted(run.on_rank(3), "missing")
    for rank in (1, 2, 4):
        (files / f"rank{rank}_trace.json.gz").unlink()
    assert [f"ranks 1 to 2, 4 and 7 are missing: {said.format(4, 50.0)}"] == noted(
        perfkit.load(files), "missing"
    )
    (tmp_path / "endless").mkdir()
    for rank in (3, 5, 10, 12):
        made.packed(tmp_path / "endless" / f"rank{rank}_trace.json.gz", trace(rank, 10**9))
    (note,) = noted(perfkit.load(tmp_path / "endless"), "missing")
    assert note.startswith("ranks 0 to 2, 4, 6 to 9 and 999,999,988 more are missing")


def test_a_note_that_all_ranks_share_is_told_once(tmp_path: Path) -> None:
    for rank in range(5):
        odd = [made.event("odd", "what", 10.0 * i, 5.0) for i in range(rank + 1)]
        stated = {
            "distributedInfo": {"rank": rank, "world_size": 5},
            "baseTimeNanoseconds": made.BASE,
        }
        operators = [made.op("aten::mm", 1.0, 2.0)]
        made.packed(
            tmp_path / f"rank{rank}.json.gz", made.trace(*events(rank), *operators, *odd, **stated)
        )
    run = perfkit.load(tmp_path)
    single = {note.partition(": ")[2] for note in perfkit.load(tmp_path / "rank0.json.gz").notes}
    assert len(run.notes) == len(single) >= 2
    assert all(note.startswith("rank0.json.gz and 4 more files: ") for note in run.notes)
    words = ("(1 odd) (numbers of the first file)", "no shapes of operators", "rank3")
    assert [1, 1, 0] == [len(noted(run, word)) for word in words]


def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, out = folder(tmp_path / "job", 3), tmp_path / "store"
    written = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        if "rank1" in str(self):
            written(self, content[:10])
            raise OSError(28, "No space left on device")
        return written(self, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    refused = store.ingest([files], out, workers=1).refused
    assert (1, True) == (len(refused), "No space left on device" in refused[0].reason)
    assert [] == [
        path.name
        for path in (out / "ranks").iterdir()
        if path.name.startswith(".") or "rank1" in path.name
    ]
    monkeypatch.undo()
    assert Ingested(1, 2, []) == store.ingest([files], out, workers=1)


def test_a_file_that_grows_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = folder(tmp_path / "job", 2)
    read, growing = cache.Source.profile, files / "rank1_trace.json.gz"

    def grown(self: cache.Source) -> Any:
        profile = read(self)
        if self.path == growing:
            with growing.open("ab") as file:
                file.write(gzip.compress(b"\n"))
        return profile

    monkeypatch.setattr(cache.Source, "profile", grown)
    made = store.ingest([files], tmp_path / "store", workers=1)
    assert (1, [growing.name], True) == (
        made.read,
        names(made),
        "the file changed" in made.refused[0].reason,
    )
    monkeypatch.undo()
    assert Ingested(1, 1, []) == store.ingest([files], tmp_path / "store", workers=1)


def test_what_is_no_store_is_not_written_to(tmp_path: Path) -> None:
    files = folder(tmp_path / "job", 2)
    with pytest.raises(PerfkitError, match="no store of perfkit, and not empty"):
        store.ingest([files], files)
    out = tmp_path / "store"
    store.ingest([files], out, workers=1)
    (out / store.MARK).write_text('{"schema": 99}')
    with pytest.raises(ReadError, match="version 99"):
        perfkit.load(out)


def test_a_table_that_is_damaged_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    store.ingest([folder(tmp_path / "job", 2)], tmp_path / "store", workers=1)
    run = perfkit.load(tmp_path / "store")
    next((tmp_path / "store" / "ranks").glob("rank1*/KERNELS.*.parquet")).write_bytes(b"PAR1")
    with pytest.raises(
        ReadError, match=r"KERNELS\.\w+\.parquet: damaged \(its checksum is another\)"
    ):
        _ = run.kernels


def test_a_flipped_bit_costs_its_own_rank_which_is_named(tmp_path: Path) -> None:
    out = tmp_path / "store"
    store.ingest([folder(tmp_path / "job", 2)], out, workers=1)
    whole = perfkit.load(out).kernels
    generator = random.Random(7)
    for file in sorted((out / "ranks").glob("rank1*/*")):
        content = file.read_bytes()
        place, bit = generator.randrange(len(content)), generator.randrange(8)
        flipped = bytes([content[place] ^ 1 << bit])
        file.write_bytes(content[:place] + flipped + content[place + 1 :])
        run = perfkit.load(out)
        pd.testing.assert_frame_equal(run.kernels, whole[whole["rank"] == 0])
        (note,) = noted(run, "left out")
        assert note.startswith("rank1")
        assert file.name.partition(".")[0] in note
        file.write_bytes(content)


def test_each_rank_has_the_capture_of_its_file(tmp_path: Path) -> None:
    files = folder(tmp_path / "job", 3)
    store.ingest([files], tmp_path / "store", workers=1)
    stored = {
        profile.path: profile.capture for profile in perfkit.load(tmp_path / "store").profiles
    }
    for path, capture in stored.items():
        (profile,) = perfkit.load(path).profiles
        pd.testing.assert_frame_equal(profile.capture, capture)
    assert 3 == len(stored)


def test_a_store_whose_ranks_are_all_damaged_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "store"
    store.ingest([folder(tmp_path / "job", 2)], out, workers=1)
    for table in (out / "ranks").glob("*/KERNELS.*.parquet"):
        table.write_bytes(b"PAR1")
    with pytest.raises(ReadError, match=r"the store holds no profile.*checksum is another"):
        perfkit.load(out)


def test_ingest_reads_a_damaged_rank_anew(tmp_path: Path) -> None:
    files, out = folder(tmp_path / "job", 2), tmp_path / "store"
    store.ingest([files], out, workers=1)
    next((out / "ranks").glob("rank1*/API_CALLS.*.parquet")).write_bytes(b"PAR1")
    assert Ingested(1, 1, []) == store.ingest([files], out, workers=1)
    assert [] == noted(perfkit.load(out), "left out")


def test_many_files_are_not_opened_by_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = folder(tmp_path / "job", 20)
    opened: list[str] = []
    original = cache.Source.profile
    monkeypatch.setattr(
        cache.Source, "profile", lambda self: opened.append(self.path.name) or original(self)
    )
    run = perfkit.load(files)
    assert (list(range(20)), {20}) == (
        run.headers()["rank"].tolist(),
        {*run.headers()["world_size"]},
    )
    assert [] == opened
    assert 4 * STEPS == len(run.on_rank(7).kernels)
    assert {"rank7_trace.json.gz"} == {*opened}
    assert 20 * 4 * STEPS == len(run.kernels)


def test_nodes_and_the_rank_worth_opening_by_hand() -> None:
    rows = {
        "rank": [0, 1, 2, 3],
        "gpu": [0, 1, 0, 1],
        "span_ns": [100] * 4,
        "computation_ns": [90, 80, 70, 75],
    }
    rows |= {
        "exposed_communication_ns": [10, 20, 5, 20],
        "exposed_copy_ns": [0] * 4,
        "idle_ns": [0, 0, 25, 5],
    }
    found = ranks.by_node(pd.DataFrame(rows), gpus_per_node=2)
    expected = [(0, 0, 1, 0, 2, 0.85, 0.0, 0.15, 0.0), (1, 2, 3, 3, 2, 0.725, 0.15, 0.125, 0.0)]
    assert expected == tuples(found, *found)
    for alone in (0, 4):
        assert ranks.by_node(pd.DataFrame(rows), gpus_per_node=alone).empty
    rows = [(rank, 0, 1, 1, 1, 1, 0, 1000, 900, 50, 50, 0, 50) for rank in range(9)]
    rows.append((9, 0, 1, 1, 1, 1, 0, 1000, 450, 50, 50, 0, 500))
    found = ranks.worth_opening(ranks.Reduction(devices=rows).by_device())
    assert [(9, "idle_frac", 0.5, 0.05)] == tuples(
        found, "rank", "figure", "value_frac", "median_frac"
    )


def uneven(path: Path) -> Path:
    """A folder of ten ranks that work for 20 steps of 1 ms, in step 19 without the last collective.

    The recording of rank 3 ends after 12 steps, the file of rank 5 is cut within its kernels, as Kineto writes them
    behind all calls, and rank 7 does nothing but wait from step 10 on: only its CPU works.
    """
    path.mkdir()
    for rank in range(10):
        calls, kernels = [], []
        for step in range(12 if rank == 3 else 20):
            at = 1000.0 * step
            calls += [made.event("user_annotation", f"ProfilerStep#{step}", at, 990.0)]
            if rank != 7 or step < 10:
                calls += [made.call("cudaLaunchKernel", at, 5.0, step)]
                kernels += [made.kernel("gemm", at + 100, 850.0, step)]
        stated = {"backend": "nccl", "rank": rank, "world_size": 10}
        header = {"distributedInfo": stated, "baseTimeNanoseconds": made.BASE, "schemaVersion": 1}
        text = json.dumps(
            {**header, "deviceProperties": [made.DEVICE], "traceEvents": [*calls, *kernels]}
        )
        if rank == 5:  # of 20 kernels the first 8 are left
            text = text[: text.index(json.dumps(kernels[8])) + 9]
        (path / f"rank{rank}_trace.json").write_text(text)
    return path


def test_a_rank_whose_recording_was_cut_is_not_idle(tmp_path: Path) -> None:
    """Rank 7 is idle from its last kernel on; of ranks 3 and 5 perfkit says that their recording is shorter.

    By hand: GPUs are compared from 0.1 ms to 19.95 ms, the span that all ranks share, whoever asks. Rank 7 works
    10 x 0.85 ms of that, so 11.35 ms (57.2 %) are idle, of the others 14.4 %. Rank 3 is recorded to 11.99 ms, 11.89 ms
    of 19.85 (59.9 %). Rank 5 launches a kernel at 8 ms that its file does not hold: 7.9 ms (39.8 %).
    """
    files = uneven(tmp_path / "job")
    store.ingest([files], tmp_path / "store", workers=1)
    for path in (files, tmp_path / "store"):
        run = perfkit.load(path)
        view = perfkit.selection.select(run)
        page = timeline.breakdown(view.kernels, view.copies, window=view.measured)
        found = run.reduced.by_device()
        both = [name for name in page if name in found]
        pd.testing.assert_frame_equal(
            page[both], found[both], check_index_type=False, check_dtype=False
        )
        idle = found.set_index(["rank", "gpu"]).loc[(7, 0)]
        assert (19_850_000, 11_350_000) == (idle["span_ns"], idle["idle_ns"])
        worth, of_store = (ranks.worth_opening(frame) for frame in (page, found))
        pd.testing.assert_frame_equal(worth, of_store, check_dtype=False)
        assert [7, 5, 3] == worth["rank"].tolist()
        assert ["idle_frac", ranks.CUT, ranks.CUT] == worth["figure"].tolist()
        assert [0.572, 0.398, 0.599] == worth["value_frac"].round(3).tolist()
        assert [0.144, 1.0, 1.0] == worth["median_frac"].round(3).tolist()


@pytest.mark.parametrize("is_timed", [True, False])
def test_marked_steps_of_ranks_last_as_long_in_a_store_as_on_the_page(
    tmp_path: Path, is_timed: bool
) -> None:
    """Two steps of 10 ms prepare for 8 ms each, then run a kernel of 1 ms on rank 0, of 1.5 ms on rank 1.

    Rank 0 works until 19 ms, and no event begins after that. Rank 1 works until 19.5 ms, and calls Python at 19.7 ms.
    On one clock rank 0 is compared with rank 1, so until 19.5 ms.
    """
    (tmp_path / "job").mkdir()
    for rank, dur in ((0, 1000.0), (1, 1500.0)):
        events = []
        for step in (0, 1):
            at = 10_000.0 * step
            events.append(made.event("user_annotation", f"ProfilerStep#{step}", at, 10_000.0))
            events.append(made.call("cudaLaunchKernel", at + 7_900, 5.0, step))
            events.append(made.kernel("gemm", at + 8_000, dur, step))
        if rank:
            events.append(made.event("python_function", "report", 19_700.0, 100.0))
        stated = {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2}}
        base = made.BASE if is_timed else made.BASE + rank * 10**15
        text = made.trace(*events, **stated, baseTimeNanoseconds=base)
        made.printed(tmp_path / "job" / f"rank{rank}_trace.json", text)
    store.ingest([tmp_path / "job"], tmp_path / "store", workers=1)
    for path in (tmp_path / "job", tmp_path / "store"):
        run = perfkit.load(path)
        view = perfkit.selection.select(run)
        assert run.is_on_one_clock == is_timed
        page = timeline.breakdown(view.kernels, view.copies, window=view.measured)
        found = run.reduced.by_device()
        first = 19_500_000 if is_timed else 19_000_000
        assert page["span_ns"].tolist() == found["span_ns"].tolist() == [first, 19_700_000]
        idle = [first - 2_000_000, 16_700_000]
        assert page["idle_ns"].tolist() == found["idle_ns"].tolist() == idle


LAYOUTS = {
    "torchtitan": [
        f"profile_traces/iteration_{i}/rank{r}_trace.json" for i in (10, 20) for r in range(3)
    ],
    "Megatron-LM": [f"torch_profile/rank-{r}.json.gz" for r in range(3)],
    "vLLM": [f"8f3a-rank-{r}.171219549551{r}689047.pt.trace.json.gz" for r in range(3)],
    "SGLang": [f"{t}.52-TP-{r}.trace.json.gz" for t in (1712195495, 1712195595) for r in range(3)],
    "tensorboard_trace_handler": [
        f"node-7_{41 + r}.171219549551{r}689047.pt.trace.json" for r in range(3)
    ],
}


@pytest.mark.parametrize(
    ("program", "stated"),
    # Where each file states its rank, names matter only if a rank has several: of Megatron-LM, vLLM, ... one is enough.
    [*((program, False) for program in LAYOUTS), ("torchtitan", True), ("Megatron-LM", True)],
)
def test_layouts_of_programs(program: str, stated: bool, tmp_path: Path) -> None:
    for number, name in enumerate(LAYOUTS[program]):
        path = tmp_path / "job" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        later = made.BASE + number // 3 * 10**11
        header = {"distributedInfo": {"rank": number % 3, "world_size": 3}} if stated else {}
        write = made.packed if name.endswith(".gz") else made.printed
        write(path, made.trace(*events(number % 3), baseTimeNanoseconds=later, **header))
    run = perfkit.load(tmp_path / "job")
    rank_of = dict(zip(run.capture["path"], run.capture["rank"], strict=True))
    assert {
        str(tmp_path / "job" / name): n % 3 for n, name in enumerate(LAYOUTS[program])
    } == rank_of
    store.ingest([tmp_path / "job"], tmp_path / "store", workers=1)
    devices = run.reduced.by_device()
    assert devices.equals(perfkit.load(tmp_path / "store").reduced.by_device())
    view = perfkit.selection.select(run)
    page = timeline.breakdown(view.kernels, view.copies, window=view.measured)
    assert page["span_ns"].tolist() == devices["span_ns"].tolist()
    assert page["idle_ns"].tolist() == devices["idle_ns"].tolist()


def test_ranks_in_names_of_nsys_reports(tmp_path: Path) -> None:
    # `nsys profile -o report.%q{SLURM_PROCID}`.
    (tmp_path / "job" / "node0").mkdir(parents=True)
    for rank in (0, 2, 10):
        work = nsys_files.kernel(1000, 1500 + rank, "gemm")  # equal files would count as copies
        tables = nsys_files.capture() | {nsys_files.KERNEL: [work]}
        nsys_files.sqlite(tmp_path / "job" / "node0" / f"report.{rank}.sqlite", tables)
    pattern = r"report\.(\d+)\."
    assert [0, 2, 10] == perfkit.load(tmp_path / "job", rank_regex=pattern).capture["rank"].tolist()
    store.ingest([tmp_path / "job"], tmp_path / "store", workers=1, rank_regex=pattern)
    assert [0, 2, 10] == perfkit.load(tmp_path / "store").capture["rank"].tolist()
    with pytest.raises(PerfkitError, match="put the digits of the rank"):
        perfkit.load(tmp_path / "job", rank_regex="report")


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of eight ranks with more kernels than may be opened at once, of which rank 5 computes longest."""
    files = folder(tmp_path / "job", 7)
    late = [
        {**event, "dur": 90.0} if str(event["name"]).startswith("gemm") else event
        for event in events(7)
    ]
    stated = {"backend": "nccl", "rank": 7, "world_size": 8}
    made.packed(
        files / "rank7_trace.json.gz",
        made.trace(*late, distributedInfo=stated, baseTimeNanoseconds=made.BASE),
    )
    store.ingest([files], tmp_path / "store", workers=1)
    monkeypatch.setattr("perfkit.run.LARGE", 10)
    monkeypatch.setattr("perfkit.run.MANY", 8)
    return tmp_path / "store"


def test_chosen_ranks_of_a_large_store_are_opened_alone(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = perfkit.load(large)
    view = perfkit.select(run, ranks=[2, 7])
    assert [2, 7] == view.run.capture["rank"].tolist()
    assert noted(view.run, "opened ranks 2, 7 of 8")
    monkeypatch.setattr("perfkit.run.LARGE", 10**9)
    whole = perfkit.select(perfkit.load(large), ranks=[2, 7])
    assert 8 == len(whole.run.profiles)
    for name in ("kernels", "api_calls", "ranges", "collectives"):
        both = (getattr(each, name).reset_index(drop=True) for each in (view, whole))
        pd.testing.assert_frame_equal(*both)
    assert view.run.all_ranks is run
    with pytest.raises(perfkit.PerfkitError, match=r"no rank 12\. Choose from 0 to 7"):
        perfkit.select(run, ranks=[1, 12])


def test_a_report_and_a_notebook_of_a_large_store_look_at_a_few_ranks(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = perfkit.load(large)
    chosen = ranks.to_open(run.reduced.by_device())
    assert 7 in chosen
    assert 1 < len(chosen) < 8
    view = perfkit.select(run, ranks=chosen)
    shown = still(views.ranks(view))
    parts = next(spec for spec in specs(shown) if "rank" in json.dumps(spec))
    assert {f"rank {rank}" for rank in range(8)} <= set(re.findall(r"rank \d", json.dumps(parts)))
    seen = widgets.explorer(run)
    assert chosen == list(seen.ranks) == sorted(seen.run.capture["rank"])
    said: list[str] = []
    given: list[Any] = []

    class Listening(Session):
        def execute(
            self, names: list[str], parameters: dict[str, Any], **options: Any
        ) -> dict[str, Any]:
            given.append(parameters["ranks"])
            return super().execute(names, parameters, **options)

    monkeypatch.setattr("perfkit.report.notebooks.Session", Listening)
    monkeypatch.setattr(
        "perfkit.report.notebooks.answering", lambda *_: ["0_executive_summary", "3_system"]
    )
    report.build(large, tmp_path / "report", note=said.append)
    assert any("8 ranks are too many to open" in each for each in said)
    assert [chosen] == given
