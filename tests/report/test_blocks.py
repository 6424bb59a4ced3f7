"""How findings and published figures are shown."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from callpaths import toy_metrics, toy_tree

import perfkit
from perfkit.analysis.calltree import tree_sums
from perfkit.diagnosis.finding import Figure, Finding, Gain, plain
from perfkit.diagnosis.headline import nothing_found
from perfkit.diagnosis.rules import FILE
from perfkit.errors import PerfkitError
from perfkit.report.blocks import decisions, first_steps, key_findings
from perfkit.report.comparison import against_promised, against_published, published

SURE = Finding(
    "rule", "The <b>GPU</b> waits", "high", "For data.", (), "none", Gain(1.0, 2.0, "why"), {}, next="A log."
)
DOUBTED = replace(SURE, confidence="low", against=("it is <i>busy</i>", "it was never idle"))


def test_what_speaks_against_a_finding_is_shown() -> None:
    """Confidence stands beside severity, what speaks against it and what to measure next below; texts are escaped."""
    html = key_findings([DOUBTED], {}).html
    assert "(high, low confidence)" in html
    assert "Against it: it is &lt;i&gt;busy&lt;/i&gt;; it was never idle." in html
    assert "Measure next: A log." in html


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ((), "what to record"),
        (("log_idle_frac",), "No check of the log"),
        (("baseline_ridge",), "in these measurements"),
        (("log_idle_frac", "span_ns"), "costs a tenth of the time"),
    ],
)
def test_why_there_is_no_finding(figures: tuple[str, ...], said: str) -> None:
    """A log of GPUs and a benchmark are recordings, of which nothing is said that they cannot show."""
    assert said in nothing_found(figures)


def test_the_first_figure_of_a_finding_is_a_link_in_its_title() -> None:
    """The whole number is, never a part of one: 5 % does not stand in 15 %."""
    idle = Figure("idle_frac", "GPU idle", 0.05, "1", "what", "KERNELS, COPIES; timeline.breakdown")
    told, other = (replace(SURE, title=title, evidence=(idle,)) for title in ("Idle 5.0 %", "Idle 15.0 %"))
    assert 2 == key_findings([told], {}).html.count('href="3_system.ipynb#cell-id=')
    assert 1 == key_findings([other], {}).html.count('href="3_system.ipynb#cell-id=')


def test_nothing_against_a_finding_is_not_mentioned() -> None:
    """A finding without doubts says nothing of them."""
    html = key_findings([SURE], {}).html
    assert ("(high, high confidence)" in html, "Against" in html) == (True, False)


def test_the_record_holds_confidence_and_doubts() -> None:
    """`summary.json` has the three fields of each finding, and the first page says the doubts in words."""
    found = plain(DOUBTED)
    assert ("low", ("it is <i>busy</i>", "it was never idle"), "A log.") == tuple(
        found[name] for name in ("confidence", "against", "next")
    )
    shown = first_steps([DOUBTED], {}).html
    assert "(low confidence: it is &lt;i&gt;busy" in shown
    assert "it was never idle)" in shown


DLRM = "hpctoolkit/hpctoolkit-dlrm-gpu-database"


def test_three_ways_of_counting_the_toy() -> None:
    """100 launches on each of two threads: 5 rows of the main thread hold them, so the sum over its tree is 500."""
    table = against_published(tree_sums(toy_tree(), toy_metrics())).set_index("figure")
    assert ["500", "100", "200"] == table.loc["Kernel launches"].tolist()


def test_published_figures_stand_beside(tmp_path: Path) -> None:
    """A figure the file names is shown with its unit, another is a dash."""
    (tmp_path / "p.json").write_text('{"launches": 145100, "copy_share": 0.784}')
    table = against_published(tree_sums(toy_tree(), toy_metrics()), str(tmp_path / "p.json")).set_index("figure")
    assert ["145,100", "78.4 %", "-"] == table["published"][
        ["Kernel launches", "Copies in kernel and copy time", "Kernel time"]
    ].tolist()


def test_reads_the_metrics_of_the_published_analysis(profiles: Path) -> None:
    """145,100 launches, copies 78.4 %, "overhead" 91.3 %, "utilisation" 0.24 %, mean kernel 5.48 us, gmem 54.9 %."""
    known = published(profiles / "hpctoolkit/published_figures/metrics_data.json")
    rounded = {name: float(f"{value:.3g}") for name, value in known.items()}
    expected = {"launches": 145_000, "copy_share": 0.784, "launch_overhead": 0.913, "gpu_share": 0.00242}
    expected |= {"mean_kernel_time": 5.48e-6, "stall_gmem": 0.549, "kernel_time": 0.795, "copy_time": 2.88}
    assert expected == {name: rounded[name] for name in expected}


def test_the_real_database_by_the_published_method(profiles: Path) -> None:
    """Summed over the rows of the main thread 151,700 launches and 78.0 % copies; in truth 7,400 and 52.9 %."""
    run = perfkit.load(profiles / DLRM)
    table = against_published(tree_sums(run.calltree, run.call_metrics)).set_index("figure")
    assert ["151,700", "3,300", "7,400"] == table.loc["Kernel launches"].tolist()
    assert ["78.0 %", "80.6 %", "52.9 %"] == table.loc["Copies in kernel and copy time"].tolist()


@pytest.mark.parametrize(
    ("content", "words"),
    [("no json", "are not JSON"), ("[1]", "holds none of the figures"), (json.dumps({"x": 1}), "holds none")],
)
def test_a_file_without_figures_is_refused(tmp_path: Path, content: str, words: str) -> None:
    """A typing error in the file is no empty column in the report."""
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(PerfkitError, match=words):
        published(tmp_path / "p.json")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The message names the path."""
    with pytest.raises(PerfkitError, match=r"gone\.json: the published figures cannot be read"):
        published(tmp_path / "gone.json")


