"""What the first page of a report says, how long it is, and that it answers for every kind of recording."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cells import outputs

import perfkit
from perfkit import diagnosis, report
from perfkit.diagnosis.finding import Figure, Finding, Gain
from perfkit.diagnosis.headline import (
    FAILED,
    FEWEST_TILES,
    FURTHER,
    MOST_TILES,
    _who,
    achievable,
    headline,
    leading,
    ranked,
    saved,
    speaking,
)
from perfkit.report import pages
from perfkit.report.blocks import FIRST, plan
from perfkit.report.notebooks import recorded, sample
from perfkit.report.pages import BROWSERS, presentable

WORDS, PIXELS = 900, 4500
# A capture of each kind, words of its verdict by hand from its figures, and the labels of its first tiles.
KINDS = {
    "nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite": ("95.0 % of the time", ("GPU busy", "Step time", "Kernels")),
    "torch/kineto__resnet50_autograd_api_num_workers_0__worker0.pt.trace.json.gz": (
        "Warm-up takes 85.7 % of the measured time. Record steady steps",
        ("GPU busy", "Step time"),
    ),
    "ncu/Olajide-Badejo__GPU-Roofline-Profiler__gemm_tiled.csv": (
        "66.7 %",
        ("Kernels measured", "Occupancy", "DRAM traffic"),
    ),
    "hpctoolkit/hpctoolkit-dlrm-gpu-database": ("0.17 % of the wall time", ("GPU busy",)),
    "monitor/smi_query__rtx4090_training_run.csv": ("GPU 0", ("GPU busy", "Highest power")),
    "monitor/nccl_debug_info_h20_issue1189.txt": ("NCCL connected 4 ranks", ("Ranks", "Connections")),
    "monitor/nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log": (f"{FAILED}: Watchdog", ("Ranks",)),
    "torch/HTA__cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz": (
        "no work of a GPU",
        ("Step time", "Operators"),
    ),
    "monitor/lessizzmore__create-a3mega__nccl_test_2node_h100.txt": ("337 GB/s", ("All-reduce",)),
    "monitor/deepspeed_flops_profiler_bert_large.txt": ("185 ms", ("Step time", "Throughput")),
}


class Words(HTMLParser):
    """The words that a person can see on a page: without scripts, styles, and code behind the toggle."""

    HIDDEN = ("script", "style", "title")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._hidden = self._code = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Enter what is not seen."""
        self._hidden += tag in self.HIDDEN
        if tag == "div" and (self._code or dict(attrs).get("class") == "code"):
            self._code += 1

    def handle_endtag(self, tag: str) -> None:
        """Leave it."""
        self._hidden -= tag in self.HIDDEN
        self._code -= tag == "div" and self._code > 0

    def handle_data(self, data: str) -> None:
        """Take words."""
        if not self._hidden and not self._code:
            self.found += data.split()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the sample, made without kernels of Jupyter."""
    out = tmp_path_factory.mktemp("first") / "report"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perfkit.report.notebooks.execute", outputs)
        report.build(sample(), out)
    return out


def test_the_first_page_of_the_sample_is_short(built: Path) -> None:
    """At most 900 words, what is folded counted too, on the page and in its Markdown."""
    page = Words((built / "index.html").read_text(encoding="utf-8")).found
    markdown = (built / "summary.md").read_text(encoding="utf-8").split()
    assert 200 < len(page) <= WORDS
    assert 200 < len(markdown) <= WORDS


def test_the_first_page_of_the_sample_is_low(built: Path, tmp_path: Path) -> None:
    """At most 4,500 pixels at 1280 wide: in a window of that height nothing is left to scroll."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no browser on PATH")
    html = (built / "index.html").read_text(encoding="utf-8")
    told = "<script>onload = () => setTimeout(() => { document.title = document.documentElement.scrollHeight }, 3000)"
    page = tmp_path / "page.html"
    page.write_text(re.sub(r"<meta http-equiv.*?>", "", html).replace("</body>", f"{told}</script></body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900", "--virtual-time-budget=20000"]
    command = [program, *options, f"--user-data-dir={tmp_path}/user", "--dump-dom", page.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    height = re.search(r"<title>(\d+)</title>", dom)
    assert height
    assert 900 < int(height[1]) <= PIXELS


def test_the_markdown_says_what_the_page_says(built: Path) -> None:
    """Verdict, tiles and the first steps stand in both; the page of step 3 has all steps."""
    page = " ".join(Words((built / "index.html").read_text(encoding="utf-8")).found)
    markdown = (built / "summary.md").read_text(encoding="utf-8").replace("\\", "")
    view = perfkit.select(perfkit.load(sample()))
    findings = diagnosis.findings(view)
    found = headline(view, diagnosis.figures(view), findings)
    told = [
        found.verdict,
        *(t.value for t in found.tiles),
        *(s.text for horizon, steps in plan(findings).items() for s in steps[: FIRST[horizon]]),
    ]
    behind = " ".join(Words((built / "3_system.html").read_text(encoding="utf-8")).found)
    assert [] == [s.text for steps in plan(findings).values() for s in steps if s.text not in behind]
    assert [] == [text for text in told if text not in page]
    assert [] == [text for text in told if text not in markdown]


@pytest.mark.parametrize("path", KINDS)
def test_every_kind_of_recording_has_a_verdict_of_its_own(path: str, profiles: Path) -> None:
    """One or two sentences with a number, and tiles that a reader of this kind asks for."""
    words, labels = KINDS[path]
    view = perfkit.select(perfkit.load(profiles / path))
    found = headline(view, diagnosis.figures(view), diagnosis.findings(view))
    assert words in found.verdict
    assert re.search(r"\d", found.verdict)
    assert found.verdict.endswith(".")
    shown = tuple(tile.label for tile in found.tiles)
    assert labels == shown[: len(labels)]
    assert len(found.tiles) <= (FEWEST_TILES if {label for label, *_ in FURTHER} & {*shown} else MOST_TILES)
    assert "nothing can be said" not in found.verdict
    content = {
        "inputs": pages.summary_inputs(view, {"profile": path}),
        "summary": report.blocks.summary(view, diagnosis.figures(view), diagnosis.findings(view)),
        "figures": {},
        "findings": diagnosis.findings(view),
        "refusals": list(map(diagnosis.plain, diagnosis.refusals(view))),
        "failures": [],
    }
    markdown = pages.markdown(content)
    assert 100 < len(markdown.split()) <= WORDS
    assert found.verdict.startswith(FAILED) == ("Find the rank that stopped first" in markdown)
    name = "0_executive_summary"
    executed = outputs([name], {"profile": str(profiles / path)}, done=lambda _: None)[name]
    kept = presentable(executed, recorded(view.run))
    drawn = [output.data for cell in kept.cells for output in cell.get("outputs", [])]
    assert sum(any("vega" in mime for mime in data) for data in drawn) == 1


def test_an_nccl_log_says_where_its_connections_run(profiles: Path) -> None:
    """Of five connections three cross the network and two stay in a node: counts, as five have no 60.0 %."""
    view = perfkit.select(perfkit.load(profiles / "monitor/nccl_debug_info_h20_issue1189.txt"))
    found = headline(view, diagnosis.figures(view), diagnosis.findings(view))
    assert found.verdict == (
        "NCCL connected 4 ranks: of 5 connections with a known transport, 3 cross the network (NET/IB), "
        "2 go from GPU to GPU in a node (P2P/CUMEM)."
    )
    assert ["4", "5", "3 of 5", "2 of 5"] == [tile.value for tile in found.tiles]


def test_a_gain_that_nobody_knows_is_no_tile(profiles: Path) -> None:
    """A monitoring log shows no gain: its tiles are numbers."""
    view = perfkit.select(perfkit.load(profiles / "monitor/smi_query__rtx4090_training_run.csv"))
    found = headline(view, diagnosis.figures(view), diagnosis.findings(view))
    assert ["GPU busy", "Highest power"] == [tile.label for tile in found.tiles]


def test_only_gpus_that_worked_are_counted(profiles: Path) -> None:
    """Four A100 are in the node, and CloverLeaf ran on one of them."""
    view = perfkit.select(perfkit.load(profiles / "nsys/hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite"))
    assert _who(view, diagnosis.figures(view)).startswith("The A100 was")


def finding(rule: str, low: float, high: float, confidence: str = "high", *steps: str) -> Finding:
    """A finding with this gain and these steps."""
    gain = Gain(low, high, "")
    advice = {"immediate": steps} if steps else {}
    return Finding(rule, rule, "high", "", (), "", gain, advice, confidence=confidence)


def test_findings_rank_by_the_time_they_save() -> None:
    """2x saves 50 % of the time, so 1 to 2x 25 %, 1.5 to 1.6x 35 %; what is doubted comes last, unknown saves none."""
    given = [finding("a", 1, 2), finding("b", 1.5, 1.6), finding("c", 5, 6, "low"), finding("d", 1, math.inf)]
    assert ["b", "a", "d", "c"] == [f.rule for f in ranked(given)]
    told = report.blocks.gains([*given, finding("e", 1, 19.8)], {})
    assert ["b", "a", "c"] == told["finding"].tolist(), "a bound of 19.8x is not known either"
    assert achievable(Gain(1.5, 1.6, "")) == pytest.approx((1 / 3 + 0.375) / 2)


def test_a_step_of_two_findings_is_told_once_with_the_larger_gain() -> None:
    """What gains less than 1 % asks for nothing; a gain that is unknown or none keeps its advice."""
    given = [finding("idle_sync", 1, 1.2, "high", "x"), finding("idle_launch", 2, 3, "high", "x", "y")]
    given += [
        finding("precision", 1, 1.004, "high", "z"),
        replace(finding("warm_up", 1, 1, "high", "w"), severity="medium"),
    ]
    told = [(s.text, s.reason) for s in plan(given)["immediate"]]
    assert [("x", "launch, 2.0x to 3.0x"), ("y", "launch, 2.0x to 3.0x"), ("w", "warm up")] == told


def test_two_short_kernels_judge_no_program(profiles: Path) -> None:
    """A graph is captured in 33.7 ms and two kernels run for 11 us: the GPU was not "computing 99.9 % of the time"."""
    view = perfkit.select(perfkit.load(profiles / "torch" / "TraceLens__sglang_decode__CAPTURE_bs_32_rank0.json.gz"))
    found = diagnosis.findings(view)
    said = headline(view, diagnosis.figures(view), found)
    assert said.verdict.startswith("The recording holds only 2 operations of the GPU.")
    assert "Possible gain" not in {tile.label for tile in said.tiles}
    assert {"low"} == {finding.confidence for finding in found}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("monitor/superbench__nccl_alltoall.log", "All-to-all reaches 224 GB/s of bus bandwidth with large messages."),
        ("monitor/superbench__nccl_broadcast.log", "Broadcast reaches 233 GB/s of bus bandwidth with large messages."),
        (
            "monitor/nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__query-gpu.csv",
            "At the only reading, a kernel ran 100 % of the time. No check of the log needs attention.",
        ),
        (
            "monitor/nccl_tests_aws_p5_mpi_tagged.txt",
            "The benchmark timed all-reduce with messages of 8 B to 32 B. The log does not show the bus bandwidth.",
        ),
        (
            "monitor/nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log",
            "The run failed: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLGATHER, "
            "NumelIn=1, NumelOut=8, Timeout(ms)=120000) ran for 120012 milliseconds before timing out.",
        ),
        (
            "monitor/dcgmi_dmon_h100nvl_dcgm339.txt",
            "No kernel ran during the only reading of the log. Record the log again while the program runs.",
        ),
        (
            "ncu/extra-p__extrap__ex-gpu.s10.ncu-rep",
            "Measured launches: 6, 25.9 µs in all. No finding follows from them.",
        ),
    ],
)
def test_a_run_without_findings_states_its_number(profiles: Path, name: str, said: str) -> None:
    """The bandwidths are those of the last rows of the logs."""
    view = perfkit.select(perfkit.load(profiles / name))
    assert said == headline(view, diagnosis.figures(view), diagnosis.findings(view)).verdict


