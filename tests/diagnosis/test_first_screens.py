"""The first screen of a log, a dump or a report of counters says only what is true.

Each input is written here by hand, so that its true conclusion is known.
"""

import json
from pathlib import Path

import extras
import pandas as pd
import pytest
from diagnosis.test_gpus import kernel
from diagnosis.traces import view
from dumps.dump_files import entry, job
from frames import kernels

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import timeline
from perfkit.diagnosis.finding import HORIZONS, Finding
from perfkit.diagnosis.headline import NOT_JUDGED, headline, nothing_found
from perfkit.diagnosis.rules import rules as every_rule
from perfkit.dumps.hang_rules import OF_DUMPS
from perfkit.dumps.memory_diagnosis import _cause
from perfkit.dumps.memory_rules import FRAGMENTS, OTHERS, SMALLER_BATCH
from perfkit.report import blocks
from perfkit.report.notebooks import sample

QUERY = (
    "timestamp, index, name, utilization.gpu [%], power.draw [W], power.limit [W], "
    "memory.used [MiB], memory.total [MiB]"
)
DCGM = "#Entity   GRACT  SMACT  TENSO\nID\n"


def screen(path: Path) -> tuple[str, dict[str, tuple[str, str]], list[Finding]]:
    """Return the verdict, the tiles by label, and the findings of a file."""
    view = diagnosis.judged(perfkit.select(perfkit.load(path)))
    figures, findings = diagnosis.figures(view), diagnosis.findings(view)
    shown = headline(view, figures, findings)
    return shown.verdict, {t.label: (t.value, t.note) for t in shown.tiles}, findings


def steps(findings: list[Finding]) -> list[str]:
    every = [step for f in findings for horizon in HORIZONS for step in f.advice.get(horizon, ())]
    return [*every, *(f.next for f in findings)]


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def queried(path: Path, readings: list[tuple[int, str, float, float]], count: int = 5) -> Path:
    """Write a log of nvidia-smi: of each GPU its index, utilisation, W and MiB, some times."""
    lines = [QUERY]
    for second in range(count):
        for gpu, busy, watts, used in readings:
            when = f"2026/01/31 12:00:{second:02d}.000"
            row = (when, gpu, "NVIDIA A100-SXM4-80GB", busy, f"{watts} W", "400 W", f"{used} MiB")
            lines.append(", ".join(map(str, (*row, "81920 MiB"))))
    return written(path, "\n".join(lines) + "\n")


def test_a_tile_names_the_gpu_where_only_some_gpus_have_a_reading(tmp_path: Path) -> None:
    log = written(
        tmp_path / "dcgm.txt",
        DCGM + "GPU 0     0.600  N/A    N/A\nGPU 1     N/A    0.300  0.100\n",
    )
    verdict, tiles, _ = screen(log)
    assert verdict.startswith("At the only reading, a kernel ran 60.0 % of the time on GPU 0.")
    assert tiles["GPU utilisation"] == ("60.0 %", "the only reading of GPU 0")
    assert tiles["SMs active"] == ("30.0 %", "the only reading of GPU 1")


def test_the_instances_of_mig_are_told_and_not_their_average_alone(tmp_path: Path) -> None:
    """Slices 4 of 7 at 70 % and 3 of 7 at 0 %: the GPU's own value is 40 %, and no kernel's time."""
    rows = (
        "GPU 0      0.400  0.400  0.1\nGPU-I 0    0.000  0.000  0.0\nGPU-I 1    0.700  0.700  0.2\n"
    )
    verdict, _, _ = screen(written(tmp_path / "dcgm.txt", DCGM + rows))
    assert "instances of the GPU (MIG) were busy 0 % to 70.0 % of the time" in verdict