def test_published_gains_cannot_be_multiplied(profiles: Path) -> None:
    """50.0 x 1.9 x 3.7 = 351.5; 78.4 % (to 31.4) and 91.3 % overlap by 69.7 % and allow 1/0.314 = 3.18x at most."""
    told = against_promised(str(profiles / "hpctoolkit/published_figures/metrics_data.json")).text
    assert "multiplied to 351.5x, which is wrong" in told
    assert "1 of them is utilisation" in told
    assert "overlap by 69.7 % at least; together they allow 3.18x at most" in told


def test_no_published_gains_are_a_sentence(tmp_path: Path) -> None:
    """Neither an empty path nor a file of figures alone promises anything; what is no gain is left out."""
    (tmp_path / "p.json").write_text('{"optimization_recommendations": {"a": {"current": "?", "target": 1}, "b": 2}}')
    assert {"The published figures come without gains."} == {
        against_promised(path).text for path in ("", str(tmp_path / "p.json"))
    }


@pytest.mark.parametrize(
    "text", ["[" * 10**5, '{"global_metrics": 3}', f'{{"kernel_time": {10**400}}}', '{"kernel_time": 1e999}', "[1]"]
)
def test_what_holds_no_figure_is_refused(tmp_path: Path, text: str) -> None:
    """Nesting without end, numbers without bounds and other JSON than an object: an error that names the file."""
    path = tmp_path / "figures.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PerfkitError, match=r"figures\.json: "):
        published(path)


def test_the_decision_table_takes_each_rule_from_the_file_of_rules() -> None:
    """A row per rule whose figure is known: its own threshold, and the finding's title and first advice."""
    known = Figure("idle_data_loading_frac", "waiting for data", 0.4, "1", "", "gaps.idle_gaps of KERNELS")
    found = replace(SURE, rule="idle_data_loading", title="It waits", advice={"immediate": ("Add workers", "Pin")})
    table = decisions({known.id: known}, [found], "KERNELS").set_index("question")
    row = table.loc["Does the GPU wait for its data?"]
    assert tomllib.loads(FILE.read_text())["idle_data_loading"]["threshold"] == row["threshold"]
    assert ["It waits", "Add workers"] == row[["what it means", "next step"]].tolist()
    assert decisions({known.id: known}, [found], "LAUNCHES").empty
    assert ["Target: under 10 %"] == decisions({known.id: known}, [], "KERNELS")["what it means"].tolist()
