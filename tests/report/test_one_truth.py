"""On the first page verdict, tile, picture and list name one loss; nothing is said twice, or promised beyond a bound.

Recordings of all kinds: timelines, traces of PyTorch, counters, call paths, logs of GPUs, NCCL and trainings.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from cells import outputs, sharing
from planted.causes import planted
from planted.test_causes import run
from report.words import words

import perfkit
from perfkit import diagnosis, report
from perfkit.diagnosis import machine, picture
from perfkit.diagnosis.finding import Figure, Finding
from perfkit.diagnosis.headline import Headline, cause, headline, leading
from perfkit.diagnosis.replayed import LINES
from perfkit.diagnosis.rules import rules
from perfkit.names.parts import IDLE
from perfkit.report import first_page, html, links, pages
from perfkit.report.notebooks import SUMMARY
from perfkit.selection import Selection

RECORDINGS = (
    "nsys/GindaChen__nsys-ai__mfu_2gpu_before.sqlite",
    "nsys/openhackathons-org__AI-Profiler__baseline.sqlite",
    "nsys/annikola__cuda_bitonic_sort__report1.sqlite",
    "torch/kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz",
    "torch/TraceLens__mi300__resnet_act_checkpoint.json.gz",
    "torch/HTA__trace_filter__sampled_rank-0.json.gz",
    "torch/facebookresearch__param__dlrm_kineto",
    "ncu/bobschreiner__NuKEXC__profile_fasts.ncu-rep",
    "ncu/leleucas__Actual-Parameter-Collection-for-Machine-Learning-Operators__bert_nsight.csv",
    "hpctoolkit/hpctoolkit-dlrm-gpu-database",
    "hpctoolkit/hpctoolkit-leo-nvidia-database",
    "monitor/smi_query__rtx4090_training_run.csv",
    "monitor/tkjunsei__OpenAD__gpu_usage_2xA6000.csv",
    "monitor/Timez-zx__nccl-tests__nccl.log",
    "monitor/nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log",
    "monitor/deepspeed_flops_profiler__OAfzal_LLaVA_4gpu.txt",
    "monitor/superbench__megatron_deepspeed.log",
)
WORDS = 900


class Page(NamedTuple):
    """What the first page of a recording is made of."""

    view: Selection
    figures: dict[str, Figure]
    findings: list[Finding]
    headline: Headline


@cache
def page(path: Path) -> Page:
    view = diagnosis.judged(perfkit.select(perfkit.load(path)))
    figures, findings = diagnosis.figures(view), diagnosis.findings(view)
    return Page(view, figures, findings, headline(view, figures, findings))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", RECORDINGS)


def named(made: Page) -> list[str]:
    """What the tile of the largest loss says."""
    labels = ("Largest loss", "Largest part")
    return [tile.note for tile in made.headline.tiles if tile.label in labels]


def test_checkpoints_are_named_with_the_colour_in_which_they_are() -> None:
    view = diagnosis.judged(perfkit.select(run(planted("checkpoints"))))
    figures, findings = diagnosis.figures(view), diagnosis.findings(view)
    (first,) = (each for each in findings if each.rule == "checkpointing")
    keys = picture.keys(view, first)
    assert () == picture.own(first)
    assert {*keys} <= {*picture.shares(view).index}
    said = headline(view, figures, [first])
    name = ", ".join(map(picture.name, keys))
    assert [f"checkpointing, in {name}"] == named(Page(view, figures, [first], said))
    assert "In the picture this is part of" in said.verdict


def test_the_optimizer_of_a_training_log_is_a_colour(profiles: Path) -> None:
    made = page(profiles / "monitor/deepspeed_flops_profiler__OAfzal_LLaVA_4gpu.txt")
    drawn = set(machine.phases(made.view)["phase"])
    assert drawn
    assert drawn == set(picture.shares(made.view).index)
    optimizer = [each for each in made.findings if each.rule == "training_optimizer"]
    assert [["optimizer step"]] * len(optimizer) == [picture.keys(made.view, e) for e in optimizer]


def of_idle_time(finding: Finding) -> bool:
    return bool(rules()[finding.rule].causes)


@pytest.mark.sampled(2)
def test_what_the_verdict_names_is_a_colour_of_the_picture_and_the_tile(
    name: str, profiles: Path
) -> None:
    made = page(profiles / name)
    first = cause(made.findings)
    if first is None:
        return
    keys = picture.keys(made.view, first)
    assert keys or not of_idle_time(first), (
        f"{first.title} is no part of {picture.shares(made.view).to_dict()}"
    )
    notes = [
        tile.note for tile in made.headline.tiles if tile.label in ("Largest loss", "Largest part")
    ]
    assert len(notes) <= 1
    assert [] == [note for note in notes if keys and picture.name(keys[0]) not in note]


def test_a_gain_beyond_its_share_names_what_else_gets_shorter(name: str, profiles: Path) -> None:
    for finding in page(profiles / name).findings:
        gain = finding.gain
        if gain.share is None or gain.share >= 1 or gain.high <= 1.001 / (1 - gain.share):
            continue
        assert gain.beyond, finding.title
        named = {**IDLE, **LINES, "collector": "the profiler's own time"}
        for line in gain.beyond:
            assert named.get(line, line.replace("_", " ")) in gain.why, finding.title


def test_the_list_begins_with_what_the_verdict_names(name: str, profiles: Path) -> None:
    made = page(profiles / name)
    first = cause(made.findings)
    assert [first] == leading(made.findings)[:1] if first else not leading(made.findings)


def test_no_two_tiles_repeat_a_figure(name: str, profiles: Path) -> None:
    tiles = page(profiles / name).headline.tiles
    shown = [(tile.figure.id, tile.value) for tile in tiles if tile.figure]
    assert sorted(set(shown)) == sorted(shown)


def test_no_gain_is_above_what_its_share_allows(name: str, profiles: Path) -> None:
    beyond = [
        f"{finding.rule}: {finding.gain}"
        for finding in page(profiles / name).findings
        if finding.gain.share is not None and not finding.gain.beyond and finding.gain.share < 1
        if finding.gain.high > 1.0001 / (1 - finding.gain.share)
    ]
    assert [] == beyond


def steps(made: Page) -> Iterator[str]:
    yield from first_page.first_actions(made.findings)
    for group in first_page.advice(made.findings):
        yield from group.steps


def test_no_step_is_said_twice(name: str, profiles: Path) -> None:
    told = [*steps(page(profiles / name))]
    assert sorted(set(told)) == sorted(told)


def test_no_step_sends_the_reader_to_a_page(name: str, profiles: Path) -> None:
    """ "Open step 4" is no action."""
    assert [] == [step for step in steps(page(profiles / name)) if step.startswith("Open step")]


def test_the_page_is_short(name: str, profiles: Path) -> None:
    made = page(profiles / name)
    content = {
        "inputs": pages.summary_inputs(made.view, {"profile": name}),
        "summary": report.summary(made.view, made.figures, made.findings),
        "refusals": [],
        "figures": {},
        "findings": [diagnosis.plain(finding) for finding in made.findings],
        "failures": [],
    }
    assert 50 < len(pages.markdown(content).split()) <= WORDS


def html_of(path: Path) -> str:
    """The first page of a report, made without kernels."""
    lists = {name: [] for name in ("ranks", "gpus", "window", "families")}
    texts = dict.fromkeys(("baseline", "kernels", "peaks", "published"), "")
    parameters = {"profile": str(path), "job": {}, **lists, **texts}
    with sharing():
        made = outputs([SUMMARY], parameters, done=lambda *_: None)
        told = pages._told(SUMMARY, perfkit.load(path), None)
    kept = {SUMMARY: pages.presentable(made[SUMMARY], told)}
    linked = links.Report(links.presented(made, kept))
    return html.page(links.pages(kept, linked, [])[SUMMARY], title="page")


@pytest.mark.sampled(4)
def test_the_html_of_the_page_is_short(name: str, profiles: Path) -> None:
    assert 50 < len(words(html_of(profiles / name))) <= WORDS


def test_code_is_shown_as_code(name: str, profiles: Path) -> None:
    made = page(profiles / name)
    shown = [
        report.first_screen(made.view, made.figures, made.findings),
        report.first_steps(made.findings, made.figures, made.view),
        report.recommendations(made.findings),
    ]
    assert [] == [part.html for part in shown if "`" in part.html]


def test_at_most_four_questions_are_open_and_none_needs_another_tool(
    name: str, profiles: Path
) -> None:
    asked = first_page.open_questions(diagnosis.refusals(page(profiles / name).view))
    assert len(asked) <= first_page.MOST_QUESTIONS
    assert not any(item.is_of_another_tool for item in asked)
