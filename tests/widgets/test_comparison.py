"""The view of two runs: its parts are those of the comparison, in both runs the same is chosen."""

import asyncio
from typing import Any

import pytest
from frames import kernels, lasting
from trained import training
from widgets.viewed import Chooser, chosen, csv, recorded, sentences, small, still

import perfkit
from perfkit.diagnosis import comparison, verdict
from perfkit.report.notebooks import sample
from perfkit.run import Run, load
from perfkit.widgets import asides, views
from perfkit.widgets import comparison as view_of_two
from perfkit.widgets.live import Live, Shown, bundle

PARTS = (
    "verdict",
    "runs",
    "steps",
    "families",
    "kernels",
    "launches",
    "paths",
    "samples",
    "figures",
    "decisions",
)


def two(names: dict[str, int]) -> Run:
    rows = [
        lasting(1000 * n, length, name, gpu=gpu, family="gemm")
        for n, (name, length) in enumerate(names.items())
        for gpu in (0, 1)
    ]
    return recorded(KERNELS=kernels(*rows))


def html(view: Shown) -> str:
    return "".join(bundle(part).get("text/html", "") for part in view.parts)


@pytest.mark.parametrize("form", ["run", "selection"])
def test_a_run_beside_itself_changed_nothing(form: str) -> None:
    run = small()
    rows = csv(
        still(
            views.compare(
                chosen(run), baseline=run if form == "run" else chosen(run), part="figures"
            )
        )
    )
    assert "GPU busy" in rows["figure"].tolist()
    assert rows["before"].tolist() == rows["after"].tolist()
    assert {"no difference seen"} == set(rows["verdict"])
    other = csv(still(views.compare(chosen(small(50)), baseline=run, part="figures"))).set_index(
        "figure"
    )
    busy = other.loc["GPU busy", ["before", "after", "better"]].tolist()
    assert ["18.2 %", "66.7 %", "higher is better"] == busy  # text with its unit, no bare numbers


def test_the_whole_holds_every_part_with_something_in_it() -> None:
    """Steps that take 10 ms, then 8 ms: verdict, pictures and tables one after the other, as each part shows them."""
    before, after = training(), chosen(training(8, seed=1))
    whole = still(views.compare(after, baseline=before))
    found = [name for name in PARTS if name not in ("launches", "paths", "samples")]
    each = {name: still(views.compare(after, baseline=before, part=name)) for name in PARTS}
    shown = [bundle(part) for name in found for part in each[name].parts]
    assert sorted(map(repr, shown)) == sorted(repr(bundle(part)) for part in whole.parts)
    assert repr(whole).startswith("The median step takes 8.")
    for name in ("launches", "paths", "samples"):
        assert str(each[name].parts[0]).endswith(" to compare: neither run has any.")


def test_the_same_is_chosen_in_both_runs() -> None:
    """GPU 1 and a name: the other GPU and the other kernels of the earlier run do not count."""
    later = chosen(two({"a": 200, "c": 5}), gpus=[1], kernels="a")
    rows = csv(still(views.compare(later, baseline=two({"a": 100, "b": 7}), part="kernels")))
    assert [("a", 100.0)] == list(zip(rows["name"], rows["difference_ns"], strict=True))
    assert (
        html(still(views.compare(later, baseline=two({"a": 1}), part="runs"))).count(
            "GPU 1, the whole"
        )
        == 2
    )


@pytest.mark.parametrize(
    ("choice", "said"), [({"kernels": "c"}, "matching 'c'"), ({"gpus": [1]}, "GPU 1")]
)
def test_what_the_earlier_run_lacks_is_a_sentence(choice: dict[str, Any], said: str) -> None:
    later = chosen(two({"a": 200, "c": 5}), **choice)
    for part in ("", *(name for name in PARTS if name != "runs")):
        (sentence,) = sentences(still(views.compare(later, baseline=small(), part=part)))
        assert "the earlier run has no kernel of what is chosen" in sentence
        assert said in sentence


