"""Reports (.ncu-rep) through NVIDIA's module and without it; real reports and pages against what the vendor says."""

import os
import signal
import threading
from functools import cache
from pathlib import Path
from typing import Any

import extras
import numpy as np
import pandas as pd
import pytest
from readers import ncu_files as files
from real import truth_of

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import ncu, recognise

LINKS = "See @section:LaunchStats:Launch Statistics@ or @url:it:https://a/b@."
SAXPY = files.Action(
    {
        "gpu__time_duration.sum": ("ns", 10_500.0),
        "dram__bytes.sum": ("byte", 2_000),
        "launch__grid_size": ("", 8),
        "launch__block_size": ("", 128),
        "launch__device_id": ("", 1),
        "launch__func_cache_config": ("", "CachePreferNone"),
        "nvlink__uuidDev0": ("", None),
        "bad.ratio": ("", float("inf")),
        "device__attribute_compute_capability_major": ("", 9),
        "device__attribute_compute_capability_minor": ("", 0),
        "device__attribute_multiprocessor_count": ("", 132),
        "device__attribute_display_name": ("", "NVIDIA H100"),
    },
    [
        {"rule_identifier": "SOLBottleneck", "rule_message": {"title": "t", "message": LINKS}},
        {
            "rule_identifier": "LaunchConfiguration",
            "rule_message": {"title": "", "message": "a partial wave"},
            "speedup_estimation": {"type": 2, "speedup": 50.0},
        },
        {"rule_identifier": "WithoutMessage"},
    ],
)
WAY_OUT = "ncu --import run.ncu-rep --csv --page raw --print-units base > run.csv"


@pytest.fixture
def with_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    return lambda *ranges: monkeypatch.syspath_prepend(files.module(tmp_path, *ranges))


@pytest.fixture
def with_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    return lambda source: monkeypatch.syspath_prepend(files.code(tmp_path, source))


def test_a_report_fills_the_tables(tmp_path: Path, with_module: Any) -> None:
    with_module([SAXPY])
    path = files.report(tmp_path / "run.ncu-rep")
    assert "ncu" == recognise(path)
    profile = files.read(path)
    row = profile.table("LAUNCHES").iloc[0]
    assert ("saxpy(int)", 1, 8, 128) == (
        row["full_name"],
        row["gpu"],
        row["grid_blocks"],
        row["block_threads"],
    )
    assert (10_500.0, 2_000.0) == (row["dur_ns"], row["dram_bytes"])
    # Texts, nothing and infinities are no counters.
    assert not {"bad.ratio", "nvlink__uuidDev0"} & set(profile.table("COUNTERS")["metric"])
    device = profile.table("DEVICES").iloc[0]
    assert ("NVIDIA H100", "9.0", 132) == (
        device["name"],
        device["compute_capability"],
        device["sm_count"],
    )
    assert ["2024.1.0.0"] == profile.capture["tool_version"].tolist()
    # A file name with bytes that are no UTF-8, which NVIDIA's library cannot open, is read all the same.
    assert 1 == len(
        files.read(files.report(tmp_path / os.fsdecode(b"r\xff.ncu-rep"))).table("LAUNCHES")
    )
    path = files.report(tmp_path / "run.ncu-rep", b"")
    # Fields of every wire type before the payload's size are skipped: integers, texts, 32 and 64 bits.
    fields = b"\x08\x96\x01" + b"\x22\x03abc" + b"\x0d\0\0\0\0" + b"\x11" + bytes(8) + b"\x28\x05"
    path.write_bytes(path.read_bytes()[:-6] + len(fields).to_bytes(4, "little") + fields + b"12345")
    assert 1 == len(files.read(path).table("LAUNCHES"))


def test_rules_lose_the_markup_of_links_and_ranges_follow_each_other(
    tmp_path: Path, with_module: Any
) -> None:
    with_module([SAXPY, SAXPY], [], [SAXPY])
    profile = files.read(files.report(tmp_path / "run.ncu-rep"))
    assert [0, 1, 2] == profile.table("LAUNCHES")["launch"].tolist()
    rules = profile.table("RULES").query("launch == 2")  # a rule without a message is none
    assert ["a partial wave", "See Launch Statistics or it (https://a/b)."] == rules[
        "message"
    ].tolist()
    assert (0.5, "workload") == tuple(rules[["speedup_frac", "scope"]].iloc[0])
    # The module passes over damaged launches without a word: a note counts them, and none at all is an error.
    assert () == files.read(files.report(tmp_path / "a.ncu-rep", launches=3)).notes
    (note,) = files.read(files.report(tmp_path / "b.ncu-rep", launches=4)).notes
    assert "NVIDIA's library reads 3 of 4 launches" in note


