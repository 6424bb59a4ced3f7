"""What cannot be of one program on one machine is kept apart or refused; what can stays joined."""

from pathlib import Path

import extras
import pandas as pd
import pytest
from frames import collectives, kernels, profile
from sampled import devices, samples

import perfkit
from perfkit.diagnosis import figures
from perfkit.errors import PerfkitError
from perfkit.joining import Others, contradictions, members
from perfkit.profile import Profile
from perfkit.report.notebooks import sample
from perfkit.selection import select

DAY_NS = 24 * 3600 * 10**9
T4 = "nsys/Lianhang666__gpu4__report2.sqlite"
A100 = "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite"
PATHS = "hpctoolkit/hpctoolkit-leo-nvidia-database"


def recorded(reader: str = "nsys", t0: int | None = None, **tables: pd.DataFrame) -> Profile:
    """What a reader returned of 1 s, with the wall clock at its start."""
    return profile(reader, reader, t0, 10**9, **tables)


def reasons(one: Profile, *others: Profile) -> list[str]:
    beside = Others(len(others))
    for other in others:
        beside.add(other)
    return list(contradictions(one, beside))


def benchmark(ranks: int) -> Profile:
    rows = {"gpu": -1, "dur_ns": 9.0, "ranks": ranks, "source": "benchmark"}
    return recorded("nccl", COLLECTIVES=collectives(rows))


@pytest.mark.parametrize(
    ("reader", "days", "apart"),
    [
        ("ncu", 30, ""),
        ("ncu", 31, "31 days after nsys"),
        ("nvidia_smi", 1, ""),
        ("nvidia_smi", 3, "3 days after nsys"),
    ],
)
def test_recordings_far_apart(reader: str, days: int, apart: str) -> None:
    """A report may be of another day, a log may not: its day ends with the recording; without a clock nothing is said.

    The timeline lasts 1 s, so that what begins 31 days after its start begins 31 days less 1 s after its end.
    """
    timeline = recorded(t0=0)
    found = reasons(recorded(reader, t0=days * DAY_NS + 10**9), timeline)
    assert ([f"it was recorded {apart}"] if apart else []) == found
    assert [] == reasons(recorded(reader), timeline)


def test_gpus_of_other_machines() -> None:
    # Without the maker, as a slice or as an identifier it can be the same GPU.
    a100 = "NVIDIA A100-SXM4-80GB"
    names = {
        "A100-SXM4-80GB": False,
        f"{a100} MIG 1g.10gb": False,
        "0x73df": False,
        "Tesla T4": True,
    }
    for name, apart in names.items():
        found = reasons(recorded("ncu", DEVICES=devices(name)), recorded(DEVICES=devices(a100)))
        assert ([f"its GPU is {name}, that of the others {a100}"] if apart else []) == found
    # Two timelines are two ranks, and a cluster can have two kinds of GPUs.
    work = kernels({"start_ns": 0, "dur_ns": 1})
    one, other = (recorded(DEVICES=devices(name), KERNELS=work) for name in ("Tesla T4", a100))
    assert [] == reasons(one, other)
    # A T4 is of 70 W (its data sheet): half as much again may be a raised limit, 106 W are another GPU.
    said = "it reads 106 W, and Tesla T4 draws up to 70.0 W (data sheet)"
    for watts, apart in ((105, []), (106, [said])):
        log = recorded("nvidia_smi", SAMPLES=samples(power_w=[7, watts]))
        assert apart == reasons(log, recorded(DEVICES=devices("Tesla T4")))


def test_collectives_of_eight_ranks_beside_one_gpu() -> None:
    alone = recorded(KERNELS=kernels({"family": "gemm", "start_ns": 0, "dur_ns": 1}))
    said = "its collectives are of 8 ranks, and the one GPU of nsys launched no collective"
    assert [said] == reasons(benchmark(8), alone)
    assert [] == reasons(benchmark(1), alone)
    for rows in ([{"family": "communication"}], [{"gpu": 0}, {"gpu": 1}]):
        some = kernels(*({"start_ns": 0, "dur_ns": 1, **row} for row in rows))
        assert [] == reasons(benchmark(8), recorded(KERNELS=some))