def test_the_highest_memory_and_power_are_those_of_all_gpus(tmp_path: Path) -> None:
    log = queried(tmp_path / "gpu.csv", [(0, "90 %", 100, 8192), (1, "95 %", 300, 65536)])
    _, tiles, _ = screen(log)
    assert tiles["Highest memory"] == ("80.0 %", "of what the GPU has, GPU 1")
    assert tiles["Highest power"] == ("75.0 %", "of the limit, GPU 1")


def test_a_limit_that_only_the_data_sheet_gives_is_called_so(tmp_path: Path) -> None:
    lines = ["timestamp, index, name, utilization.gpu [%], power.draw [W]"]
    lines += [
        f"2026/01/31 12:00:{second:02d}.000, 0, NVIDIA A100-SXM4-80GB, 95 %, 300 W"
        for second in range(5)
    ]
    _, tiles, _ = screen(written(tmp_path / "gpu.csv", "\n".join(lines) + "\n"))
    assert tiles["Highest power"] == ("75.0 %", "of the limit in the data sheet")


def test_an_empty_gpu_without_a_utilisation_gets_no_advice_on_its_work(tmp_path: Path) -> None:
    """MIG and some cards give no utilisation: memory and power show that no program is there."""
    verdict, _, findings = screen(queried(tmp_path / "gpu.csv", [(0, "[N/A]", 60, 80)]))
    assert verdict == (
        "No program holds memory on the GPU, and it draws 15.0 % of its power limit."
    )
    assert [f.rule for f in findings] == ["log_no_work"]
    busy = queried(tmp_path / "held.csv", [(0, "[N/A]", 60, 40960)])
    assert [f.rule for f in screen(busy)[2]] == ["log_power"]


def test_only_gpus_that_never_reached_80_percent_are_said_to(tmp_path: Path) -> None:
    lines = [QUERY]
    for second in range(10):
        for gpu, busy in ((0, 20), (1, 30), (2, 85 if second < 5 else 10)):
            when = f"2026/01/31 12:00:{second:02d}.000"
            lines.append(
                f"{when}, {gpu}, NVIDIA A100-SXM4-80GB, {busy} %, 300 W, 400 W, 9000 MiB, 81920 MiB"
            )
    verdict, _, _ = screen(written(tmp_path / "gpu.csv", "\n".join(lines) + "\n"))
    assert verdict.startswith(
        "GPU 0 never reached 80 % utilisation (also: GPU 1); GPU 2 too seldom."
    )


def test_unused_gpus_bound_the_gain_by_the_gpus_that_work(tmp_path: Path) -> None:
    """Of 4 GPUs one works, one holds memory without work, two are empty: 3 times at most."""
    work = [(0, "95 %", 300, 40960), (1, "0 %", 60, 40960), (2, "0 %", 50, 3), (3, "0 %", 50, 3)]
    _, _, findings = screen(queried(tmp_path / "gpu.csv", work))
    unused = next(f for f in findings if f.rule == "log_unused")
    assert unused.gain.high == 3.0


def test_one_reading_is_divided_as_its_utilisation_says(tmp_path: Path) -> None:
    path = queried(tmp_path / "gpu.csv", [(0, "8 %", 100, 8192)], count=1)
    view = perfkit.select(perfkit.load(path))
    states = diagnosis.picture.shares(view)
    assert {"working": 0.08, "idle": 0.92} == {
        str(k): round(float(v), 3) for k, v in states.items()
    }


def test_a_log_of_amd_is_never_told_to_run_tools_of_nvidia(tmp_path: Path) -> None:
    card = '{"card0": {"Card series": "0x73df", "GPU use (%)": "0", "Average Graphics Package Power (W)": "6.0"}}'
    _, _, findings = screen(written(tmp_path / "smi.json", card))
    assert [f.rule for f in findings] == ["log_no_work"]
    assert not [step for step in steps(findings) if "nvidia" in step or "nsys" in step]
    assert any("amd-smi" in step for step in steps(findings))