@pytest.mark.parametrize(
    ("actions", "announced", "words"),
    [
        ([], 0, "the report holds no kernel launch"),
        # A launch without a name and metrics is none: the error does not speak of the kernel filter.
        (
            [files.Action({}, demangled=None)],
            1,
            r"the report is damaged: .* none of its launches \(1 announced\)",
        ),
    ],
)
def test_a_report_without_launches_is_an_error(
    actions: list[files.Action], announced: int, words: str, tmp_path: Path, with_module: Any
) -> None:
    with_module(actions)
    with pytest.raises(ReadError, match=rf"run\.ncu-rep: {words}"):
        ncu.read(files.report(tmp_path / "run.ncu-rep", launches=announced))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "raise ImportError('no such library')",
            ["(no such library)", 'pip install "perfkit[ncu]"', WAY_OUT],
        ),
        # NVIDIA's library ends its process on some damaged reports.
        (
            "os.abort()",
            ["NVIDIA's library ncu_report ended with signal 6 (SIGABRT) on this report.", WAY_OUT],
        ),
        (
            "raise RuntimeError('unknown message')",
            ["ncu_report cannot read this report (unknown message)"],
        ),
        (
            "raise KeyError(path[-11:])",
            ["NVIDIA's library ncu_report failed (\"KeyError: 'run.ncu-rep'\")"],
        ),
        ("os._exit(0)", ["NVIDIA's library ncu_report ended without an answer"]),
    ],
)
def test_a_failure_of_the_module_is_an_error(
    source: str, words: list[str], tmp_path: Path, with_code: Any
) -> None:
    with_code(
        source if "Import" in source else f"import os\n\ndef load_report(path):\n    {source}"
    )
    path = files.report(tmp_path / "run.ncu-rep")
    with pytest.raises(ReadError) as caught:
        ncu.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words == [word for word in words if word in str(caught.value)]