def test_a_timeline_stays_and_the_rest_is_compared_with_it() -> None:
    log, report = (recorded(reader, t0=40 * DAY_NS) for reader in ("nvidia_smi", "ncu"))
    timeline, bare = recorded(t0=0), recorded("torch_trace")
    notes: list[str] = []
    assert [bare, timeline] == members([log, bare, report, timeline], (), notes)
    assert ["ncu: kept apart from nsys", "nvidia_smi: kept apart from nsys"] == [
        n.partition(",")[0] for n in notes
    ]
    assert all(note.endswith("on the same machine") for note in notes)
    said = r"^ncu: does not belong to one run with nsys: it was recorded 40 days after"
    with pytest.raises(PerfkitError, match=said):
        members([log, report, timeline], {Path("ncu")}, [])


def folder(at: Path, profiles: Path, *parts: str) -> Path:
    for part in parts:
        (at / part.rpartition("/")[2]).symlink_to(profiles / part)
    return at


@pytest.mark.parametrize(
    ("timeline", "other", "reason"),
    [
        (A100, PATHS, "none of its kernels (xcompute) is in"),
        (
            T4,
            "ncu/extra-p__extrap__ex-gpu.s10.ncu-rep",
            "its GPU is A100-PCIE-40GB, that of the others Tesla T4",
        ),
        (
            T4,
            "monitor/nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__dmon.txt",
            "it reads 636 W, and Tesla T4",
        ),
        (
            T4,
            "monitor/nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log",
            "its GPU is NVIDIA H100 80GB HBM3, that",
        ),
        (
            T4,
            "monitor/nccl_debug_info_h100_issue1453.txt",
            "its collectives are of 16 ranks, and the one GPU",
        ),
        (
            "nsys/openhackathons-org__AI-Profiler__baseline.sqlite",
            "monitor/nvidia-smi_xml__a100-sxm4-v12.xml",
            "354 days after",
        ),
    ],
)
def test_real_captures_of_other_runs(
    timeline: str, other: str, reason: str, tmp_path: Path, profiles: Path
) -> None:
    """Of a folder the timeline alone makes figures, as many as by itself, and the note says why; named, it is refused.

    The database has one kernel, xcompute, of 3 launches (raw: GKER:COUNT), the timeline 9,345 launches of PyTorch's.
    The A100's log is of 2023-08-04 11:44, the timeline of 2022-08-15 13:50: 353.9 days. Of NCCL's connections one is
    from rank 0 to rank 15, of 16 ranks.
    """
    extras.require_reader(other)
    run = perfkit.load(folder(tmp_path, profiles, timeline, other))
    alone = perfkit.load(profiles / timeline)
    assert ["nsys"] == [each.reader for each in run.profiles]
    (note,) = (note for note in run.notes if "kept apart from" in note)
    assert note.startswith(other.rpartition("/")[2])
    assert reason in note
    assert figures(select(alone)) == figures(select(run))
    with pytest.raises(PerfkitError, match="does not belong to one run with"):
        perfkit.load([profiles / timeline, profiles / other])


def test_few_launches_of_the_same_kernel(profiles: Path) -> None:
    (paths,) = perfkit.load(profiles / PATHS).profiles
    for count, found in ((300, []), (301, ["it has 3 kernel launches, nsys 301"])):
        rows = [
            {"full_name": "void xcompute<double>(double*)", "start_ns": at, "dur_ns": 1}
            for at in range(count)
        ]
        assert found == reasons(paths, recorded(KERNELS=kernels(*rows)))


@pytest.mark.parametrize(
    "parts",
    [
        ("nsys/extra-p__extrap__ex-gpu.s10.sqlite", "ncu/extra-p__extrap__ex-gpu.s10.ncu-rep"),
        (
            "torch/HTA__trace_filter__sampled_rank-0.json.gz",
            "torch/HTA__trace_filter__sampled_rank-1.json.gz",
        ),
        tuple(
            f"monitor/nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__{n}"
            for n in ("dmon.txt", "query-gpu.csv")
        ),
    ],
)
def test_real_captures_of_one_run_stay_joined(parts: tuple[str, ...], profiles: Path) -> None:
    extras.require_reader(*parts)
    assert len(parts) == len(perfkit.load([profiles / part for part in parts]).profiles)


def test_the_sample_stays_joined() -> None:
    run = perfkit.load(sample().parent / "mlp_a100")
    assert ["ncu", "nsys", "torch_trace"] == sorted(each.reader for each in run.profiles)
    assert not [note for note in run.notes if "kept apart" in note]