def test_a_message_without_bytes_is_no_shortest_time(tmp_path: Path) -> None:
    devices = [
        f"#  Rank  {rank} Group  0 Pid  {rank} on  node{rank} device  0 [0x07] NVIDIA A100-SXM4-40GB"
        for rank in (0, 1)
    ]
    columns = "time   algbw   busbw #wrong"
    header = f"#       size         count      type   redop    root     {columns}     {columns}"
    units = "#        (B)    (elements)        (us)  (GB/s)  (GB/s)    (us)  (GB/s)  (GB/s)"
    rows = [
        f"{size} {size // 4} float none -1 {us} {rate} {rate / 2} 0 {us} {rate} {rate / 2} N/A"
        for size, us, rate in ((0, 1.33, 0), (67108864, 6711, 10), (134217728, 13422, 10))
    ]
    start = "# nThread 1 nGpus 1 minBytes 0 maxBytes 134217728\n# Collective test starting: alltoall_perf"
    lines = [start, "# Using devices", *devices]
    text = "\n".join([*lines, header, units, *rows, "# Out of bounds values : 0 OK", ""])
    path = written(tmp_path / "alltoall_output.txt", text)
    _, tiles, findings = screen(path)
    assert tiles["Shortest time"] == ("6.71 ms", "for a message of 67.1 MB")
    view = perfkit.select(perfkit.load(path))
    assert nothing_found(diagnosis.figures(view)) == NOT_JUDGED, "the network's speed is not known"
    assert [r for r in diagnosis.refusals(view) if "on nodes of 1 GPU communicate" in r.reason]
    assert not findings


def test_a_file_of_one_rank_of_nccl_inspector_is_not_called_a_machine_without_work(
    tmp_path: Path,
) -> None:
    line = {
        "header": {"id": "0x1", "rank": 3, "n_ranks": 8, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0"},
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": 7,
            "coll_msg_size_bytes": 1 << 20,
            "coll_exec_time_us": 90,
        },
    }
    verdict, _, _ = screen(written(tmp_path / "host-pid1.log", json.dumps(line) + "\n"))
    assert verdict.startswith("The recording holds 1 operation of NCCL, of 1 of 8 ranks.")


def test_a_hang_is_to_be_mended_today_and_not_within_weeks() -> None:
    rules = [rule for name, rule in every_rule().items() if rule.needs == OF_DUMPS["needs"]]
    assert len(rules) == 4
    assert {rule.advice[0].horizon for rule in rules} == {"today"}
    assert blocks.WEEKS[HORIZONS[0]] == "Today"


def heated(second: int, gpu: int) -> str:
    when = f"2026/01/31 12:{second // 60:02d}:{second % 60:02d}.000"
    reason = "0x0000000000000020" if gpu == 0 else "0x0000000000000000"
    return f"{when}, {gpu}, NVIDIA A100-SXM4-80GB, 98 %, 300 W, 400 W, 1200 MHz, 1410 MHz, {reason}"


def test_a_log_names_what_lowers_the_clock(tmp_path: Path) -> None:
    """0x20 is the software's thermal slowdown: the power limit has no part in it."""
    columns = "timestamp, index, name, utilization.gpu [%], power.draw [W], power.limit [W]"
    columns += ", clocks.current.sm [MHz], clocks.max.sm [MHz], clocks_event_reasons.active"
    lines = [columns, *(heated(second, gpu) for second in range(20) for gpu in (0, 1))]
    verdict, _, findings = screen(written(tmp_path / "gpu.csv", "\n".join(lines) + "\n"))
    assert verdict.startswith("Heat lowered the clock of GPU 0 100 % of the time, to 85.1 %")
    assert findings[0].advice["immediate"] == (
        "Improve the cooling and the airflow: heat lowers the clock",
    )


