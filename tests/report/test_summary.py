"""`summary.json` is a contract: its schema describes every key, and accepts no summary that lacks one."""

import copy
import json
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import perfkit
from perfkit import diagnosis, report
from perfkit.diagnosis.finding import plain
from perfkit.report import pages
from perfkit.report.links import Report
from perfkit.report.notebooks import sample
from perfkit.report.pages import Recorded

SCHEMA = json.loads(
    Path(pages.__file__).with_name("summary.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SAMPLES = ("mlp_a100", "bert_a100", "resnet18_a100", "dlrm_h100", "cpu_workloads/mlp_training")
LISTS = {name: [] for name in ("ranks", "gpus", "window", "families")}
PARAMETERS = {
    "profile": "run",
    **LISTS,
    "job": {},
    **dict.fromkeys(("baseline", "kernels", "peaks", "published"), ""),
}
WRONG = (
    (("schema",), 2),
    (("schema",), "1"),
    (("inputs", "captures", 0, "dur_ns"), 1.5),
    (("inputs", "parameters", "window"), [1, 2, 3]),
    (("findings", 0, "severity"), "severe"),
    (("findings", 0, "gain", "low"), None),
    (("findings", 0, "advice"), {"soon": []}),
    (("refusals", 0, "record"), ""),
    (("figures", "Not An Id"), {}),
    (("failures",), {}),
)


def written(name: str, folder: Path) -> dict[str, Any]:
    """The summary of a sample, made without its notebooks."""
    view = perfkit.select(perfkit.load(sample(name)))
    findings = diagnosis.findings(view)
    figures = {**diagnosis.figures(view), **{e.id: e for f in findings for e in f.evidence}}
    found = Recorded(
        {i: {**plain(figure), "notebook": "3_system"} for i, figure in figures.items()},
        [{**plain(finding), "notebook": "3_system"} for finding in findings],
        [plain(refusal) for refusal in diagnosis.refusals(view)],
        report.summary(view, figures, findings),
    )
    failures = {"5_framework": "ValueError: no"}
    tables = frozenset(view.run.profiles[0].loaders)
    pages.write_summary(
        folder, pages.summary_inputs(view, PARAMETERS), found, Report((), tables), failures
    )
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return written("mlp_a100", tmp_path_factory.mktemp("summary"))


def objects(
    value: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every object in a summary with its path; of a list, or of a map from ids, the first one only."""
    if isinstance(value, dict):
        yield path, value
        inner = list(value.items())
        for key, item in inner[:1] if path == ("figures",) else inner:
            yield from objects(item, (*path, key))
    elif isinstance(value, list) and value:
        yield from objects(value[0], (*path, 0))


def at(value: Any, path: Sequence[Any]) -> Any:
    return reduce(getitem, path, value)


def undescribed(value: Any, part: dict[str, Any], path: str = "") -> Iterator[str]:
    """The keys of a summary that the schema does not name."""
    part = SCHEMA["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    if isinstance(value, list):
        for item in value[:1]:
            yield from undescribed(item, part.get("items", {}), f"{path}[]")
    elif isinstance(value, dict):
        named = next((p for p in part.get("anyOf", []) if "properties" in p), part)
        for key, item in value.items():
            inner = named.get("properties", {}).get(key, named.get("additionalProperties"))
            if inner is None:
                yield f"{path}.{key}"
            else:
                yield from undescribed(item, inner, f"{path}.{key}")


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert pages.SCHEMA == SCHEMA["properties"]["schema"]["const"]


@pytest.mark.parametrize("name", SAMPLES)
def test_the_summary_of_a_sample_matches_the_schema(
    name: str, content: dict[str, Any], tmp_path: Path
) -> None:
    found = content if name == "mlp_a100" else written(name, tmp_path)
    assert [] == [
        f"{'/'.join(map(str, e.path))}: {e.message}" for e in VALIDATOR.iter_errors(found)
    ]
    assert found["figures"]
    assert [] == list(undescribed(found, SCHEMA)), (
        "describe these keys in perfkit/report/summary.schema.json"
    )


def test_a_summary_without_a_key_or_with_a_wrong_value_is_rejected(content: dict[str, Any]) -> None:
    assert VALIDATOR.is_valid(content)
    assert all(content[part] for part in ("figures", "findings", "refusals", "failures"))
    for path, found in objects(content):
        # The ids of figures and the horizons of advice may be absent.
        for key in found if path != ("figures",) and path[-1:] != ("advice",) else ():
            lacking = copy.deepcopy(content)
            del at(lacking, path)[key]
            assert not VALIDATOR.is_valid(lacking), (*path, key)
    for (*path, key), value in WRONG:
        wrong = copy.deepcopy(content)
        at(wrong, path)[key] = value
        assert not VALIDATOR.is_valid(wrong), (*path, key)