def test_a_failed_run_says_so_first_whatever_else_is_found(profiles: Path) -> None:
    """NCCL's watchdog ended it: before other findings, and never beside "no problem", stands what to do about that."""
    path = profiles / "monitor/nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log"
    view = perfkit.select(perfkit.load(path))
    slow = [finding("idle", 2, 3)]
    assert headline(view, {}, slow).verdict.startswith("The run failed: Watchdog caught collective operation timeout")
    alone, beside = (report.first_steps(found, {}, view).text for found in ([], slow))
    assert alone.startswith("Find the rank that stopped first")
    assert beside.startswith("Find the rank that stopped first")
    assert "no problem" not in alone
    assert "idle" in beside
    ended = perfkit.select(perfkit.load(profiles / "monitor/nccl_debug_info_h20_issue1189.txt"))
    assert "no problem" in report.first_steps([], {}, ended).text


def test_a_benchmark_of_collectives_has_four_tiles(profiles: Path) -> None:
    """By hand from the rows of the log: the largest busbw, the least time, and 8 nodes of 4 GPUs."""
    name = "nccl_tests__alcf_polaris_nccl_2_18_n8.g4.2023-10-13-14-07-13_all_reduce_output.dat.1.txt"
    view = perfkit.select(perfkit.load(profiles / "monitor" / name))
    tiles = [(t.label, t.value, t.note) for t in headline(view, diagnosis.figures(view), []).tiles]
    assert tiles == [
        ("All-reduce", "9.81 GB/s", "bus bandwidth"),
        ("Highest rate", "11.1 GB/s", "bus bandwidth, messages of 8.39 MB"),
        ("Shortest time", "47.2 µs", "for a message of 32 B"),
        ("Ranks", "32", "in the benchmark"),
    ]