def test_what_a_log_reads_before_the_work_is_not_judged(tmp_path: Path) -> None:
    lines = [QUERY]
    for second in range(40):
        busy, watts = ("0 %", 60) if second < 20 else ("97 %", 380)
        when = f"2026/01/31 12:00:{second:02d}.000"
        lines.append(
            f"{when}, 0, NVIDIA A100-SXM4-80GB, {busy}, {watts} W, 400 W, 9000 MiB, 81920 MiB"
        )
    verdict, tiles, findings = screen(written(tmp_path / "gpu.csv", "\n".join(lines) + "\n"))
    assert verdict == "A kernel ran 97.0 % of the time. No check of the log needs attention."
    assert tiles["GPU utilisation"] == (
        "97.0 %",
        "average of 20 readings; 20 before and after do not count",
    )
    assert not findings


def test_gpus_of_a_node_that_use_shared_memory_are_told(tmp_path: Path) -> None:
    """Of 4 connections in a node 1 is SHM, and 3 are peer to peer."""
    lines = [
        f"node0:10{rank}:20{rank} [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> "
        f"{(rank + 1) % 4}[{(rank + 1) % 4}] via {'SHM/direct/direct' if rank == 3 else 'P2P/CUMEM'}"
        for rank in range(4)
    ]
    verdict, _, _ = screen(written(tmp_path / "nccl.log", "\n".join(lines) + "\n"))
    assert verdict.startswith(
        "NCCL runs 25.0 % of its connections inside a node through the CPU's memory."
    )


def counters(path: Path, **more: str) -> Path:
    """Write a page of Nsight Compute of 2 blocks of 8 threads."""
    cells = {
        "ID": ("", "0"),
        **dict.fromkeys(("Process ID", "Process Name", "Host Name"), ("", "1")),
        "Kernel Name": ("", "scale(float*)"),
        **dict.fromkeys(("Context", "Stream"), ("", "1")),
        "Block Size": ("", "(8, 1, 1)"),
        "Grid Size": ("", "(2, 1, 1)"),
        "Device": ("", "0"),
        "CC": ("", "7.5"),
        "gpu__time_duration.sum": ("ns", "4,000"),
        "launch__block_size": ("", "8"),
        "launch__grid_size": ("", "2"),
        **{name: ("%", value) for name, value in more.items()},
    }
    columns = zip(*((name, *cell) for name, cell in cells.items()), strict=True)
    rows = (",".join(f'"{cell}"' for cell in row) for row in columns)
    return written(path, "\n".join(rows) + "\n")


def test_a_launch_that_fits_in_one_block_is_told_to_have_too_little_work(tmp_path: Path) -> None:
    """16 threads in all: larger blocks change nothing, so 4 times faster (32 of 8 lanes) is no bound."""
    path = counters(tmp_path / "ncu.csv")
    _, _, findings = screen(path)
    (small,) = (f for f in findings if f.rule == "small_blocks")
    assert not small.gain.is_known
    assert small.advice["immediate"][0].startswith("Give each launch more work")


def test_a_gpu_without_tensor_cores_is_not_asked_for_their_operations(profiles: Path) -> None:
    """A GTX 1660 SUPER has none; the same question is asked of an RTX 3080, which has some."""
    asked = "How many operations ran on tensor cores?"
    for name, is_asked in (
        ("LakshyaSingh354__CudaCode__naive.ncu-rep", False),
        ("AshunFeiyu__Cuda_Gemm_Practice__gemm_v9.ncu-rep", True),
    ):
        extras.require_reader(f"ncu/{name}")
        view = perfkit.select(perfkit.load(profiles / "ncu" / name))
        assert is_asked is (asked in {r.question for r in diagnosis.refusals(view)})


def test_a_limit_of_the_sms_without_its_unit_asks_for_the_unit(tmp_path: Path) -> None:
    name = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    memory = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
    path = counters(tmp_path / "ncu.csv", **{name: "88.9", memory: "12.0"})
    text = (
        path.read_text()
        .replace('"(8, 1, 1)"', '"(256, 1, 1)"')
        .replace('"(2, 1, 1)"', '"(900, 1, 1)"')
    )
    path.write_text(text.replace('"8"', '"256"').replace('"2"', '"900"'))
    _, _, findings = screen(path)
    assert "Record which unit of the SMs limits: ncu" in findings[0].advice["immediate"][0]


