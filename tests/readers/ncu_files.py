"""Small files as Nsight Compute prints and stores them, and the launches in them.

`raw` and `details` write the pages of launches made by `launch`; a metric is ``name: (unit, text)`` as printed.
`report` writes the container of a .ncu-rep, `module` a stand-in for NVIDIA's `ncu_report` that reads one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfkit.profile import Profile
from perfkit.readers import ncu

Metrics = dict[str, tuple[str, str]]

LEAD = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"]
SHAPE = ["Block Size", "Grid Size", "Device", "CC"]
METRIC = ["Section Name", "Metric Name", "Metric Unit", "Metric Value"]
RULE = ["Rule Name", "Rule Type", "Rule Description"]
SPEEDUP = ["Estimated Speedup Type", "Estimated Speedup"]
LOG = ("==PROF== Connected to process 7 (/usr/bin/app)", "==PROF== Disconnected from process 7")

CORE = "sm__sass_thread_inst_executed_op_"
ISSUE = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SAMPLED = "smsp__pcsamp_warps_issue_stalled_{}"
DEVICE = {
    "device__attribute_display_name": ("", "NVIDIA A100-SXM4-40GB"),
    "device__attribute_multiprocessor_count": ("", "108"),
    "device__attribute_total_memory": ("", "42,505,273,344"),
    "device__attribute_memory_clock_rate": ("", "1215000"),
    "device__attribute_global_memory_bus_width": ("", "5120"),
    "device__attribute_clock_rate": ("", "1410000"),
}


@dataclass(frozen=True)
class Measured:
    """A launch as a page shows it; rules are (name, type, text, speed-up type, speed-up in percent)."""

    metrics: Metrics
    rules: tuple[tuple[str, str, str, str, str], ...] = ()
    name: str = "saxpy(int, float, float *, float *)"
    number: int = 0
    process: int = 7
    grid: str = "(4, 2, 1)"
    block: str = "(128, 1, 1)"
    device: str = "0"
    cc: str = "8.0"

    def cells(self) -> dict[str, str]:
        told = [
            self.number,
            self.process,
            "app",
            "127.0.0.1",
            self.name,
            1,
            7,
            self.block,
            self.grid,
            self.device,
        ]
        return dict(zip([*LEAD, *SHAPE], [*map(str, told), self.cc], strict=True))


def full(number: int = 0) -> Measured:
    metrics: Metrics = {
        **DEVICE,
        "gpu__time_duration.sum": ("us", "10.5"),
        **{
            f"{CORE}f{op}_pred_on.sum": ("inst", text)
            for op, text in (("add", "100"), ("mul", "20"), ("fma", "3"))
        },
        "dram__bytes_read.sum": ("Kbyte", "1.5"),
        "dram__bytes_write.sum": ("Kbyte", "0.5"),
        ISSUE.format("long_scoreboard"): ("inst", "5.25"),
        ISSUE.format("wait"): ("inst", "2"),
    }
    rule = ("SOLBottleneck", "OPT", "Look at the memory.", "global", "18.52")
    return Measured(metrics, (rule,), number=number)


def raw(path: Path, *launches: Measured, **layout: Any) -> Path:
    """Write the wide page: header, units, a row per launch."""
    names = list(dict.fromkeys(name for launch in launches for name in launch.metrics))
    units = {name: unit for launch in launches for name, (unit, _) in launch.metrics.items()}
    lead = layout.pop("lead", [*LEAD, *SHAPE])
    rows = [
        [
            *(launch.cells()[c] for c in lead),
            *(launch.metrics.get(name, ("", ""))[1] for name in names),
        ]
        for launch in launches
    ]
    return _write(
        path,
        [[*lead, *names], [*("" for _ in lead), *(units[name] for name in names)], *rows],
        **layout,
    )


def details(path: Path, *launches: Measured, **layout: Any) -> Path:
    """Write the long page: a row per metric, then a row per rule."""
    lead = layout.pop("lead", [*LEAD, *SHAPE])
    has_rules = any(launch.rules for launch in launches)
    rows: list[list[str | None]] = [[*lead, *METRIC, *(([*RULE, *SPEEDUP]) if has_rules else ())]]
    for launch in launches:
        cells = [launch.cells()[c] for c in lead]
        end = [None] if has_rules else []
        rows += [[*cells, "Section", name, *shown, *end] for name, shown in launch.metrics.items()]
        # Beside rules, the rows of metrics stop early with an empty cell.
        rows += [[*cells, "Section", "", "", "", *rule] for rule in launch.rules]
    return _write(path, rows, **layout)


def _write(
    path: Path,
    rows: Sequence[Sequence[str | None]],
    *,
    log: Sequence[str] = LOG,
    between: Sequence[str] = (),
    bom: bool = False,
    newline: str = "\n",
    end: bool = True,
    encoding: str = "utf-8",
) -> Path:
    """Write log lines and rows; without `end` no line break follows the last."""
    quoted = (
        ["" if cell is None else f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row]
        for row in rows
    )
    lines = [",".join(cells) for cells in quoted]
    printed = newline.join([*log, *lines[:-1], *between, lines[-1]]) + (newline if end else "")
    path.write_bytes((("\ufeff" if bom else "") + printed).encode(encoding))
    return path


def read(path: Path) -> Profile:
    assert ncu.sniff(path)
    return ncu.read(path)


def one(folder: Path, metrics: Metrics, **changes: Any) -> dict[str, Any]:
    """The row of LAUNCHES of one launch with these metrics, read from a raw page."""
    launch = replace(Measured({"gpu__time_duration.sum": ("ns", "1000"), **metrics}), **changes)
    return read(raw(folder / "one.csv", launch)).table("LAUNCHES").iloc[0].to_dict()


def report(path: Path, payload: bytes = b"results", launches: int = 0) -> Path:
    header = bytes([2 << 3, launches, 5 << 3, len(payload)] if launches else [5 << 3, len(payload)])
    version = b"\n\x1e2024.1.0.0 (build 1) (public)"
    head = len(version).to_bytes(4, "little") + version
    path.write_bytes(b"NVR\0" + head + len(header).to_bytes(4, "little") + header + payload)
    return path


@dataclass
class Action:
    """A launch as NVIDIA's module shows it: metrics are ``name: (unit, value)``."""

    metrics: dict[Any, tuple[Any, Any]]
    rules: list[dict[str, Any]] = field(default_factory=list)
    demangled: str | None = "saxpy(int)"