@pytest.mark.parametrize("part", [name for name in PARTS if name != "verdict"])
def test_without_a_baseline_each_part_says_what_it_needs(part: str) -> None:
    (said,) = still(views.compare(chosen(small()), part=part)).parts
    assert "This needs an earlier run" in str(said)


@pytest.mark.parametrize("part", ["", "verdict"])
def test_without_a_baseline_the_verdict_says_how_to_name_one(part: str) -> None:
    (said,) = still(views.compare(chosen(small()), part=part)).parts
    assert "`perfkit lab RUN --baseline EARLIER`" in str(said)


def test_without_a_baseline_the_runs_beside_this_one_are_named() -> None:
    (said,) = still(views.compare(chosen(load(sample())), part="verdict")).parts
    assert f"`{sample('bert_a100').resolve()}`" in str(said)


def test_what_a_comparison_lacks_is_said() -> None:
    (said,) = still(views.compare(chosen(Run([])), baseline=Run([]))).parts
    assert "the first run has nothing, the second has nothing" in str(said)
    with pytest.raises(
        ValueError, match=r"part: 'speed' is no part of a comparison\. Choose from verdict, runs,"
    ):
        views.compare(chosen(small()), baseline=small(), part="speed")


def test_hostile_names_are_text() -> None:
    one = two({"<img src=x onerror=alert(1)>": 10, "<script>alert(2)</script>": 20})
    page = html(still(views.compare(chosen(one), baseline=one)))
    assert "<img" not in page
    assert "<script" not in page


def test_live_parts_follow_and_compare_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gesture is compared once for all parts; a window is of this run alone: before, 20 of 110 ns were busy."""
    asked: list[perfkit.Selection] = []
    compared = comparison.compared  # type: ignore[attr-defined]
    monkeypatch.setattr(
        verdict,  # type: ignore[attr-defined]
        "compared",
        lambda before, after, **options: [asked.append(before), compared(before, after, **options)][
            1
        ],
    )
    run, baseline = small(50), small()
    explorer = Chooser(selection=chosen(run))
    live = {
        part: views.compare(explorer, baseline=baseline, part=part)
        for part in ("verdict", "kernels", "figures")
    }
    assert all(isinstance(view, Live) for view in live.values())
    for number, (window, after) in enumerate((((0, 120), "58.3 %"), ((0, 100), "50.0 %")), start=2):
        explorer.selection = chosen(run, window=window)
        rows = csv(Shown(live["figures"].parts)).set_index("figure")
        assert ["18.2 %", after] == rows.loc["GPU busy", ["before", "after"]].tolist()
        assert number == len(asked)
    assert (
        asked[0] is asked[-1]
    )  # only the window moved: the earlier run's figures are not worked out again


def test_live_runs_are_compared_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    run, baseline = small(50), small()
    asked: list[perfkit.Selection] = []
    against = verdict.against
    monkeypatch.setattr(
        verdict, "against", lambda view, **given: [asked.append(view), against(view, **given)][1]
    )

    async def explored() -> list[str]:
        explorer = Chooser(selection=chosen(run))
        with asides._ONE:  # whoever compares waits here
            live = views.compare(explorer, baseline=baseline, part="figures")
            assert isinstance(live, Live)
            before = repr(Shown(live.parts))
            explorer.selection = chosen(run, window=(0, 100))
            await asyncio.sleep(0.3)
        for _ in range(200):
            await asyncio.sleep(0.05)
            if len(live.parts) and not isinstance(live.parts[0], str):
                break
        assert [explorer.selection] == asked
        return [before, repr(Shown(live.parts))]

    before, after = asyncio.run(explored())
    assert before == view_of_two.COMPARING
    monkeypatch.undo()
    assert after == repr(
        still(views.compare(chosen(run, window=(0, 100)), baseline=baseline, part="figures"))
    )


def test_the_earlier_run_is_not_kept() -> None:
    import gc
    import weakref

    run = small()
    alive = weakref.ref(run)
    repr(views.compare(chosen(small(50)), baseline=run))
    del run
    gc.collect()
    assert alive() is None