def test_a_benchmark_without_a_rate_has_no_tile_of_it(profiles: Path) -> None:
    """Its messages are so small that the log rounds each rate to 0.00 GB/s: before, the tile read "n/a/s"."""
    view = perfkit.select(perfkit.load(profiles / "monitor/nccl_tests_aws_p5_mpi_tagged.txt"))
    tiles = {t.label: t.value for t in headline(view, diagnosis.figures(view), []).tiles}
    assert {"Shortest time": "12.8 µs"}.items() <= tiles.items()
    assert "Highest rate" not in tiles


def test_first_steps_save_time() -> None:
    """What saves less than 1 % is no first step, unless it is all there is."""
    much, unknown, little = (finding("idle", *gain) for gain in ((2, 3), (1, math.inf), (1, 1.005)))
    assert [much, unknown] == leading([little, unknown, much])
    assert [little] == leading([little, replace(little, title="another")])


def test_several_gpus_are_not_averaged(profiles: Path) -> None:
    """GPU 3 works for a third of the time: no tile states a mean of both, and all findings gain what one does."""
    view = perfkit.select(
        perfkit.load(profiles / "nsys" / "openhackathons-org__gpubootcamp__jacobi_memcpy_nvlink_report.sqlite")
    )
    tiles = {t.label: t.value for t in headline(view, diagnosis.figures(view), diagnosis.findings(view)).tiles}
    assert ("31.2 % to 93.7 %", "up to 1.6x") == (tiles["GPU busy"], tiles["Possible gain"])


