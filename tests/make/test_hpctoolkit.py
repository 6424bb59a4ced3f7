"""Databases as HPCToolkit writes them."""

from pathlib import Path
from typing import Any

import pytest

import perfkit
from make import hpctoolkit
from make.hpctoolkit import Form, Metric

HOSTILE = "Straße <b>\N{CJK UNIFIED IDEOGRAPH-6838}</b> '\"\\ "


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    hpctoolkit.contexts(tmp_path / "a", contexts=100)
    hpctoolkit.contexts(tmp_path / "b", contexts=100)
    hpctoolkit.contexts(tmp_path / "c", contexts=100, seed=1)
    a, b, c = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc")
    assert a == b
    assert a != c
    assert {"meta.db", "profile.db", "cct.db"} == set(a)


def test_too_few_contexts() -> None:
    with pytest.raises(ValueError, match="contexts: 7 is not 8, the entry points and levels, or more"):
        hpctoolkit.contexts(Path("unused"), contexts=7, levels=5)


@pytest.mark.parametrize("metrics", [hpctoolkit.NVIDIA, hpctoolkit.NVIDIA_2026, hpctoolkit.AMD, hpctoolkit.INTEL])
@pytest.mark.parametrize("form", [Form(), Form(minor=7, spare_words=2, first_statistic=900)])
def test_perfkit_reads_what_is_true(tmp_path: Path, metrics: tuple[Metric, ...], form: Form) -> None:
    """Contexts, and values by entry point and by thread, in the form of today and of a later minor version."""
    options: dict[str, Any] = {"metrics": metrics, "threads": 2, "ranks": 3, "word": HOSTILE, "form": form}
    truth = hpctoolkit.contexts(tmp_path, contexts=1_000, **options)
    (profile,) = perfkit.load(tmp_path).profiles
    tree, values, crew = (profile.table(name) for name in ("CALLTREE", "CALL_METRICS", "THREAD_METRICS"))
    assert truth["entries"] == tree.groupby("entry", observed=True).size().to_dict()
    assert truth["depth"] == tree["depth"].max()
    roots = values.merge(tree.loc[tree["parent"].isna(), ["node", "entry"]], on="node")
    for name, by_entry in truth["by_entry"].items():
        own = roots[roots["metric"] == name.split(" ")[0]]
        assert {e: v for e, v in by_entry.items() if v} == dict(zip(own["entry"], own["inclusive"], strict=True))
        threads = crew[crew["metric"] == name.split(" ")[0]].groupby("thread")["inclusive"].sum()
        assert pytest.approx([value for value in truth["threads"][name] if value], rel=1e-12) == threads.tolist()
    assert [0, 0, 1, 1, 2, 2] == profile.table("THREADS")["mpi_rank"].tolist()