def test_out_of_memory_by_fragmentation_is_told_to_join_segments_first() -> None:
    of_cause = _cause(asked=100.0, unused=300.0, free=10.0)
    assert (FRAGMENTS, OTHERS, SMALLER_BATCH) == (
        of_cause[1],
        _cause(asked=100.0, unused=0.0, free=200.0)[1],
        _cause(asked=100.0, unused=0.0, free=10.0)[1],
    )


def test_what_is_left_of_idle_time_is_an_average_and_not_the_range_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two GPUs of 100 ns are idle 40 and 60; another finding tells of 10 of the 50 on average."""
    gpus = pd.DataFrame({"rank": [0, 1], "gpu": [0, 0], "span_ns": [100, 100]})
    monkeypatch.setattr(timeline, "busy", lambda _: gpus)
    monkeypatch.setattr(timeline, "idle_shares", lambda *_: pd.Series([0.4, 0.6]))
    view = perfkit.select(perfkit.load(sample() / "mlp_a100.pt.trace.json.gz"))
    assert timeline.whose_idle(view, "", 0.4) == "2 GPUs idle 40.0 % of the time on average"
    assert timeline.whose_idle(view, "", 0.5) == (
        "GPU 0 of rank 1 idle 60.0 % of the time (GPU 0 of rank 0: 40.0 %)"
    )


def test_a_launch_at_the_peak_of_the_tensor_pipe_has_no_roof_of_memory_alone(
    tmp_path: Path,
) -> None:
    """The pipe is 93 % busy and no operation was counted: "17 times to the roof" would be memory's."""
    busy = {
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": "93.0",
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": "93.0",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": "5.0",
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "20.0",
    }
    path = counters(tmp_path / "ncu.csv", **busy)
    text = path.read_text().replace("scale(float*)", "ampere_h16816gemm_128x128")
    text = text.replace('"(8, 1, 1)"', '"(256, 1, 1)"').replace('"(2, 1, 1)"', '"(9000, 1, 1)"')
    path.write_text(text.replace('"8"', '"256"').replace('"2"', '"9000"'))
    verdict, tiles, findings = screen(path)
    assert verdict.startswith("The tensor pipe limits the measured kernels 100 % of their time.")
    assert "Share of the roof" not in tiles
    assert not any("on tensor cores" in step for step in steps(findings))


def met(turns: int) -> perfkit.Selection:
    """Return two GPUs that meet in collectives of 1 ms, to which each comes 8 ms late in turn."""
    rows = []
    for turn in range(turns):
        for gpu in (0, 1):
            late, begin = 8 * (turn % 2 == gpu), 11 * turn
            rows += [kernel(gpu, begin + late, 1), kernel(gpu, begin + late + 1, 9 - late, "nccl")]
    return view(kernels=kernels(*rows))


@pytest.mark.parametrize(("turns", "rule"), [(8, "late_in_turn"), (4, "exposed_communication")])
def test_a_wait_for_other_gpus_that_no_finding_tells_stays_exposed_communication(
    turns: int, rule: str
) -> None:
    """Of each 11 ms a GPU waits 4 on average: by 4 meetings nobody can tell that they alternate."""
    assert rule in [found.rule for found in diagnosis.findings(met(turns))]


def test_dumps_of_a_program_that_does_not_hang_are_not_called_a_machine(tmp_path: Path) -> None:
    """Three ranks, of which each ended the same two collectives."""
    done = [entry(number, state="completed") for number in (1, 2)]
    chosen = perfkit.select(perfkit.load(job(tmp_path, done, done, done)))
    said = headline(chosen, diagnosis.figures(chosen), diagnosis.findings(chosen)).verdict
    assert said == (
        "The dumps hold 6 operations of NCCL on 3 ranks. None of them shows a rank that waits for "
        "another."
    )