def test_time_saved_is_that_of_a_step() -> None:
    """Of a step of 100 ms: 2x saves 50 ms, 4x 75 ms; without steps it is that of the run."""
    step = Figure("step_median_ns", "Median step", 100e6, "ns", "", "")
    span = Figure("span_ns", "Span", 2e9, "ns", "", "")
    assert "50.0 ms to 75.0 ms per step" == saved(Gain(2, 4, ""), {"step_median_ns": step, "span_ns": span})
    assert "1.50 s per run" == saved(Gain(1, 4, ""), {"span_ns": span})
    assert "" == saved(Gain(1, 1.005, ""), {"span_ns": span})


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        ((2.0, 2.1), "about 2.0 times faster"),
        ((1.05, 1.3), "1.05 to 1.3 times faster"),
        ((1.0, 1.03), "at most 3.0 % faster"),
        ((1.0, 50.0), "does not show how much faster"),
        ((1.0, math.inf), "does not show how much faster"),
        ((1.0, 1.001), "saves less than 1 %"),
        ((1.0, 1.0), ""),
    ],
)
def test_gains_in_words(gain: tuple[float, float], said: str) -> None:
    """A narrow range is one number; a bound above 10x without a replay is no promise."""
    assert said in speaking(Gain(*gain, ""))
    assert bool(said) == bool(speaking(Gain(*gain, "")))