MODULE = """
from math import inf, nan
from types import SimpleNamespace


class Action:
    NameBase_DEMANGLED = 1

    def __init__(self, metrics, rules, demangled):
        self.metrics, self.rules, self.demangled = metrics, rules, demangled

    def name(self, base):
        return self.demangled

    def metric_names(self):
        return tuple(self.metrics)

    def metric_by_name(self, name):
        name.encode()  # as NVIDIA's, which takes no other text
        unit, value = self.metrics[name]
        return None if unit is None else SimpleNamespace(value=lambda: value, unit=lambda: unit)

    def rule_results_as_dicts(self):
        return self.rules


def load_report(path):
    ranges = {ranges}
    found = [SimpleNamespace(num_actions=lambda r=r: len(r), action_by_idx=lambda i, r=r: r[i]) for r in ranges]
    return SimpleNamespace(num_ranges=lambda: len(found), range_by_idx=lambda i: found[i])
"""


def module(folder: Path, *ranges: Sequence[Action]) -> Path:
    """Write a stand-in for `ncu_report` that finds these ranges of launches in any report; return its folder."""
    return code(folder, MODULE.replace("{ranges}", repr([list(actions) for actions in ranges])))


def code(folder: Path, source: str) -> Path:
    """Write a stand-in for `ncu_report` with this source; return its folder, which belongs on the path."""
    (folder / "module").mkdir()
    (folder / "module" / "ncu_report.py").write_text(source)
    return folder / "module"
