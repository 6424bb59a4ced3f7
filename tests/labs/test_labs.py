"""The labs: their notebooks run, and their answers are graded."""

import ast
import gzip
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from cells import sharing
from labs import captures
from labs.submissions import (
    LABS,
    NOTEBOOKS,
    constants,
    kind,
    on,
    points,
    read,
    released,
    takes_capture,
)
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from real import OPTIMISED

from make import simulate
from perfkit.readers import nsys
from perfkit.report import experiments
from perfkit.report.lab import capture, form, prepare_course
from perfkit.report.notebooks import sample

# Notebook, test, what the student reads, and the wrong function.
WRONG = [
    line.split(" | ")
    for line in Path(__file__)
    .with_name("mistakes.txt")
    .read_text(encoding="utf-8")
    .splitlines()[1:]
]


@pytest.fixture(scope="module", autouse=True)
def _runs_are_read_once() -> Iterator[None]:
    """What was recorded, and what perfkit finds in it, is the same in every version of a notebook."""
    with sharing(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiments, "trials", cache(experiments.trials))
        yield


@pytest.fixture(params=sorted(NOTEBOOKS))
def lab(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(cells: list[nbformat.NotebookNode], space: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run code cells, tests among them, which raise where they fail; return what they defined, in this space or one."""
    space = {"__name__": "__main__"} if space is None else space
    for cell in cells:
        if cell.cell_type == "code":
            exec(compile(cell.source, "cell", "exec"), space)
    return space


def test_the_form_of_a_lab(lab: str) -> None:
    notebook = read(lab)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # Outputs would hold the solutions' results.
    assert [] == [cell.source for cell in code if cell.outputs or cell.execution_count]
    # nbgrader finds a cell by its id, and refuses other schemas than its own.
    told = [cell.metadata["nbgrader"] for cell in notebook.cells if "nbgrader" in cell.metadata]
    assert len(told) == len({each["grade_id"] for each in told})
    assert {3} == {each["schema_version"] for each in told}
    # Visible tests alone could be satisfied by writing what they ask for.
    assert all(cell.metadata["nbgrader"]["points"] > 0 for cell in notebook.cells if kind(cell)[0])
    tests = [cell for cell in code if kind(cell)[0]]
    hides = re.compile(r"### BEGIN HIDDEN TESTS\n.*assert", re.S)
    assert [] == [cell.source for cell in tests if not hides.search(cell.source)]
    assert all(cell.metadata["nbgrader"]["locked"] for cell in tests)
    # Only students define functions.
    for cell in code:
        if kind(cell) == (False, True):
            assert cell.source.count("def ") == cell.source.count("### BEGIN SOLUTION")
        else:
            assert not re.search(r"^\s*(def|class) ", cell.source, re.M), cell.source
    # What a student sees of a cell fits a glance; the first cells, and the folded checks, take more lines.
    shown = [cell for cell in released(notebook).cells if cell.cell_type == "code"][2:]
    assert [] == [
        cell.source
        for cell in shown
        if len(cell.source.splitlines()) > (30 if kind(cell)[0] else 15)
    ]
    # Below the student's function stands its check with the right results; JupyterLab shows a bar in its place.
    for each in (notebook, released(notebook)):
        folded = [
            cell.metadata.get("jupyter", {}).get("source_hidden", False) for cell in each.cells
        ]
        assert [
            cell.cell_type == "code" and kind(cell) == (True, False) for cell in each.cells
        ] == folded


def test_release_has_no_solution_and_no_hidden_test(lab: str) -> None:
    text = nbformat.writes(released(read(lab)))
    assert "SOLUTION" not in text
    assert "HIDDEN" not in text


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs."""
    root = LABS.parents[1]
    if find_spec("hatchling") is None or not (root / "hatch_build.py").is_file():
        pytest.skip(
            "hatchling (pip install 'perfkit[test]'), or the source of the package, is missing"
        )
    folder = tmp_path_factory.mktemp("wheel")
    build = "from hatchling.build import build_wheel; import sys; build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", build, str(folder)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    with zipfile.ZipFile(made) as content:
        content.extractall(folder / "installed")
    return folder / "installed"


def assert_students_version(lab: str, path: Path) -> None:
    """The file holds a lab as it is released: no solution, no hidden test and no model answer."""
    text = path.read_text(encoding="utf-8")
    assert not re.search("SOLUTION|HIDDEN", text)
    made = nbformat.reads(text, as_version=4)
    own = read(lab)
    assert [cell.source for cell in released(own).cells] == [cell.source for cell in made.cells]
    answers = [cell.source for cell in own.cells if kind(cell) == (True, True)]
    for answer in answers:
        assert not any(answer[:60] in cell.source for cell in made.cells)


def test_wheel_holds_a_students_version(wheel: Path, lab: str) -> None:
    assert_students_version(lab, wheel / "perfkit" / "notebooks" / "labs" / f"{lab}.ipynb")


def test_wheel_holds_nothing_of_the_instructors(wheel: Path) -> None:
    """The judge, the page and whatever else stands beside the labs stay with the source."""
    files = (wheel / "perfkit" / "notebooks" / "labs").iterdir()
    assert {f"{name}.ipynb" for name in NOTEBOOKS} == {file.name for file in files}


@pytest.fixture(scope="session")
def written_by_the_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `perfkit lab --labs` writes where the wheel is installed."""
    folder = tmp_path_factory.mktemp("course")
    code = "import sys; from pathlib import Path; from perfkit.report import lab;"
    code += "lab.prepare_course(Path(sys.argv[1])); print(lab.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(wheel))
    return folder


def test_the_wheel_writes_a_students_version(written_by_the_wheel: Path, lab: str) -> None:
    assert_students_version(lab, written_by_the_wheel / f"{lab}.ipynb")


def test_the_source_writes_a_students_version(tmp_path: Path, lab: str) -> None:
    assert_students_version(lab, prepare_course(tmp_path) / f"{lab}.ipynb")


def test_releasing_a_students_version_changes_nothing(lab: str) -> None:
    made = released(read(lab))
    assert made == released(made)


def test_command_copies_the_labs_and_keeps_a_students_work(tmp_path: Path) -> None:
    place = prepare_course(tmp_path / "labs")
    assert sorted(NOTEBOOKS) == sorted(path.stem for path in place.iterdir())
    (place / "lab1_the_gpu.ipynb").write_text("mine")
    prepare_course(place)
    assert "mine" == (place / "lab1_the_gpu.ipynb").read_text()


def test_points_are_for_solutions_alone(lab: str) -> None:
    """Each test passes with the solutions; where its own task alone lacks one, it fails and says what is wrong.

    A function that is not written, and the mistakes of mistakes.txt, meet their words in the visible test, before
    handing in. The best constants there are, functions that repeat their first right answer, meet the hidden one.
    """
    notebook, space, met = read(lab), run([]), []
    mistakes = [rest for of, *rest in WRONG if of == lab]
    versions = zip(notebook.cells, released(notebook).cells, constants(notebook).cells, strict=True)
    for before, (test, visible, _) in pairwise(
        cells for cells in versions if cells[0].cell_type == "code"
    ):
        run([before[0]], space)
        if kind(test) != (True, False):
            continue
        assert kind(before[0]) == (False, True), (
            "a student can go from a task to its test: nothing stands between"
        )
        blank, constant = (run([cell], dict(space)) for cell in before[1:])
        with pytest.raises(NotImplementedError):
            run([visible], blank)
        with pytest.raises((AssertionError, LookupError, ValueError)):
            run([test], constant)
        for name, words, source in mistakes:
            if name == test.metadata["nbgrader"]["grade_id"]:
                mistaken = run([nbformat.v4.new_code_cell(source)], dict(space))
                with pytest.raises(AssertionError, match=re.escape(words)):
                    run([visible], mistaken)
                met.append([name, words, source])
    run([test], space)
    assert sorted(met) == sorted(mistakes) != []


def looked_up(solution: str, visible: str, space: dict[str, Any]) -> dict[str, Any]:
    """Return a space whose functions know what the visible check asks, and say 0 to all else."""
    names = [node.name for node in ast.parse(solution).body if isinstance(node, ast.FunctionDef)]
    known: set[bytes] = set()

    def replaced(is_learning: bool) -> dict[str, Any]:
        def answering(name: str) -> Any:
            def answer(*args: Any, **named: Any) -> Any:
                question = pickle.dumps((name, args, named))
                if is_learning:
                    known.add(question)
                return space[name](*args, **named) if question in known else 0

            return answer

        return space | {name: answering(name) for name in names}

    run([nbformat.v4.new_code_cell(visible)], replaced(is_learning=True))
    return replaced(is_learning=False)


@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if name != "lab5_own"])
@pytest.mark.sampled(3)
def test_what_the_visible_check_tells_earns_nothing(name: str) -> None:
    """In lab5_own it tells no right answer."""
    cells = zip(read(name).cells, released(read(name)).cells, strict=True)
    code = [pair for pair in cells if pair[0].cell_type == "code"]
    space = run([])
    for (before, _), (test, visible) in pairwise(code):
        run([before], space)
        if kind(test) == (True, False):
            with pytest.raises(Exception):  # noqa: B017, PT011 whatever a test does not pass with
                run([test], looked_up(before.source, visible.source, space))


def test_every_check_explains_itself(lab: str) -> None:
    """Each assertion has a message; each test checks the form of the answer first, where students see it."""
    for cell in read(lab).cells:
        if kind(cell) == (True, False):
            empty = [
                node
                for node in ast.walk(ast.parse(cell.source))
                if isinstance(node, ast.Assert) and not node.msg
            ]
            assert [] == [ast.unparse(node) for node in empty]
            visible = cell.source.partition("### BEGIN HIDDEN TESTS")[0]
            assert "form(" in visible
            assert visible.endswith('report.note("passes the visible check")\n')
    assert points(read(lab))


@pytest.mark.parametrize(
    ("answer", "example", "words"),
    [
        (None, 1.0, "returned None"),
        (True, 1.0, "a number, not a bool"),
        ("1", 1.0, "a number, not a str"),
        (1.0, (1.0, 1.0), "2 values"),
        ((1.0, "a"), (1.0, 1.0), "a number, not a str"),
        ([1], {}, "a dictionary, not a list"),
    ],
)
def test_form_says_what_is_wrong(answer: object, example: object, words: str) -> None:
    """Nothing, another type, or another number of values."""
    with pytest.raises(AssertionError, match=words):
        form(answer, example)


OWN = "def mine():\n    assert False, 'of the student'\n\n\nmine()"


def test_kernel_answers_in_a_sentence_that_is_still_an_error() -> None:
    """What JupyterLab shows in red of a check: no traceback, which would hold the check's lines; others keep theirs."""
    notebook = released(read("lab3_resnet18"))
    names = [cell.metadata.get("nbgrader", {}).get("grade_id") for cell in notebook.cells]
    check = notebook.cells[names.index("test_rates")].source
    wrong = "def images_per_s(t, n): return n / t.train_s\ndef step_s(t, n): return None"
    sources = [wrong, check, OWN, "1 / 0", "assert 1 == 2", "step_s = images_per_s", check]
    cells = [
        cell for cell in notebook.cells[: names.index("test_rates") + 1] if cell.cell_type == "code"
    ]
    notebook.cells = cells + [nbformat.v4.new_code_cell(source) for source in sources]
    for cell in notebook.cells[:-1]:
        cell.metadata["tags"] = [
            "raises-exception"
        ]  # it does not stop the notebook; the last one does
    with pytest.raises(CellExecutionError, match="The index of both must be the batch size"):
        NotebookClient(notebook, timeout=300).execute()
    outputs = [
        output
        for cell in notebook.cells
        for output in cell.outputs
        if output.output_type == "error"
    ]
    said = [re.sub(r"\x1b\[[\d;]*m", "", "\n".join(output.traceback)) for output in outputs]
    assert [
        "NotImplementedError",
        "AssertionError",
        "AssertionError",
        "ZeroDivisionError",
        *["AssertionError"] * 2,
    ] == [output.ename for output in outputs]
    assert "Write the function above first: images_per_s." == said[0] == outputs[0].evalue
    assert (
        "The function returned None: it reached no `return`, or its search found no match."
        == said[1]
    )
    assert all("Traceback" in text and "----> " in text for text in said[2:5])
    assert (
        'The index of both must be the batch size: begin with times.set_index("batch"). See task 1.'
        == said[5]
    )


def test_lab2_sets_real_times_beside_the_published_ones(tmp_path: Path) -> None:
    """From the sample, or a student's own folder: the file's times, and rates by the operations that students count."""
    other = tmp_path / "timed"
    shutil.copytree(sample("cpu_workloads"), other)
    for name in ("mlp", "cnn"):
        file = other / f"{name}_inference" / "timings.json"
        content = json.loads(file.read_text(encoding="utf-8"))
        for row in content["rows"]:
            row |= {
                "step_median_ns": 2 * row["step_median_ns"],
                "flops_per_s": row["flops_per_s"] / 2,
            }
        file.write_text(json.dumps(content), encoding="utf-8")
    found = []
    for place in ("", str(other)):
        notebook = read("lab2_mlp_cnn")
        cell = next(
            cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
        )
        cell.source = cell.source.replace('timed: str = ""', f"timed: str = {place!r}")
        space = run(notebook.cells)
        found.append(space["both"])
        work = {"MLP": space["mlp_flops"], "CNN": space["cnn_flops"]}
        for row in space["both"].itertuples():
            flops = work[row.model](row.batch)
            assert flops / row.step_median_ns * 1e9 == pytest.approx(row.real_flops_per_s)
            assert flops / row.cpu_infer_us * 1e6 == pytest.approx(row.published_flops_per_s)
    assert [6, 6] == [len(rows) for rows in found]
    assert found[1]["step_median_ns"].tolist() == pytest.approx(
        (2 * found[0]["step_median_ns"]).tolist()
    )


H100 = "torch/TraceLens__h100__gaunernst_bert-small-uncased__1016001.json.gz"
COUNTED = (
    "ncu/leleucas__Actual-Parameter-Collection-for-Machine-Learning-Operators__bert_nsight.csv"
)
# Captures other than the lab's own: passes of inference without a loader, flash attention in BF16 by NVIDIA and AMD,
# counters of unknown hardware, and a training whose kernels and metrics have nothing to do with the sample's.
OTHERS = [
    ("lab2_mlp_cnn", "data/mlp_a100/mlp_a100.inference.ncu.csv"),
    ("lab2_mlp_cnn", "data/mlp_a100/mlp_a100.pt.trace.json.gz"),
    pytest.param(
        "lab3_resnet18", "data/resnet18_a100/inference", marks=pytest.mark.matrix
    ),  # the next two at once
    ("lab3_resnet18", "data/resnet18_a100/inference/resnet18_a100.inference.nsys.sqlite"),
    ("lab3_resnet18", "data/resnet18_a100/inference/resnet18_a100.inference.ncu.csv"),
    pytest.param("lab4_bert", H100, marks=pytest.mark.matrix),  # NVIDIA's is in H200 too
    ("lab4_bert", "torch/TraceLens__mi300__gaunernst_bert-small-uncased__1016001.json.gz"),
    ("lab4_bert", COUNTED),
    ("lab4_bert", "data/bert_a100_optimised"),
    ("lab4_bert", "data/cpu_workloads/bert_inference"),
    *((name, f"nsys/{OPTIMISED}") for name in NOTEBOOKS if takes_capture(read(name))),
]


@pytest.mark.parametrize(("name", "place"), OTHERS)
@pytest.mark.sampled(3)
def test_tests_are_right_for_another_capture(
    name: str, place: str, request: pytest.FixtureRequest
) -> None:
    """What the capture has is taken from it, the rest from the sample."""
    is_sample = place.startswith("data/")
    folder = sample().parents[1] if is_sample else request.getfixturevalue("profiles")
    run(on(read(name), folder / place).cells)


H200 = [  # a lab, its parameters, and what it then takes from them
    (
        "lab2_mlp_cnn",
        {"profile": "gpu_workloads/mlp_inference"},
        {"timeline", "launches", "single counters"},
    ),
    pytest.param(  # a timeline alone, as in the trace of OTHERS
        *(
            "lab2_mlp_cnn",
            {"profile": "gpu_workloads/mlp_training", "timed": "cpu_workloads"},
            {"timeline"},
        ),
        marks=pytest.mark.matrix,
    ),
    ("lab3_resnet18", {"profile": "gpu_workloads/resnet18_training"}, {"timeline"}),
    (
        "lab4_bert",
        {"profile": "gpu_workloads/bert_inference", "cpu": "cpu_workloads/bert_inference"}
        | {"alone": "gpu_workloads/resnet18_inference", "changed": "gpu_workloads/bert_training"},
        {"times on the GPU", "times on the CPU", "batch 1", "large batch", "change", "operators"},
    ),
]


@pytest.mark.parametrize(("lab", "parameters", "yours"), H200)
def test_labs_take_what_an_h200_recorded(
    lab: str, parameters: dict[str, str], yours: set[str]
) -> None:
    """Samples by their names: solutions, visible and hidden tests; the timeline is the raw trace's, in ns."""
    notebook = on(read(lab), **parameters)
    space = run(notebook.cells)
    origin = space["lines"] if lab == "lab4_bert" else space["origin"]
    assert yours == {part for part, told in origin.items() if told == "yours"}
    trace = gzip.decompress(
        (sample(parameters["profile"]) / "rank-0.pt.trace.json.gz").read_bytes()
    )
    kernels = [
        event["dur"] for event in json.loads(trace)["traceEvents"] if event.get("cat") == "kernel"
    ]
    assert space["traced"].kernels["dur_ns"].sum() == pytest.approx(
        sum(kernels) * 1e3, abs=len(kernels)
    )


def test_a_folder_beside_the_notebook_comes_before_the_sample_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "gpu_workloads/bert_training"
    assert sample(name) == capture(name)
    Path(name).mkdir(parents=True)
    assert [Path(name), Path("mine"), sample()] == [
        capture(name),
        capture("mine"),
        capture(sample()),
    ]


def test_page_has_every_lab_with_its_points() -> None:
    """A row for each notebook, with hours and the points of tests and prose; the notebook says the same."""
    page = (LABS / "README.md").read_text(encoding="utf-8")
    numbers = "no", "one", "two", "three", "four", "five"
    for name in NOTEBOOKS:
        graded = [cell for cell in read(name).cells if kind(cell)[0]]
        tests, prose = (
            sum(cell.metadata["nbgrader"]["points"] for cell in graded if cell.cell_type == which)
            for which in ("code", "markdown")
        )
        row = re.search(rf"^\| `{name}` \|.*\| (\d) \| {tests}, {prose} \|$", page, re.M)
        assert row, (name, tests, prose)
        told = f"Plan {numbers[int(row[1])]} hours. The functions earn {tests} points, the prose {prose}."
        assert told in read(name).cells[0].source


NAME = "lab4_experiments"


def test_every_topic_has_a_part() -> None:
    notebook = read(NAME)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for name in simulate.NAMES:
        assert f'experiments.card("{name}")' in code
        assert f'{name} = experiments.trials("{name}", runs)' in code
    headings = re.findall(r"^## (\d)\.", "\n".join(cell.source for cell in notebook.cells), re.M)
    assert list("123456789") == headings  # the last one: measured on a real GPU
    assert len(points(notebook)) >= len(headings)


def test_own_runs_of_a_gpu_and_of_a_cpu(tmp_path: Path) -> None:
    """Other captures than those of the lab in the folders of its experiments: the tests are right for them too."""
    for name, other in (("sync", "loading"), ("fusion", "precision")):
        for label, path in simulate.write(other, tmp_path / name).items():
            timings = '{"rows": [{"batch_count": 3, "step_flops": 1000000}]}'
            (path / "timings.json").write_text(timings)
            (path / f"{label}.truth.json").unlink()
    cpu, rest = sample().parent / "cpu_workloads", set(simulate.PAIRS) - {"sync", "fusion"}
    for name in rest:
        for label, made in (("before", "mlp_training"), ("after", "cnn_training")):
            shutil.copytree(cpu / made, tmp_path / name / label)
    space = run(on(read(NAME), runs=tmp_path).cells)
    assert [3, 3] == [trial.batch_count for trial in space["sync"].values()]
    assert not any(len(trial.run.kernels) for name in rest for trial in space[name].values())


@pytest.mark.parametrize(
    ("stage", "share"), [("before", 0.65), ("BF16", 0.78), ("torch.compile", 0.95)]
)
def test_the_case_is_what_the_text_says(stage: str, share: float) -> None:
    """The overview that the student sees has the utilisation of the notes, to half a point."""
    rows = experiments.overview(experiments.trials("case")).set_index("run")
    assert rows.loc[stage, "kernel_busy_frac"] == pytest.approx(share, abs=0.005)
    rate = rows["samples_per_s"]
    assert rate["torch.compile"] / rate["before"] == pytest.approx(3.75, rel=0.01)


def test_cases_are_the_adversarys(tmp_path: Path) -> None:
    captures.write(tmp_path / "cases.zip")
    places = tmp_path / "kept", tmp_path / "made"
    for place, archive in zip(places, (sample("cases.zip"), tmp_path / "cases.zip"), strict=True):
        with zipfile.ZipFile(archive) as content:
            content.extractall(place)
    files = [
        [file.relative_to(place) for file in sorted(place.rglob("*.sqlite"))] for place in places
    ]
    assert files[0] == files[1]
    assert set(captures.PLANTED) == {file.parent.name for file in files[0]}
    for file in files[0]:
        kept, made = (nsys.read(place / file) for place in places)
        for table in ("KERNELS", "COPIES", "API_CALLS", "RANGES", "SAMPLES"):
            pd.testing.assert_frame_equal(kept.table(table), made.table(table))
