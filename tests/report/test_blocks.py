"""How findings and published figures are shown."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from callpaths import toy_metrics, toy_tree

import perfkit
from perfkit.analysis.calltree import tree_sums
from perfkit.diagnosis.finding import Figure, Finding, Gain, plain
from perfkit.diagnosis.headline import nothing_found
from perfkit.diagnosis.rules import rules
from perfkit.diagnosis.rules.idle import IDLE_DATA_LOADING
from perfkit.errors import PerfkitError
from perfkit.report.blocks import decisions, first_steps, key_findings
from perfkit.report.comparison import against_promised, against_published, published

SURE = Finding(
    "rule",
    "The <b>GPU</b> waits",
    "high",
    "For data.",
    (),
    "none",
    Gain(1.0, 2.0, "why"),
    {},
    next="A log.",
)
DOUBTED = replace(SURE, confidence="low", against=("it is <i>busy</i>", "it was never idle"))


def test_doubts_of_a_finding_are_shown() -> None:
    html = key_findings([DOUBTED], {}).html
    assert "(high, low confidence)" in html
    assert "Against it: it is &lt;i&gt;busy&lt;/i&gt;; it was never idle." in html
    assert "Measure next: A log." in html
    html = key_findings([SURE], {}).html
    assert ("(high, high confidence)" in html, "Against" in html) == (True, False)
    found = plain(DOUBTED)
    said = tuple(found[name] for name in ("confidence", "against", "next"))
    assert ("low", ("it is <i>busy</i>", "it was never idle"), "A log.") == said
    shown = first_steps([DOUBTED], {}).html
    assert "(low confidence: it is &lt;i&gt;busy" in shown
    assert "it was never idle)" in shown


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ((), "record a timeline"),
        (("log_idle_frac",), "No check of the log"),
        (("baseline_ridge",), "in these measurements"),
        (("log_idle_frac", "span_ns"), "costs a tenth of the time"),
    ],
)
def test_why_there_is_no_finding(figures: tuple[str, ...], said: str) -> None:
    assert said in nothing_found(figures)


def test_the_first_figure_of_a_finding_is_a_link_in_its_title() -> None:
    idle = Figure("idle_frac", "GPU idle", 0.05, "1", "what", "KERNELS, COPIES; timeline.breakdown")
    told, other = (
        replace(SURE, title=title, evidence=(idle,)) for title in ("Idle 5.0 %", "Idle 15.0 %")
    )
    assert 2 == key_findings([told], {}).html.count('href="3_system.ipynb#cell-id=')
    assert 1 == key_findings([other], {}).html.count('href="3_system.ipynb#cell-id=')


def test_three_ways_of_counting_the_toy_and_what_was_published(tmp_path: Path) -> None:
    """100 launches on each of two threads: 5 rows of the main thread hold them, so the sum over its tree is 500."""
    table = against_published(tree_sums(toy_tree(), toy_metrics())).set_index("figure")
    assert ["500", "100", "200"] == table.loc["Kernel launches"].tolist()
    (tmp_path / "p.json").write_text('{"launches": 145100, "copy_share": 0.784}')
    table = against_published(
        tree_sums(toy_tree(), toy_metrics()), str(tmp_path / "p.json")
    ).set_index("figure")
    rows = ["Kernel launches", "Copies in kernel and copy time", "Kernel time"]
    assert ["145,100", "78.4 %", "-"] == table["published"][rows].tolist()


def test_reads_the_metrics_of_the_published_analysis(profiles: Path) -> None:
    """145,100 launches, copies 78.4 %, "overhead" 91.3 %, "utilisation" 0.24 %, mean kernel 5.48 us, gmem 54.9 %."""
    known = published(profiles / "hpctoolkit/published_figures/metrics_data.json")
    rounded = {name: float(f"{value:.3g}") for name, value in known.items()}
    expected = {
        "launches": 145_000,
        "copy_share": 0.784,
        "launch_overhead": 0.913,
        "gpu_share": 0.00242,
    }
    expected |= {
        "mean_kernel_time": 5.48e-6,
        "stall_gmem": 0.549,
        "kernel_time": 0.795,
        "copy_time": 2.88,
    }
    assert expected == {name: rounded[name] for name in expected}
    # Summed over the rows of the main thread 151,700 launches and 78.0 % copies; in truth 7,400 and 52.9 %.
    run = perfkit.load(profiles / "hpctoolkit/hpctoolkit-dlrm-gpu-database")
    table = against_published(tree_sums(run.calltree, run.call_metrics)).set_index("figure")
    assert ["151,700", "3,300", "7,400"] == table.loc["Kernel launches"].tolist()
    assert ["78.0 %", "80.6 %", "52.9 %"] == table.loc["Copies in kernel and copy time"].tolist()


def test_published_gains_cannot_be_multiplied(profiles: Path, tmp_path: Path) -> None:
    """50.0 x 1.9 x 3.7 = 351.5; 78.4 % (to 31.4) and 91.3 % overlap by 69.7 % and allow 1/0.314 = 3.18x at most."""
    published = against_promised(str(profiles / "hpctoolkit/published_figures/metrics_data.json"))
    assert published is not None
    told = published.text
    assert "multiplied to 351.5x, which is wrong" in told
    assert "1 of them is utilisation" in told
    assert "overlap by 69.7 % at least; together they allow 3.18x at most" in told

    (tmp_path / "p.json").write_text(
        '{"optimization_recommendations": {"a": {"current": "?", "target": 1}, "b": 2}}'
    )
    told = against_promised(str(tmp_path / "p.json"))
    assert told is not None
    assert "The published figures come without gains." == told.text


def test_without_a_published_file_nothing_is_said_of_it() -> None:
    assert against_promised("") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "Write it as JSON"),
        *((text, "holds none of the figures") for text in ("[1]", '{"x": 1}')),
        # Nesting without end, and numbers without bounds.
        *(
            (text, "")
            for text in ("[" * 10**5, '{"global_metrics": 3}', f'{{"kernel_time": {10**400}}}')
        ),
        ('{"kernel_time": 1e999}', ""),
    ],
)
def test_what_holds_no_figure_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PerfkitError, match=rf"figures\.json.*{words}"):
        published(path)
    with pytest.raises(PerfkitError, match=r"gone\.json: cannot be read"):
        published(tmp_path / "gone.json")


def test_the_decision_table_takes_each_threshold_from_its_rule() -> None:
    known = Figure(
        "idle_data_loading_frac", "waiting for data", 0.4, "1", "", "gaps.idle_gaps of KERNELS"
    )
    found = replace(
        SURE,
        rule="idle_data_loading",
        title="It waits",
        advice={"immediate": ("Add workers", "Pin")},
    )
    table = decisions({known.id: known}, [found], "KERNELS").set_index("question")
    row = table.loc["Does the GPU wait for its data?"]
    assert IDLE_DATA_LOADING.threshold == row["threshold"]
    assert ["It waits", "Add workers"] == row[["what it means", "next step"]].tolist()
    assert decisions({known.id: known}, [found], "LAUNCHES").empty
    assert ["Target: under 10 %"] == decisions({known.id: known}, [], "KERNELS")[
        "what it means"
    ].tolist()


def test_a_decision_shows_the_figure_that_its_question_is_about() -> None:
    """The time that a GPU computes is evidence of copies that are too long, and does not say how long they are."""
    known = Figure("computation_frac", "computing", 0.999, "1", "", "timeline.breakdown of KERNELS")
    table = decisions({known.id: known}, [], "KERNELS").set_index("question")
    assert ["Is the GPU busy computing?"] == [*table.index]
    step = Figure("baseline_step_ns", "Step time", 75e9, "ns", "", "SAMPLES")
    assert decisions({step.id: step}, [], "COLLECTIVES").empty, "no rate of links"
    shares = re.compile(r"_(frac|ratio)\*?$|^log_check_")
    assert [] == [
        rule
        for rule in rules().values()
        if "%" in rule.target and not shares.search(rule.evidence[0])
    ]
