"""Which files are taken for a PyTorch trace, and what others are told (made files)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from readers import torch_files as made
from readers.torch_files import Write, every_form

import perfkit
from perfkit.errors import ReadError
from perfkit.readers import torch_trace

OTHERS: dict[str, Any] = {
    "execution trace": {"schema": "1.0.2-chakra.0.0.4", "pid": 1, "time": "now", "nodes": [{"id": 1, "name": "x"}]},
    "another program's Chrome trace": {"traceEvents": [{"ph": "X", "cat": "xla", "name": "fusion", "ts": 1, "dur": 1}]},
    "a summary of a trace": {"schemaVersion": 1, "device": {"deviceProperties": [made.DEVICE]}, "cat": "kernel"},
    "events without an object": made.sample()["traceEvents"],
    "no events": {"traceEvents": []},
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_other_json_is_not_claimed(other: Any, indent: int | None, tmp_path: Path) -> None:
    """Only an object with Kineto's own keys at its first level, or with events of its categories, is a trace."""
    path = tmp_path / "other.json"
    path.write_text(json.dumps(other, indent=indent))
    assert torch_trace.sniff(path) is False


@every_form
def test_a_trace_is_recognised_by_its_header_or_its_events(write: Write, tmp_path: Path) -> None:
    """With a header longer than what is looked at, or with no header at all."""
    long = {"schemaVersion": 1, "distributedInfo": {"pg_config": ["group"] * 20_000}, **made.trace(made.op("a", 1, 1))}
    assert torch_trace.sniff(write(tmp_path / "long.json", long))
    bare = {"traceEvents": [made.event("Kernel", "k", 1, 1, 0, "stream 7")], "distributedInfo": {"rank": 1}}
    assert torch_trace.sniff(write(tmp_path / "bare.json", bare))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (OTHERS["execution trace"], r"a PyTorch execution trace \(it has nodes, no traceEvents\)"),
        ({"one": 1, "two": {"three": 3}}, r"not a PyTorch profiler trace \(keys: 'one', 'two'\).*export_chrome_trace"),
    ],
)
def test_other_json_says_what_it_is(other: Any, words: str, tmp_path: Path) -> None:
    """The error names an execution trace, or the keys that were found."""
    path = tmp_path / "other.json"
    path.write_text(json.dumps(other))
    with pytest.raises(ReadError, match=f"^{re.escape(str(path))}: .*{words}"):
        perfkit.load(path)


def test_other_json_beside_a_trace_is_left_out(tmp_path: Path) -> None:
    """A folder may hold summaries and execution traces: they are no error, and a note names them."""
    made.printed(tmp_path / "trace.json", made.sample())
    (tmp_path / "summary.json").write_text(json.dumps(OTHERS["execution trace"]))
    run = perfkit.load(tmp_path)
    assert ["trace.json"] == [profile.path.name for profile in run.profiles]
    assert any("left out what is no profile (summary.json)" in note for note in run.notes)
