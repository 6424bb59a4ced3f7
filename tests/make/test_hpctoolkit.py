"""Databases as HPCToolkit writes them."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from databases import Database

import perfkit
from make import hpctoolkit
from make.hpctoolkit import Form, Metric, Paths, Tree
from make.hpctoolkit.tree import CALLED

SCOPES = ("point", "function", "lex_aware", "execution")
KINDS = ("function", "loop", "line", "instruction", "entry")
METRICS = (Metric("CPUTIME (sec)", 1_000_000_000), Metric("GKER:COUNT"))
SAMPLE = Path(__file__).parents[2] / "data" / "dlrm_h100" / "hpctoolkit-dlrm-database"
HOSTILE = "Straße <b>\N{CJK UNIFIED IDEOGRAPH-6838}</b> '\"\\ "


def contents(database: Database) -> tuple[Any, ...]:
    """All that a database says, without the ids of its statistics."""
    summary = {}
    for metric in database.metrics:
        for scope, number in metric.statistics.items():
            for context, values in database.profiles[0].values.items():
                if number in values:
                    summary[context, metric.name, scope] = values[number]
    names = [(metric.name, metric.ids) for metric in database.metrics]
    return database.contexts, names, summary, database.profiles[1:], database.by_context()


def test_scopes_are_those_of_hpcprof(profiles: Path) -> None:
    """From the points of a real database that lists every instruction it measured follow its other three scopes."""
    real = Database(profiles / "hpctoolkit" / "hpctoolkit-leo-nvidia-database")
    listed = [
        context._replace(relation=CALLED) if context.kind == "entry" else context for context in real.contexts.values()
    ]
    at = {number: i for i, number in enumerate(real.contexts)}
    zeros = np.zeros(len(listed), np.int64)
    tree = Tree(
        parent=np.array([at.get(context.parent, -1) for context in listed]),
        lexical=np.array([KINDS.index(context.kind) for context in listed]),
        relation=np.array([context.relation for context in listed]),
        **dict.fromkeys(("what", "line", "module", "offset", "ids"), zeros),
        **dict.fromkeys(("modules", "files", "functions"), ()),
        hidden=zeros == 1,
    )
    assert [context.propagation for context in listed] == tree.within.tolist()
    counted = [metric for metric in real.metrics if not metric.name.endswith("(s)")]
    stored = {scope: np.zeros((len(listed), len(counted)), np.int64) for scope in SCOPES}
    for number, values in real.profiles[0].values.items():
        for i, metric in enumerate(counted):
            for scope in SCOPES:
                if number:
                    stored[scope][at[number], i] = values.get(metric.statistics[scope], 0)
    assert 15 < stored["execution"].any(axis=0).sum()
    for scope, values in zip(SCOPES[1:], tree.scopes(stored["point"]), strict=True):
        assert stored[scope].tolist() == values.tolist()


def test_files_are_laid_out_as_real_ones(profiles: Path) -> None:
    """Versions, footers and the sizes of all structures are those of a real database; profiles have 48 bytes."""
    made, real = (Database(p) for p in (SAMPLE, profiles / "hpctoolkit" / "hpctoolkit-dlrm-cpu-database"))
    fields = [("meta.db", 2, "12xBBB11xB"), ("meta.db", 3, "10xB"), *(("meta.db", i, "12xH") for i in (5, 6, 7))]
    fields += [(file, 0, "12xB") for file in ("profile.db", "cct.db", "trace.db")]
    for file, section, field in fields:
        sizes = [database.at(file, field, database.sections[file][section][1]) for database in (real, made)]
        assert sizes[0] == sizes[1], (file, section)
    assert [real.files[file][:16] for file in real.files] == [made.files[file][:16] for file in real.files]
    assert (48,) == made.at("profile.db", "12xB", made.sections["profile.db"][0][1])
    assert real.kinds == made.kinds


@pytest.mark.parametrize("metrics", [hpctoolkit.NVIDIA, hpctoolkit.NVIDIA_2026, hpctoolkit.AMD, hpctoolkit.INTEL])
def test_truth_is_what_the_file_holds(tmp_path: Path, metrics: tuple[Metric, ...]) -> None:
    """Totals, sums by entry point and by thread are the execution values of context 0 and the entry points.

    Every value of a thread in `profile.db` is in `cct.db`, and no other; walking up from every point value adds up to
    the execution values.
    """
    truth = hpctoolkit.contexts(tmp_path, contexts=300, metrics=metrics, threads=2, ranks=2, seed=3)
    read = Database(tmp_path)
    assert [metric.name for metric in metrics] == [metric.name for metric in read.metrics]
    assert (truth["contexts"], 1 + 2 * 2) == (len(read.contexts), len(read.profiles))
    for name in truth["totals"]:
        inclusive = read.inclusive(name)
        assert truth["totals"][name] == inclusive[0]
        assert truth["by_entry"][name] == {entry: inclusive[context] for entry, context in read.entries().items()}
        assert truth["threads"][name] == [read.inclusive(name, number)[0] for number in range(1, 5)]
    by_context: dict[tuple[int, int, int], float] = {}
    sums: dict[tuple[int, int, int], int] = defaultdict(int)
    stored = {}
    for number, profile in enumerate(read.profiles):
        for context, values in profile.values.items():
            for scope, value in values.items():
                if number:
                    by_context[number, context, scope] = value
                if scope % 4 == 3:
                    stored[number, context, scope // 4] = value
            for i, metric in enumerate(metrics):
                amount, at = round(values.get(4 * i, 0) * metric.per_unit), context
                while amount and at:
                    sums[number, at, i] += amount
                    at = read.contexts[at].parent
                sums[number, 0, i] += amount
    assert by_context == read.by_context()
    assert stored == {key: value / metrics[key[2]].per_unit for key, value in sums.items() if value}


def test_entry_points_that_do_not_hold_everything(tmp_path: Path) -> None:
    """What is unaccounted for is in context 0 of the summary alone: 3 launches more than the entry points have."""
    hpctoolkit.contexts(tmp_path, contexts=50, metrics=METRICS, unaccounted={"GKER:COUNT": 3})
    read = Database(tmp_path)
    for name, more in (("GKER:COUNT", 3), ("CPUTIME (sec)", 0)):
        inclusive = read.inclusive(name)
        assert inclusive[0] == pytest.approx(more + sum(inclusive[c] for c in read.entries().values()), rel=1e-12)


def test_a_later_minor_version_says_the_same(tmp_path: Path) -> None:
    plain, later = tmp_path / "plain", tmp_path / "later"
    hpctoolkit.contexts(plain, contexts=200, seed=1)
    hpctoolkit.contexts(later, contexts=200, seed=1, form=Form(minor=7, spare_words=2, first_statistic=900))
    assert contents(Database(plain)) == contents(Database(later))
    assert (4, 7) == tuple((later / "meta.db").read_bytes()[14:16])
    assert (64,) == Database(later).at("profile.db", "12xB", Database(later).sections["profile.db"][0][1])
    assert {900, 901, 902, 903} == set(Database(later).metrics[0].statistics.values())


def test_two_thousand_levels(tmp_path: Path) -> None:
    truth = hpctoolkit.contexts(tmp_path, contexts=2_010, metrics=METRICS, levels=2_000)
    assert truth["depth"] >= 2_000
    read = Database(tmp_path)
    assert truth["totals"]["GKER:COUNT"] == read.inclusive("GKER:COUNT")[0]


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    hpctoolkit.contexts(tmp_path / "a", contexts=100)
    hpctoolkit.contexts(tmp_path / "b", contexts=100)
    hpctoolkit.contexts(tmp_path / "c", contexts=100, seed=1)
    a, b, c = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "abc")
    assert a == b
    assert a != c
    assert {"meta.db", "profile.db", "cct.db"} == set(a)


def test_an_empty_database_can_be_written(tmp_path: Path) -> None:
    hpctoolkit.write(tmp_path, hpctoolkit.Database(Paths().tree(), (), (), t0_unix_ns=0))
    read = Database(tmp_path)
    assert ({}, [], 1, {}) == (read.contexts, read.metrics, len(read.profiles), read.traces())


def test_too_few_contexts() -> None:
    with pytest.raises(ValueError, match="contexts: 7 is not 8, the entry points and levels, or more"):
        hpctoolkit.contexts(Path("unused"), contexts=7, levels=5)


def test_perfkit_reads_what_is_true(tmp_path: Path) -> None:
    truth = hpctoolkit.contexts(tmp_path, contexts=1_000, threads=2, ranks=3, word=HOSTILE, form=Form(1, 1, 500))
    (profile,) = perfkit.load(tmp_path).profiles
    tree, values, crew = (profile.table(name) for name in ("CALLTREE", "CALL_METRICS", "THREAD_METRICS"))
    assert truth["entries"] == tree.groupby("entry", observed=True).size().to_dict()
    assert truth["depth"] == tree["depth"].max()
    roots = values.merge(tree.loc[tree["parent"].isna(), ["node", "entry"]], on="node")
    for name, by_entry in truth["by_entry"].items():
        own = roots[roots["metric"] == name.split(" ")[0]]
        assert {e: v for e, v in by_entry.items() if v} == dict(zip(own["entry"], own["inclusive"], strict=True))
        threads = crew[crew["metric"] == name.split(" ")[0]].groupby("thread")["inclusive"].sum()
        assert pytest.approx(truth["threads"][name], rel=1e-12) == threads.tolist()
    assert [0, 0, 1, 1, 2, 2] == profile.table("THREADS")["mpi_rank"].tolist()
