"""Ranks of a run: tools of one node are one rank, nodes are several, and what a file states is not overwritten."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from frames import collectives, profile
from readers import dcgm_files, nccl_files, nsys_files
from readers import smi_files as smi
from sampled import devices

import perfkit
from perfkit.discovery import places, unlikely
from perfkit.profile import Profile, node_of

DATED = ("Date", "Time", *smi.COLUMNS)


def log(ranks: Sequence[int], name: str, reader: str = "nccl", own: int | None = None) -> Profile:
    """A profile whose COLLECTIVES hold these ranks; `own` is the rank that it states."""
    rows = [{"rank": rank, "gpu": -1, "ranks": 16} for rank in ranks]
    tables = {"COLLECTIVES": collectives(*rows)} if rows else {}
    return profile(reader, name, None, about={"rank": own}, **tables)


def recorded(
    reader: str, name: str, host: str = "", own: int | None = None, gpu: str = ""
) -> Profile:
    """A profile of a tool on a host, of one GPU if that is named."""
    tables = {"DEVICES": devices(gpu)} if gpu else {}
    return profile(reader, name, None, about={"rank": own, "node": node_of(host)}, **tables)


def first(*profiles: Profile) -> list[int]:
    """The rank of each profile in a run."""
    return [place.first for place in places(profiles)[0]]


def counted(*profiles: Profile) -> list[list[int]]:
    """The ranks of each profile in a run."""
    found, _ = places(profiles)
    tables = [profile.table("COLLECTIVES")["rank"] for profile in profiles]
    return [
        place.ranks("COLLECTIVES", own).tolist() for place, own in zip(found, tables, strict=True)
    ]


def node(folder: Path, name: str) -> None:
    """The logs of a node as two tools wrote them in the same six seconds, and its inventory."""
    stamps = [("20260101", f"00:00:{i // 2:02d}") for i in range(12)]
    rows = [(*stamp, *row) for stamp, row in zip(stamps, smi.ticks(), strict=True)]
    smi.dmon(folder / f"{name}_dmon.log", *rows, columns=DATED)
    smi.query(folder / f"{name}_query.csv", *smi.moments(4))
    smi.text(folder / f"{name}_inventory.txt")


def test_tools_of_one_node_are_one_rank_and_nodes_are_several(tmp_path: Path) -> None:
    node(tmp_path, "a")
    run = perfkit.load(tmp_path)
    assert 3 == len(run.profiles)
    assert {(0, 0), (0, 1)} == set(zip(run.samples["rank"], run.samples["gpu"], strict=True))
    assert [(0, 0), (0, 1)] == list(zip(run.devices["rank"], run.devices["gpu"], strict=True))
    assert [0, 0, 0] == run.capture["rank"].tolist()
    left = "gpu_busy_frac, power_w, temperature_c left out"
    assert f"a_query.csv: {left}, a_dmon.log has more readings of the same GPUs" in run.notes
    metrics = run.samples["metric"].value_counts()
    assert 12 == metrics["power_w"], "six readings of two GPUs, told once"
    assert metrics["memory_used_bytes"]
    node(tmp_path, "b")
    for file in tmp_path.glob("b_*"):  # a file with the content of another one is a copy of it
        file.write_text(file.read_text().replace("50", "51"))
    for files in (sorted(tmp_path.glob("*dmon.log")), [tmp_path]):
        run = perfkit.load(files)
        assert [0, 1] == sorted(run.samples["rank"].unique())
        assert {(0, 0), (0, 1), (1, 0), (1, 1)} == set(
            zip(run.samples["rank"], run.samples["gpu"], strict=True)
        )
    by_path = dict(zip(run.capture["path"], run.capture["rank"], strict=True))
    assert {("a", 0), ("b", 1)} == {(Path(path).name[0], rank) for path, rank in by_path.items()}


def test_ranks_inside_files_survive_beside_each_other() -> None:
    first, second = log(range(4), "a"), log(range(4, 8), "b")
    assert [[0, 1, 2, 3], [4, 5, 6, 7]] == counted(first, second)
    assert [[4, 5, 6, 7], [0, 1, 2, 3]] == counted(second, first)
    assert [] == places([first, second])[1]
    found = [log(range(4), "a"), log(range(4), "b"), log([2, 3], "c")]
    assert [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == counted(*found)
    assert [
        "b: its 4 ranks from 0 on are counted from 4 on: another file has some of them",
        "c: its 2 ranks from 2 on are counted from 8 on: another file has some of them",
    ] == places(found)[1]
    assert [[5], [0, 1, 2, 3]] == counted(log([0], "a", own=5), log(range(4), "b"))
    assert [[6], [5], [0, 1, 2, 3]] == counted(
        log([0], "c"), log([0], "a", own=5), log(range(4), "b")
    )
    found = [log([0], "a", own=3), log([0], "b", own=3)]
    assert [[0], [1]] == counted(*found)
    because = "the ranks that the files state are not all different"
    assert [
        f"a: rank 3 is counted as 0: {because}",
        f"b: rank 3 is counted as 1: {because}",
    ] == places(found)[1]
    assert [] == places([log([0], "a"), log([0], "b")])[1]
    assert [0, 1] == [place.first for place in places([log([], "a"), log([], "b")])[0]]


def test_no_table_is_read_where_it_cannot_matter() -> None:
    def read() -> pd.DataFrame:
        raise AssertionError("a table was read")

    for reader, count in (("nccl", 1), ("nsys", 2)):
        unread = replace(log([], "a", reader), loaders={"COLLECTIVES": read, "SAMPLES": read})
        assert [0, 1][:count] == [place.first for place in places([unread] * count)[0]]


def test_calls_of_every_rank_of_two_nodes_are_kept(tmp_path: Path) -> None:
    for number in (0, 1):
        ranks = (2 * number, 2 * number + 1)
        lines = [line for rank in ranks for line in nccl_files.init(rank, 4, nodes=2)]
        lines += [nccl_files.call("AllReduce", 1024, ranks=4, rank=rank) for rank in ranks]
        nccl_files.written(tmp_path / f"node{number}.log", lines)
    run = perfkit.load(tmp_path)
    assert [0, 1, 2, 3] == run.collectives["rank"].tolist()
    assert [0, 2] == run.capture["rank"].tolist()


def test_hosts_of_two_scrapes_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        said = [
            dcgm_files.series("DCGM_FI_DEV_POWER_USAGE", 200, 201, host=f"{name}{host}")
            for host in (1, 2)
        ]
        dcgm_files.answer(tmp_path / f"{name}.json", *said)
    run = perfkit.load(tmp_path)
    assert [0, 1, 2, 3] == sorted(run.samples["rank"].unique())
    assert (
        "b.json: its 2 ranks from 0 on are counted from 2 on: another file has some of them"
        in run.notes
    )


@pytest.mark.parametrize("turned", [False, True])
def test_real_logs_of_one_machine_are_one_rank(profiles: Path, turned: bool) -> None:
    name = "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__{}"
    paths = [profiles / "monitor" / name.format(end) for end in ("dmon.txt", "query-gpu.csv")]
    run = perfkit.load(paths[::-1] if turned else paths)
    assert {(0, 0)} == set(zip(run.samples["rank"], run.samples["gpu"], strict=True))
    alone = [perfkit.load(path).samples for path in paths]
    most = pd.concat([one["metric"].astype(str).value_counts() for one in alone], axis=1).max(
        axis=1
    )
    assert most.astype(int).to_dict() == run.samples["metric"].astype(str).value_counts().to_dict()


def test_a_log_goes_to_the_lowest_rank_of_its_host() -> None:
    capture = recorded("nsys", "a.sqlite", "node1")
    assert [0, 0] == first(capture, recorded("dcgm", "a.prom", "node1.cluster.example"))
    apart = capture, recorded("dcgm", "b.prom", "node2")
    assert [0, 1] == first(*apart)
    assert ["b.prom: counted as rank 1: it states another host than other tools"] == places(apart)[
        1
    ]
    assert [0, 0] == first(capture, recorded("dcgm", "b.prom"))
    captures = recorded("nsys", "a.sqlite", "node1"), recorded("nsys", "b.sqlite", "node2")
    assert [0, 1, 1] == first(*captures, recorded("dcgm", "b.prom", "node2"))
    logs = recorded("dcgm", "1.prom", "node2"), recorded("dcgm", "2.prom", "node1")
    assert [0, 1, 1, 0] == first(*captures, *logs)
    assert [] == places([*captures, *logs])[1]
    assert [0, 1, 2] == first(*captures, recorded("dcgm", "c.prom", "node3"))
    captures = [
        recorded("torch_trace", f"{rank}.json", f"node{rank // 6}", own=rank)
        for rank in range(4, 8)
    ]
    logs = [recorded("dcgm", "0.prom", "node0"), recorded("dcgm", "1.prom", "node1")]
    assert [4, 5, 6, 7, 4, 6] == first(*captures, *logs)


@pytest.mark.parametrize(
    "host", ["10.0.0.7:9400", "localhost", "0f3a5b7c9d1e", "dcgm-exporter-x7k2p", "fe80::1"]
)
def test_names_that_tell_no_node_apart_state_none(host: str) -> None:
    # Names that container engines make up differ on one node, and are alike on several.
    assert "" == node_of(host)
    assert [0, 0] == first(recorded("nsys", "a.sqlite", "node1"), recorded("dcgm", "a.prom", host))


def test_what_cannot_be_one_node_is_noted() -> None:
    one = recorded("nsys", "a.sqlite", gpu="NVIDIA H100 80GB HBM3")
    for name, noted in (
        ("H100 80GB HBM3", False),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", False),
        ("Tesla T4", True),
    ):
        both = [one, recorded("nvidia_smi", "b.csv", gpu=name)]
        found = unlikely(both, places(both)[0])
        said = (
            "though they name different GPUs as GPU 0 of rank 0 (NVIDIA H100 80GB HBM3, Tesla T4)"
        )
        assert ([f"a.sqlite and b.csv: counted as of one node, {said}"] if noted else []) == found
    stated = [recorded("torch_trace", f"{i}", f"n{i}", own=0) for i in (0, 1)]
    assert [] == unlikely(stated, places(stated)[0]), "files of one tool are of different ranks"
    mixed = [recorded("torch_trace", "t", "n0", own=0), recorded("rocm_smi", "r", "n1", own=0)]
    notes = unlikely(mixed, places(mixed)[0])
    assert (
        "t and r: counted as of one node, though they state different hosts: load them apart"
        in notes
    )


def test_hosts_of_files_decide(tmp_path: Path) -> None:
    for host in ("n1", "n2"):
        series = dcgm_files.series("DCGM_FI_DEV_POWER_USAGE", 200, 201, host=f"{host}.example")
        dcgm_files.answer(tmp_path / f"{host}.json", series)
    environment = [
        {"name": "Hostname", "value": "n2"},
        {"name": "DeviceEnvironment", "value": "SECRET=1"},
    ]
    nsys_files.sqlite(
        tmp_path / "run.sqlite", nsys_files.capture() | {"TARGET_INFO_SYSTEM_ENV": environment}
    )
    for _ in range(2):
        run = perfkit.load(tmp_path)
        assert {1} == set(run.kernels["rank"])
        assert {0, 1} == set(run.samples.loc[run.samples["metric"] == "power_w", "rank"])
    (capture,) = (profile for profile in run.profiles if profile.reader == "nsys")
    assert node_of("n2") == capture.node
    assert "n2" not in capture.node


def test_real_captures_state_no_host_and_stay(profiles: Path) -> None:
    """A trace of an H100 beside a log of one without a clock: nothing is moved; a log of a T4 is noted if joined.

    `load` refuses the T4's log (`perfkit.joining`), so that its profile is joined here by hand.
    """
    trace = profiles / "torch" / "TraceLens__h100__gaunernst_bert-small-uncased__1016001.json.gz"
    name = "nvidia_gpu_exporter__linux-x86_64__nvidia-h100-80gb-hbm3__590.48.01__load.metrics"
    same = perfkit.load([trace, profiles / "monitor" / name])
    logs = perfkit.load(profiles / "monitor" / "dcgm_exporter_t4_k8s.prom").profiles
    other = perfkit.Run([*perfkit.load(trace).profiles, *logs])
    for run, count in ((same, 0), (other, 1)):
        assert {0} == set(run.kernels["rank"]) == set(run.samples["rank"])
        assert count == sum("name different GPUs" in note for note in run.notes)


TRANSFORMER = "torch/sidnb13__torch-profiling-tutorial__transformer"
CYCLES = (  # of two processes (851 and 4399 in the names), two cycles of the profiler each
    *("dc3b0e7228dd_851.1752215573993169006", "dc3b0e7228dd_851.1752215574025896717"),
    *("dcb0aa1a78e7_4399.1752181589589738346", "dcb0aa1a78e7_4399.1752181589621105859"),
)


def raw_kernels(path: Path) -> list[dict[str, Any]]:
    """The kernels of a trace, by its own JSON."""
    events = json.loads(path.read_text("utf-8"))["traceEvents"]
    return [event for event in events if event.get("cat") == "kernel"]


def test_two_cycles_of_one_process_are_one_rank(profiles: Path) -> None:
    loaded = perfkit.load(profiles / TRANSFORMER)
    counted = [
        len(raw_kernels(profiles / TRANSFORMER / f"{name}.pt.trace.json")) for name in CYCLES
    ]
    assert [48] * 4 == counted
    assert {(0, 0): 96, (1, 0): 96} == loaded.kernels.groupby(["rank", "gpu"]).size().to_dict()
    by_reader = (
        loaded.profiles[0].capture["dur_ns"].item() + loaded.profiles[1].capture["dur_ns"].item()
    )
    of_first = loaded.kernels[loaded.kernels["rank"].eq(0)]
    assert (of_first["start_ns"] + of_first["dur_ns"]).max() <= by_reader
    assert 2 == sum("a recording of the same rank" in note for note in loaded.notes)
    ops = perfkit.load(profiles / TRANSFORMER).table("OPS")
    assert not ops.duplicated(["rank", "op"]).any()
    keys = {"left_on": ["rank", "parent"], "right_on": ["rank", "op"]}
    inner = ops[ops["parent"] >= 0].merge(ops, **keys, suffixes=("", "_up"))
    assert len(inner) == (ops["parent"] >= 0).sum() > 0
    assert (inner["start_ns"] >= inner["start_ns_up"]).all()
    assert (inner["start_ns"] + inner["dur_ns"] <= inner["start_ns_up"] + inner["dur_ns_up"]).all()


def test_beside_another_tool_the_pause_between_cycles_counts(
    profiles: Path, tmp_path: Path
) -> None:
    for cycle in CYCLES[:2]:
        shutil.copy(profiles / TRANSFORMER / f"{cycle}.pt.trace.json", tmp_path)
    alone = perfkit.load(tmp_path)
    rows = [
        f"2025/07/11 06:32:{second}.000, 0, NVIDIA H100 80GB HBM3, 20 %" for second in (53, 54, 55)
    ]
    log = ["timestamp, index, name, utilization.gpu [%]", *rows, ""]
    (tmp_path / "gpu.csv").write_text("\n".join(log), encoding="utf-8")
    beside = perfkit.load(tmp_path)
    for loaded, apart, said in (
        (alone, False, "left out"),
        (beside, True, "since another tool recorded too"),
    ):
        (note,) = [note for note in loaded.notes if "a recording of the same rank" in note]
        assert said in note
        gaps = loaded.kernels["start_ns"].diff().max()
        assert apart == (gaps > 25_000_000)


def test_a_step_in_a_name_is_no_rank(profiles: Path, tmp_path: Path) -> None:
    names = ("rank3_step10", "rank3_step20", "rank7_step10", "rank7_step20")
    for cycle, name in zip(CYCLES, names, strict=True):
        shutil.copy(profiles / TRANSFORMER / f"{cycle}.pt.trace.json", tmp_path / f"{name}.json")
    assert {3: 96, 7: 96} == perfkit.load(tmp_path).kernels.groupby("rank").size().to_dict()
    shutil.copy(tmp_path / "rank3_step10.json", tmp_path / "rank3_step20.json")
    (tmp_path / "rank7_step10.json").unlink()
    (tmp_path / "rank7_step20.json").unlink()
    assert [48] == perfkit.load(tmp_path).kernels.groupby(
        "rank"
    ).size().tolist()  # a copy is no step of its own


def test_eight_ranks_of_one_job(profiles: Path) -> None:
    folder = profiles / "torch" / "facebookresearch__param__dlrm_kineto"
    raw = [raw_kernels(path) for path in sorted(folder.iterdir())]
    assert [245, 310, 246, 315, 251, 245, 246, 246] == [len(kernels) for kernels in raw]
    loaded = perfkit.load(folder)
    counts = loaded.kernels.groupby(["rank", "gpu"]).size()
    assert {(i, i): len(kernels) for i, kernels in enumerate(raw)} == counts.to_dict()
    sums = loaded.kernels.groupby("rank")["dur_ns"].sum()
    assert [sum(kernel["dur"] for kernel in kernels) * 1000 for kernels in raw] == sums.tolist()
    assert loaded.is_on_one_clock
    # The first and the last kernel of all ranks, on the clock that the eight files share.
    earliest = min(kernel["ts"] for kernels in raw for kernel in kernels)
    latest = max(kernel["ts"] + kernel["dur"] for kernels in raw for kernel in kernels)
    ends = loaded.kernels["start_ns"] + loaded.kernels["dur_ns"]
    assert (latest - earliest) * 1000 == ends.max() - loaded.kernels["start_ns"].min()


def test_a_copy_of_a_file_is_no_further_rank(tmp_path: Path) -> None:
    nsys_files.sqlite(
        tmp_path / "run.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [nsys_files.kernel(0, 10)]}
    )
    one = perfkit.load(tmp_path).kernels
    shutil.copy(tmp_path / "run.sqlite", tmp_path / "run_copy.sqlite")
    run = perfkit.load(tmp_path)
    pd.testing.assert_frame_equal(run.kernels, one)
    assert "run_copy.sqlite: left out, for its content is that of run.sqlite" in run.notes


def test_files_that_differ_in_the_middle_alone_are_two_profiles(tmp_path: Path) -> None:
    rows = [
        list(row) for row in smi.moments(60, gpus=4)
    ]  # more than the head and the tail that are compared first
    smi.query(tmp_path / "node0.csv", *rows)
    rows[120][3] = rows[120][3].replace("1", "2")
    smi.query(tmp_path / "node1.csv", *rows)
    assert len(perfkit.load(tmp_path).profiles) == 2