def test_every_cut_of_a_report_is_noticed(tmp_path: Path, with_module: Any) -> None:
    """The module reads what is left of a cut report without a word; the lengths in the file do not agree."""
    with_module([SAXPY])
    path = files.report(tmp_path / "run.ncu-rep", b"x" * 100)
    whole = path.read_bytes()
    end = 8 + int.from_bytes(
        whole[4:8], "little"
    )  # after its header a report may end: then it holds no launch
    for size in [*range(4, end), *range(end + 1, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(ReadError, match=r"run\.ncu-rep: the report is cut"):
            ncu.read(path)
    # Zeros, and messages with field 0 or a type that does not exist, begin no block: a hole ends the search.
    for tail in (bytes(100), b"\1\0\0\0\7", b"\4\0\0\0\x2f\0\0\0"):
        path.write_bytes(whole + tail)
        with pytest.raises(
            ReadError, match=rf"run\.ncu-rep: .*damaged: no block begins at byte {len(whole)}"
        ):
            ncu.read(path)


def test_what_the_module_cannot_read_is_left_out_and_counted(
    tmp_path: Path, with_module: Any
) -> None:
    metrics = {"a.sum": ("", 5), "listed.sum": (None, 1), "by\udcf4te.sum": ("", 2), None: ("", 3)}
    metrics |= {"list.sum": ("", [4]), "unit.sum": (7, 5), "text": ("", "by\udcf4te")}
    rules = [{"rule_identifier": None, "rule_message": {"message": "m"}}]
    with_module([files.Action(metrics, rules, demangled=None)])
    profile = files.read(files.report(tmp_path / "run.ncu-rep"))
    assert ["(no name)"] == profile.table("LAUNCHES")["full_name"].tolist()
    assert [("a.sum", 5.0)] == list(
        profile.table("COUNTERS")[["metric", "value"]].itertuples(index=False, name=None)
    )
    # The name of the launch, four metrics and the one with a unit that is no text, and the rule.
    (note,) = profile.notes
    assert "cannot be read and were left out: 7 (first: metric 'listed.sum'" in note


def test_ids_and_sizes_that_are_none_are_missing(tmp_path: Path, with_module: Any) -> None:
    wrong = {"launch__device_id": 2**40, "launch__grid_size": 1.5, "launch__block_size": -1}
    wrong |= {
        "device__attribute_multiprocessor_count": 1e300,
        "device__attribute_compute_capability_major": 1e300,
    }
    metrics = {name: ("", value) for name, value in wrong.items()}
    metrics["device__attribute_compute_capability_minor"] = ("", 0)
    with_module([files.Action({**metrics, "gpu__time_duration.sum": ("ns", 5.0)})])
    profile = files.read(files.report(tmp_path / "run.ncu-rep"))
    row = profile.table("LAUNCHES").iloc[0]
    assert (-1, 5.0) == (row["gpu"], row["dur_ns"])
    assert row[["grid_blocks", "block_threads"]].isna().all()
    assert 0 == len(profile.table("DEVICES"))
    assert 4 == sum(
        "is no whole number" in note or "that are no whole number" in note for note in profile.notes
    )


def test_what_the_library_prints_is_hidden(
    tmp_path: Path, with_module: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with_module([SAXPY])
    module = tmp_path / "module" / "ncu_report.py"
    noise = "import os\nos.write(1, b'WARNING one')\nos.write(2, b'WARNING two')\nprint('three')\n"  # past Python, too
    module.write_text(noise + module.read_text())
    assert 1 == len(files.read(files.report(tmp_path / "run.ncu-rep")).table("LAUNCHES"))
    assert ("", "") == tuple(capfd.readouterr())


HANGS = """
import os

def load_report(path):
    with open(path + ".pid", "w") as file:
        file.write(f"{os.getpid()}.")
    while True:
        pass
"""


def child_of(path: Path) -> int | None:
    note = path.with_name(path.name + ".pid")
    text = note.read_text() if note.exists() else ""
    return int(text[:-1]) if text.endswith(".") else None


def assert_gone(path: Path) -> None:
    child = child_of(path)
    assert child is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_library_that_hangs_is_ended(
    tmp_path: Path, with_code: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_code(HANGS)
    monkeypatch.setattr(ncu, "SECONDS", 3)
    path = files.report(tmp_path / "run.ncu-rep")
    with pytest.raises(
        ReadError, match=r"run\.ncu-rep: NVIDIA's library ncu_report did not finish within 3 s"
    ):
        ncu.read(path)
    assert_gone(path)


def test_an_interrupt_leaves_no_process_behind(tmp_path: Path, with_code: Any) -> None:
    with_code(HANGS)
    path = files.report(tmp_path / "run.ncu-rep")
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.01):
            if child_of(path) is not None:
                os.kill(os.getpid(), signal.SIGINT)
                over.wait(
                    2
                )  # Python drops an interrupt that comes while it runs a destructor: then once more

    thread = threading.Thread(target=interrupt)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background ignores it
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ncu.read(path)
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert_gone(path)


REPORTS = ["AlpriElse__cs599k__rms-norm-pytorch", "NVIDIA__nsight-training__CuVectorAddDrv"]
REPORTS += ["NVIDIA__nsight-training__manual_nvtx", "amitadate__GPU_Power_Model__PS1_10_profile"]
REPORTS += ["extra-p__extrap__ex-gpu.s10", "thedavidchu__speedy_scan__profile"]
FORMS = ["ncu-rep", "raw.csv", "raw_base.csv", "details.csv"]
BERT = "leleucas__Actual-Parameter-Collection-for-Machine-Learning-Operators__bert_nsight.csv"
B200 = "meinie0826__Roofline-Analysis__flashinfer_paged_decode__gqa_bf16_b1_ctx4k_p64.ncu.csv"
FAILED = "meinie0826__Roofline-Analysis__flashinfer_paged_decode__gqa_bf16_b128_ctx8k_p64.ncu.csv"
RTX5070 = "Olajide-Badejo__GPU-Roofline-Profiler__gemm_naive.csv"
TRUE = {  # columns of LAUNCHES: where truth.json has them, and their factor
    "dur_ns": ("duration_ns", 1.0),
    "dram_bytes": ("dram_bytes", 1.0),
    "achieved_occupancy_frac": ("achieved_occupancy_pct", 0.01),
    "theoretical_occupancy_frac": ("theoretical_occupancy_pct", 0.01),
    "sm_frac": ("sm_throughput_pct", 0.01),
    "memory_frac": ("memory_throughput_pct", 0.01),
    "dram_frac": ("dram_throughput_pct", 0.01),
}
LESS_IN_DETAILS = {
    "fp64_flops",
    "fp32_flops",
    "l2_bytes",
    "l1_bytes",
    "tensor_frac",
}  # in no section's header
every_report = pytest.mark.parametrize("name", REPORTS)


@cache
def opened(profiles: Path, name: str, form: str) -> Profile:
    if form == "ncu-rep":
        extras.require("ncu_report")
        return ncu.read(profiles / "ncu" / f"{name}.ncu-rep")
    return ncu.read(profiles / "golden" / "ncu" / f"{name}.{form}")


@every_report
@pytest.mark.parametrize("form", FORMS)
def test_launches_equal_the_vendors_module(name: str, form: str, profiles: Path) -> None:
    launches = opened(profiles, name, form).table("LAUNCHES")
    actions = truth_of(profiles, "ncu", name)["actions"]
    assert len(actions) == len(launches)
    # Details print two decimals, raw pages in scaled units six: 3.23 us and 0.05 % are the shortest shown.
    loose = {"ncu-rep": 1e-12, "raw_base.csv": 2e-3, "raw.csv": 2e-3, "details.csv": 4e-3}[form]
    only_metrics = (
        name.startswith("extra-p") and form == "details.csv"
    )  # collected with --metrics: no sections
    for column, (key, factor) in TRUE.items():
        expected = [np.nan if only_metrics or a[key] is None else a[key] * factor for a in actions]
        assert expected == pytest.approx(
            launches[column].tolist(), rel=loose, abs=6e-5, nan_ok=True
        ), column
    for column, key in (("grid_blocks", "grid"), ("block_threads", "block")):
        assert [int(np.prod(a[key])) for a in actions] == launches[column].tolist()


@every_report
@pytest.mark.parametrize("form", FORMS[1:])
def test_launches_are_the_same_in_every_form(name: str, form: str, profiles: Path) -> None:
    report, page = (opened(profiles, name, f).table("LAUNCHES") for f in ("ncu-rep", form))
    numbers = report.select_dtypes("number").columns
    if form == "details.csv":
        numbers = numbers.difference(LESS_IN_DETAILS)
        if name.startswith("extra-p"):
            numbers = numbers.difference(["dur_ns", "theoretical_occupancy_frac"])
    expected, found = report[numbers].astype(float), page[numbers].astype(float)
    pd.testing.assert_frame_equal(expected, found, check_exact=False, rtol=4e-3, atol=6e-5)


@every_report
def test_rules_equal_the_vendors_module_in_report_and_details(name: str, profiles: Path) -> None:
    report, page = (
        opened(profiles, name, form).table("RULES") for form in ("ncu-rep", "details.csv")
    )
    given = [
        (i, r) for i, a in enumerate(truth_of(profiles, "ncu", name)["actions"]) for r in a["rules"]
    ]
    assert sorted((i, r["id"]) for i, r in given) == sorted(
        zip(report["launch"], report["rule"], strict=True)
    )
    pd.testing.assert_frame_equal(
        report, page, check_exact=False, rtol=0, atol=6e-5, check_categorical=False
    )
    scopes = {1: "kernel", 2: "workload"}  # type 1 is local, 2 global
    estimates = {(i, r["id"]): r["speedup"] for i, r in given if r["speedup"]}
    expected = {
        rule: (told["speedup"] / 100, scopes[told["type"]]) for rule, told in estimates.items()
    }
    told = report[report["speedup_frac"].notna()]
    assert expected == {(r.launch, r.rule): (r.speedup_frac, r.scope) for r in told.itertuples()}


@pytest.mark.parametrize("form", FORMS[:3])
def test_stalls_equal_the_vendors_module(form: str, profiles: Path) -> None:
    """Ratios where measured (RTX 3070, top: barrier 20.5 cycles), else samples (top: drain 3,312 of 5,453)."""
    stalls = opened(profiles, "thedavidchu__speedy_scan__profile", form).table("STALLS")
    stalls = stalls[stalls["reason"] != "selected"].set_index("reason")["value"]
    ratio = truth_of(profiles, "ncu", "thedavidchu__speedy_scan__profile")["actions"][0]["stalls"][
        "ratio"
    ]
    assert ratio["total"] == pytest.approx(stalls.sum(), abs=0.05)  # 17 reasons of two decimals
    assert ratio["top3"] == [
        [r, pytest.approx(v, abs=0.006)] for r, v in stalls.nlargest(3).items()
    ]
    sampled = opened(profiles, "NVIDIA__nsight-training__manual_nvtx", form).table("STALLS")
    actions = truth_of(profiles, "ncu", "NVIDIA__nsight-training__manual_nvtx")["actions"]
    totals = sampled[sampled["reason"] != "selected"].groupby("launch")["value"].sum()
    assert [a["stalls"]["pcsamp"]["total"] for a in actions] == totals.tolist()


@every_report
@pytest.mark.parametrize("form", FORMS[:2])
def test_devices_are_those_of_the_report(name: str, form: str, profiles: Path) -> None:
    devices = opened(profiles, name, form).table("DEVICES")
    action = truth_of(profiles, "ncu", name)["actions"][0]
    expected = [[action["device"], "{}.{}".format(*action["cc"])]]
    assert expected == devices[["name", "compute_capability"]].to_numpy().tolist()
    version = opened(profiles, name, form).capture["tool_version"].item()
    assert "2020.3.1.0" == version or form != "ncu-rep" or not name.startswith("extra-p")


def test_pages_of_real_programs(profiles: Path) -> None:
    # 26 kernels: FP32 and DRAM as summed by hand, time as cycles over rate, packed half twice the 1/1/2 count.
    profile = ncu.read(profiles / "ncu" / BERT)
    launches = profile.table("LAUNCHES")
    golden = truth_of(profiles, "ncu", BERT)
    kernels = golden["per_kernel"]
    assert (golden["kernels"], golden["rule_rows"]) == (len(launches), len(profile.table("RULES")))
    assert [k["duration_from_cycles_ns"] for k in kernels] == pytest.approx(
        launches["dur_ns"].tolist(), rel=1e-12
    )
    for column, expected in {
        "fp32_flops": [k["flops"]["fp32"] for k in kernels],
        "fp16_flops": [2 * k["flops"]["fp16"] for k in kernels],
        "fp64_flops": [0.0] * 26,
        "dram_bytes": [k["values"]["dram__bytes.sum [byte]"] for k in kernels],
        "achieved_occupancy_frac": [k["values"]["Achieved Occupancy [%]"] / 100 for k in kernels],
        "full_name": [k["name"] for k in kernels],
    }.items():
        assert expected == launches[column].tolist(), column
    # A page that does not name its chip: instructions of the tensor pipe tell no operations.
    executed = (
        profile.table("COUNTERS")
        .query("metric == 'sm__inst_executed_pipe_tensor.sum'")["value"]
        .tolist()
    )
    assert [k["tensor_instructions"] for k in kernels] == executed
    assert launches["tensor_flops"].isna().all()
    # 16 launches of two kernels, 475 columns: times, sizes and registers; the tensor pipes did nothing.
    profile = ncu.read(profiles / "ncu" / B200)
    launches = profile.table("LAUNCHES")
    golden = truth_of(profiles, "ncu", B200)
    assert [k["duration_ns"] for k in golden["per_kernel"]] == launches["dur_ns"].tolist()
    assert golden["distinct_names"] == launches["full_name"].nunique()
    assert [148, 256] * 8 == launches["grid_blocks"].tolist()
    assert [0.0] * 16 == launches["tensor_frac"].tolist()
    registers = profile.table("COUNTERS").query("metric == 'launch__registers_per_thread'")["value"]
    assert [k["launch__registers_per_thread"] for k in golden["per_kernel"]] == registers.tolist()
    device = profile.table("DEVICES").iloc[0]
    assert ("NVIDIA B200", "10.0", 148) == (
        device["name"],
        device["compute_capability"],
        device["sm_count"],
    )
    # A byte order mark, the program's output, the RTX 50's metric names: 54,207,744 + 26,601,216 bytes.
    row = ncu.read(profiles / "ncu" / RTX5070).table("LAUNCHES").iloc[0]
    columns = [
        "dur_ns",
        "dram_bytes",
        "sm_frac",
        "achieved_occupancy_frac",
        "grid_blocks",
        "block_threads",
    ]
    assert [9_589_248.0, 80_808_960.0, 0.9732, 0.6661, 4096, 1024] == row[columns].tolist()
    assert row["full_name"].startswith("<unnamed>::gemm_naive_kernel(")


def test_pages_that_are_none_or_changed(profiles: Path, tmp_path: Path) -> None:
    path = profiles / "ncu" / FAILED
    assert "ncu" == recognise(path)
    with pytest.raises(ReadError, match=r"The application returned an error code \(1\)\."):
        ncu.read(path)
    others = [p for p in profiles.glob("*/*") if p.parent.name in ("nsys", "torch", "monitor")]
    assert others
    assert [] == [p.name for p in [*others, *(profiles / "ncu").glob("*.txt")] if ncu.sniff(p)]
    # One compute capability of 8,6 once made 84,480 ns of a real page into 8,448,000.
    page = (
        profiles / "golden" / "ncu" / "NVIDIA__nsight-training__manual_nvtx.raw.csv"
    ).read_text()
    path = tmp_path / "changed.csv"
    path.write_text(page.replace('"8.6"', '"8,6"'))
    assert '"8,6"' in path.read_text()
    assert 84_480.0 in ncu.read(path).table("LAUNCHES")["dur_ns"].tolist()
