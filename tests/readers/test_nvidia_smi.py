"""nvidia-smi: what is claimed, and real logs against their truth."""

from __future__ import annotations

import codecs
import csv
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import smi_files as smi

import perfkit
from perfkit.analysis.monitoring.readings import throttling
from perfkit.errors import ReadError
from perfkit.readers import nvidia_smi, recognise

WRITERS = {
    "dmon": lambda path: smi.dmon(path, *smi.ticks()),
    "query": lambda path: smi.query(path, *smi.moments()),
    "text": smi.text,
    "xml": lambda path: smi.xml(path, smi.gpu(), smi.gpu()),
}
every_form = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())


@every_form
@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, b"\n\n"], ids=["byte order mark", "blank lines"])
def test_what_stands_before_the_header_changes_nothing(write, mark: bytes, tmp_path: Path) -> None:
    """A byte order mark or blank lines at the start leave the tables as they are."""
    path = write(tmp_path / "gpu")
    plain = smi.read(path).table("SAMPLES")
    path.write_bytes(mark + path.read_bytes())
    pd.testing.assert_frame_equal(plain, smi.read(path).table("SAMPLES"))


@pytest.mark.parametrize("form", ["dmon", "query", "text"])
def test_a_log_of_windows_reads_the_same(form: str, tmp_path: Path) -> None:
    """Lines that end in CR LF, and UTF-16 as PowerShell redirects it, hold the same samples."""
    path = WRITERS[form](tmp_path / "gpu")
    plain = smi.read(path).table("SAMPLES")
    windows = path.read_bytes().replace(b"\n", b"\r\n")
    for data in (windows, windows.decode().encode("utf-16")):
        path.write_bytes(data)
        assert "nvidia_smi" == recognise(path)
        pd.testing.assert_frame_equal(plain, smi.read(path).table("SAMPLES"))


@pytest.mark.parametrize(
    "text",
    [
        "timestamp, name, value\n2026/01/01 00:00:00.000, a, 1\n",
        "index, temperature\n0, 60\n",
        "gpu,price\nA100,10000\n",
        "# gpu utilisation of the cluster\n",
        "<html><body>nvidia-smi -q -x</body></html>",
        "hello\n# gpu    pwr  gtemp\n",
        "==============SMI LOG==============\n",
    ],
)
def test_a_file_that_only_looks_like_one_is_not_claimed(text: str, tmp_path: Path) -> None:
    """The words of the header decide, and they stand in the first line."""
    path = tmp_path / "file.csv"
    path.write_text(text)
    assert nvidia_smi.sniff(path) is False
    assert nvidia_smi.refused(path) is None


REFUSED = {
    "pmon": ("# gpu         pid   type     sm    mem    command \n# Idx  #  C/G  %  %  name \n", "nvidia-smi dmon -s"),
    "compute-apps": ("timestamp, gpu_name, pid, process_name, used_gpu_memory [MiB]\n", "--query-gpu=timestamp,index"),
    "compute-apps of old": ("pid, used_memory [MiB]\n7, 100 MiB\n", "--query-gpu=timestamp,index"),
    "noheader": ("2026/01/03 15:36:53.507, NVIDIA GeForce RTX 4090, 1 %, 2 %\n", "without `noheader`"),
    "summary": ("+-----+\n| NVIDIA-SMI 550.54.14   Driver Version: 550.54.14 |\n", "nvidia-smi -q -x"),
    "no driver": ("Failed to initialize NVML: Driver/library version mismatch\n", "Driver/library version mismatch"),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_table_can_hold_is_refused_with_what_to_record(text: str, said: str, tmp_path: Path) -> None:
    """Lists of processes, rows without names and pictures for people are not claimed; the error says what to record."""
    path = tmp_path / "file.txt"
    path.write_text(text)
    assert nvidia_smi.sniff(path) is False
    for load in (perfkit.load, nvidia_smi.read):
        with pytest.raises(ReadError) as caught:
            load(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert said in str(caught.value)


def test_a_list_of_processes_beside_a_log_is_left_out(tmp_path: Path) -> None:
    """A folder with pmon's log beside dmon's is a run of dmon's, and a note names the other."""
    smi.dmon(tmp_path / "gpu.log", *smi.ticks())
    (tmp_path / "pmon.log").write_text(REFUSED["pmon"][0])
    run = perfkit.load(tmp_path)
    assert ["gpu.log"] == [profile.path.name for profile in run.profiles]
    assert any("left out what is no profile (pmon.log)" in note for note in run.notes)


def changed(path: Path, old: str, new: str) -> Path:
    """Replace the first `old` in a file."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


DAMAGED = {
    "dmon: header only": ("dmon", None, "", "a header and no whole row"),
    "dmon: binary": ("dmon", "601 ", "6\0\1", r"line 5 holds bytes that are no text \(b'\\x00\\x01"),
    "dmon: no number": ("dmon", "601 ", "6o1 ", "line 5: pwr is '6o1'"),
    "dmon: no GPU": ("dmon", "     1    500", "     x    500", "line 4: gpu is 'x'"),
    "dmon: field lost": ("dmon", "   501 ", "", "line 6 has 7 fields, the header has 8"),
    "dmon: another screen": ("dmon", "pwr  gtemp  mtemp     sm", "pwr  gtemp     sm  mtemp", "change within the log"),
    "query: header only": ("query", None, "", "a header and no whole row"),
    "query: binary": ("query", "300.50", "\x7f\0.50", "line 2 holds bytes that are no text"),
    "query: no number": ("query", "300.50 W", "300.5O W", r"line 2: power.draw is '300.5O W'"),
    "query: another unit": ("query", "300.50 W", "300.50 MiB", "line 2: power.draw is '300.50 MiB'"),
    "query: no value": ("query", "300.50 W", "", "line 2: power.draw is ''"),
    "query: no time": ("query", "2026/01/01 00:00:01.250", "2026/01/01 00:61:01.250", "line 4: timestamp is"),
    "query: no index": ("query", ".250, 1, ", ".250, one, ", "line 3: index is 'one'"),
    "query: field lost": ("query", ", NVIDIA A100, 91", ", 91", "line 4 has 6 fields, the header has 7"),
    "query: column twice": ("query", "index, name", "index, index", "the column index is there more than once"),
}


@pytest.mark.parametrize(("form", "old", "new", "said"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_an_error_with_its_line(form: str, old: str | None, new: str, said: str, tmp_path: Path) -> None:
    """A damaged row is no number: the error names the file, the line, the column and what stands there."""
    path = WRITERS[form](tmp_path / "gpu.log")
    if old is None:
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[: 2 if form == "dmon" else 1]))
    else:
        changed(path, old, new)
    assert nvidia_smi.sniff(path)
    with pytest.raises(ReadError, match=said) as caught:
        nvidia_smi.read(path).table("SAMPLES")
    assert str(path) in str(caught.value)


def test_the_line_of_damage_counts_headers_and_blank_lines(tmp_path: Path) -> None:
    """The number is that of an editor: two header lines and a blank one stand before row 5."""
    path = smi.dmon(tmp_path / "gpu.log", *smi.ticks())
    lines = path.read_text().split("\n")
    lines[3] += "\n"
    path.write_text("\n".join(lines).replace("602", "6 2"))
    number = next(i for i, line in enumerate(path.read_text().split("\n"), 1) if "6 2" in line)
    with pytest.raises(ReadError, match=f"line {number} has 9 fields"):
        nvidia_smi.read(path)


def test_a_column_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    """Which of the two counts is not guessed."""
    path = smi.dmon(tmp_path / "gpu.log", ("0", "600", "500"), columns=("gpu", "pwr", "pwr"))
    with pytest.raises(ReadError, match=r"a column is there twice \(gpu pwr pwr\)"):
        nvidia_smi.read(path)


def test_a_value_that_is_no_message_is_a_value(tmp_path: Path) -> None:
    """A row may begin with Unknown Error, which is a spelling of nothing."""
    rows = [("60", "0"), ("Unknown Error", "0"), ("62", "0")]
    profile = smi.read(smi.query(tmp_path / "gpu.csv", *rows, columns=("temperature.gpu", "index")))
    assert "not available: temperature.gpu 1 of 3" in profile.notes


def test_a_file_that_is_gone_is_not_refused(tmp_path: Path) -> None:
    """What cannot be opened is nobody's: looking never raises."""
    assert nvidia_smi.refused(tmp_path / "gone") is None


@pytest.mark.parametrize(("form", "between"), [("query", ";"), ("query", "\t"), ("dmon", ";")])
def test_another_separator_is_an_error_that_names_it(form: str, between: str, tmp_path: Path) -> None:
    """A log that a spreadsheet saved again is claimed, and refused with the separator."""
    path = tmp_path / "gpu.csv"
    if form == "query":
        smi.query(path, *smi.moments(), between=between)
    else:
        path.write_text(f"# gpu{between}pwr{between}sm\n0{between}600{between}90\n")
    assert nvidia_smi.sniff(path)
    with pytest.raises(ReadError, match="separated by"):
        nvidia_smi.read(path)


@pytest.mark.parametrize("form", ["dmon", "query"])
def test_the_last_line_without_its_end_is_left_out_with_a_note(form: str, tmp_path: Path) -> None:
    """1980 may have been cut to 19 or 1: a last line without end is no row, whatever stands in it."""
    path = WRITERS[form](tmp_path / "gpu.log")
    whole = smi.read(path)
    for cut in (1, 2, 3):
        path.write_bytes(path.read_bytes()[:-1])
        profile = smi.read(path)
        assert smi.values(whole, "power_w", 1)[:-1] == smi.values(profile, "power_w", 1), cut
        assert smi.values(whole, "power_w", 0) == smi.values(profile, "power_w", 0)
        assert "the last line is cut and left out" in profile.notes


@pytest.mark.parametrize("form", ["dmon", "query"])
def test_what_nvidia_smi_says_between_the_rows_is_a_note(form: str, tmp_path: Path) -> None:
    """A GPU that fell off the bus is no row, and is told."""
    path = WRITERS[form](tmp_path / "gpu.log")
    plain = smi.read(path).table("SAMPLES")
    said = "Unable to determine the device handle for GPU 0000:0A:00.0: GPU is lost."
    path.write_text(path.read_text() + f"{said}\n{said}\n")
    profile = smi.read(path)
    pd.testing.assert_frame_equal(plain, profile.table("SAMPLES"))
    assert [f"nvidia-smi said {said!r}"] == [note for note in profile.notes if "said" in note]


def test_a_log_without_any_value_says_what_to_record(tmp_path: Path) -> None:
    """Columns that are there and never have a value are no samples."""
    path = smi.query(tmp_path / "gpu.csv", ("0", "[N/A]"), ("0", "[N/A]"), columns=("index", "utilization.gpu [%]"))
    with pytest.raises(ReadError, match="no column has a value that is a metric of the GPU"):
        nvidia_smi.read(path)


def test_what_a_log_cannot_answer_is_missing_with_what_records_it(tmp_path: Path) -> None:
    """dmon's default columns lack memory, limits, throttling, PCIe and names; a full query lacks PCIe alone."""
    lacking = {m.table: m.record for m in smi.read(smi.dmon(tmp_path / "gpu.log", *smi.ticks())).missing}
    assert {
        "SAMPLES.memory_used_bytes",
        "SAMPLES.memory_total_bytes",
        "SAMPLES.power_limit_w",
        "SAMPLES.throttled_power_frac",
        "SAMPLES.pcie_rx_bytes_per_s",
        "DEVICES",
    } == set(lacking)
    assert "nvidia-smi -q -x -f gpus.xml" == lacking["SAMPLES.power_limit_w"]
    assert "nvidia-smi dmon -s pucvmet -o DT -f LOG" == lacking["SAMPLES.throttled_power_frac"]
    power = smi.read(smi.query(tmp_path / "gpu.csv", ("0", "1 W"), columns=("index", "power.draw [W]")))
    (busy,) = (m.record for m in power.missing if m.table == "SAMPLES.gpu_busy_frac")
    assert busy.startswith("nvidia-smi --query-gpu=timestamp,index,name,")


MIB = 2**20
DMON = [
    "dmon_DT_pucet_2021.txt",
    "dmon_nvenc_load.txt",
    "dmon_pucvmet_gfx_470.txt",
    *(f"nvidia-smi__nvidia-geforce-rtx-2080-super__610.57.04__{state}__dmon.txt" for state in ("idle", "load")),
    *(f"nvidia-smi__nvidia-geforce-rtx-4080-super__595.71.05__{state}__dmon.txt" for state in ("idle", "load")),
    *(f"nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{state}__dmon.txt" for state in ("idle", "load")),
    *(f"nvidia-smi__nvidia-h100-mig__590.48.01__{state}__dmon.txt" for state in ("idle", "load")),
]
QUERIES = [
    "smi_query__power_only_fluidsGL.csv",
    "smi_query__rtx4090_training_run.csv",
    *(name.replace("dmon.txt", "query-gpu.csv") for name in DMON[3:]),
]
XML = ["a100-sxm4-v12", "gtx-1070-ti", "quadro-p2000-v12", "rtx-3060-v12", "rtx-3080-v13", "rtx-4000-sff-ada-v13"]
OWN_SCRIPT = "xypp3__gpu_glasses__nvidia_smi_8gpu_custom.csv"  # in the form of a query, with time zones
PROCESSES = [
    *(f"nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{state}__pmon.txt" for state in ("idle", "load")),
    *(f"nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__{state}__compute-apps.csv" for state in ("idle", "load")),
    "nvidia-smi__nvidia-h100-mig__590.48.01__load__pmon.txt",
    "nvidia-smi__nvidia-h100-mig__590.48.01__load__compute-apps.csv",
]
# Column as printed: the metric, and what one printed unit is.
COLUMNS = {
    "pwr": ("power_w", 1),
    "gtemp": ("temperature_c", 1),
    "mtemp": ("memory_temperature_c", 1),
    "sm": ("gpu_busy_frac", 0.01),
    "mem": ("memory_busy_frac", 0.01),
    "enc": ("encoder_busy_frac", 0.01),
    "dec": ("decoder_busy_frac", 0.01),
    "jpg": ("jpeg_busy_frac", 0.01),
    "ofa": ("ofa_busy_frac", 0.01),
    "mclk": ("memory_clock_hz", 1e6),
    "pclk": ("sm_clock_hz", 1e6),
    "pviol": ("power_violation_frac", 0.01),
    "tviol": ("thermal_violation_frac", 1),
    "fb": ("memory_used_bytes", MIB),
    "bar1": ("bar1_used_bytes", MIB),
    "pci": ("pcie_replay_count", 1),
    "rxpci": ("pcie_rx_bytes_per_s", 1e6),
    "txpci": ("pcie_tx_bytes_per_s", 1e6),
}
FIELDS = {
    "memory.total": ("memory_total_bytes", MIB),
    "memory.used": ("memory_used_bytes", MIB),
    "utilization.gpu": ("gpu_busy_frac", 0.01),
    "utilization.memory": ("memory_busy_frac", 0.01),
    "temperature.gpu": ("temperature_c", 1),
    "temperature.memory": ("memory_temperature_c", 1),
    "power.draw": ("power_w", 1),
    "clocks.current.sm": ("sm_clock_hz", 1e6),
}
OTHER_READINGS = {"power.draw.average", "power.draw.instant"}


def truth(profiles: Path, name: str) -> Any:
    """What was counted in a file without perfkit."""
    return json.loads((profiles / "golden" / "monitor" / f"{name}.truth.json").read_text())


def figures(samples: pd.DataFrame, metric: str, scale: float) -> dict[str, float]:
    """Number, mean, lowest and highest of a metric in the unit that was printed."""
    values = samples.loc[samples["metric"] == metric, "value"] / scale
    return {"n": len(values), "mean": values.mean(), "min": values.min(), "max": values.max()}


@pytest.mark.parametrize("name", DMON)
def test_dmon_equals_its_truth(name: str, profiles: Path) -> None:
    """Rows of each GPU, and number, mean, lowest and highest of every column; dashes are counted the same."""
    told = truth(profiles, name)
    profile = smi.read(profiles / "monitor" / name)
    samples = profile.table("SAMPLES")
    assert {int(gpu): rows for gpu, rows in told["rows_per_gpu"].items()} == {
        int(gpu): part.groupby("metric", observed=True).size().max() for gpu, part in samples.groupby("gpu")
    }
    for gpu, columns in told["per_gpu"].items():
        own = samples[samples["gpu"] == int(gpu)]
        for column, expected in columns.items():
            metric, scale = COLUMNS[column]
            assert expected == pytest.approx(figures(own, metric, scale), rel=1e-12), column
        assert {COLUMNS[column][0] for column in columns} == set(own["metric"])
    rows = sum(told["rows_per_gpu"].values())
    noted = next((n.removeprefix("not available: ").split(", ") for n in profile.notes if "available" in n), [])
    assert {f"{column} {count} of {rows}" for column, count in told["not_available"].items()} == set(noted)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_equals_its_truth(name: str, profiles: Path) -> None:
    """Rows, and number, mean, lowest and highest of every column; the first row's time is the start."""
    told = truth(profiles, name)
    profile = smi.read(profiles / "monitor" / name)
    samples = profile.table("SAMPLES")
    assert {0} == set(samples["gpu"])
    (columns,) = told["per_gpu"].values()
    for field, expected in columns.items():
        if field not in OTHER_READINGS:
            assert expected == pytest.approx(figures(samples, *FIELDS[field]), rel=1e-12), field
    assert not {FIELDS[f][0] for f in set(told["not_available"]) - OTHER_READINGS} & set(samples["metric"])
    first, last = (pd.Timestamp(told[end]).value for end in ("first", "last"))
    assert (first, last - first) == tuple(profile.capture.iloc[0][["t0_unix_ns", "dur_ns"]])
    assert (told["names"] or []) == profile.table("DEVICES")["name"].tolist()


@pytest.mark.parametrize("name", XML)
def test_an_inventory_equals_its_truth(name: str, profiles: Path) -> None:
    """Driver, names, utilisation, memory, temperature and power of each GPU; N/A is no sample."""
    told = truth(profiles, f"nvidia-smi_xml__{name}.xml")
    profile = smi.read(profiles / "monitor" / f"nvidia-smi_xml__{name}.xml")
    assert (told["driver"] or "") == profile.capture["tool_version"].iloc[0]
    assert [gpu["name"] for gpu in told["gpus"]] == profile.table("DEVICES")["name"].tolist()
    places = {
        "util": ("gpu_busy_frac", 0.01),
        "mem_used": ("memory_used_bytes", MIB),
        "mem_total": ("memory_total_bytes", MIB),
        "temp": ("temperature_c", 1),
        "power": ("power_w", 1),
    }
    for number, gpu in enumerate(told["gpus"]):
        for key, (metric, scale) in places.items():
            expected = [] if gpu[key] == "N/A" else [pytest.approx(float(gpu[key].split()[0]) * scale, rel=1e-12)]
            assert expected == smi.values(profile, metric, number), key


def test_limits_of_real_gpus(profiles: Path) -> None:
    """A100: slowdown 89, shutdown 92, 85 in operation; the Quadro has no limit of operation, the Ada only margins."""
    names = ("temperature_slowdown_c", "temperature_shutdown_c", "temperature_max_c", "temperature_margin_c")
    found = {}
    for name in ("a100-sxm4-v12", "quadro-p2000-v12", "rtx-4000-sff-ada-v13"):
        profile = smi.read(profiles / "monitor" / f"nvidia-smi_xml__{name}.xml")
        found[name] = [smi.values(profile, metric) for metric in names]
    assert [[89.0], [92.0], [85.0], []] == found["a100-sxm4-v12"]
    assert [[101.0], [104.0], [], []] == found["quadro-p2000-v12"]
    assert [[], [], [], [49.0]] == found["rtx-4000-sff-ada-v13"]


def test_margin_and_temperature_do_not_make_a_limit(profiles: Path) -> None:
    """The H100 says 59 C with a margin of 26, and 53 C with 24: their sum is no constant of the GPU.

    So a margin is never turned into a slowdown temperature.
    """
    folder = profiles / "monitor"
    sums = [
        smi.values(profile, "temperature_c")[0] + smi.values(profile, "temperature_margin_c")[0]
        for kind in ("80gb-hbm3", "mig")
        for profile in [smi.read(folder / f"nvidia-smi__nvidia-h100-{kind}__590.48.01__load__query-gpu.csv")]
    ]
    assert [85.0, 77.0] == sums


def test_reasons_of_a_real_idle_gpu(profiles: Path) -> None:
    """The idle RTX 4080 says that it is idle; the loaded H100 that nothing lowers its clock."""
    folder = profiles / "monitor"
    idle = smi.read(folder / "nvidia-smi__nvidia-geforce-rtx-4080-super__595.71.05__idle__query-gpu.csv")
    busy = smi.read(folder / "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__query-gpu.csv")
    assert ([1.0], [0.0]) == (smi.values(idle, "idle_frac"), smi.values(busy, "idle_frac"))
    for cause in ("power", "thermal", "other"):
        assert [0.0] == smi.values(busy, f"throttled_{cause}_frac")


COUNTERS = {
    "throttled_sw_power_ns": "clocks_event_reasons_counters.sw_power_cap",
    "throttled_power_brake_ns": "clocks_event_reasons_counters.hw_power_brake_slowdown",
    "throttled_sw_thermal_ns": "clocks_event_reasons_counters.sw_thermal_slowdown",
    "throttled_hw_thermal_ns": "clocks_event_reasons_counters.hw_thermal_slowdown",
    "throttled_sync_boost_ns": "clocks_event_reasons_counters.sync_boost",
}


def test_counters_of_reasons_know_what_their_readings_miss(profiles: Path, tmp_path: Path) -> None:
    """Two queries of an RTX 2080, 14.941 s apart, show no reason; the power cap has counted 5.738122 s: 38.4 %."""
    first, second = (
        (
            profiles / "monitor" / f"nvidia-smi__nvidia-geforce-rtx-2080-super__610.57.04__{when}__query-gpu.csv"
        ).read_text()
        for when in ("idle", "load")
    )
    path = tmp_path / "both.csv"
    path.write_text(first + second.splitlines()[1] + "\n", encoding="utf-8")
    profile = smi.read(path)
    (header, *rows) = csv.reader(path.read_text().splitlines(), skipinitialspace=True)
    for metric, column in COUNTERS.items():
        printed = [float(row[header.index(f"{column} [us]")].removesuffix(" us")) * 1000 for row in rows]
        assert printed == smi.values(profile, metric)
    assert [0.0, 0.0] == smi.values(profile, "throttled_power_frac")
    found = throttling(profile.table("SAMPLES")).iloc[0]
    assert (15_820_333_506 - 15_814_595_384) / 14_941_000 == pytest.approx(found["power_frac"], rel=1e-9)
    assert found["power_frac"] == found["throttled_frac"]


def test_counters_in_a_real_inventory(profiles: Path) -> None:
    """The XML of a driver of 2026 has the five counters, all of them 0 on this RTX 3080."""
    profile = smi.read(profiles / "monitor" / "nvidia-smi_xml__rtx-3080-v13.xml")
    assert [[0.0]] * 5 == [smi.values(profile, metric) for metric in COUNTERS]


@pytest.mark.parametrize("name", PROCESSES)
def test_real_lists_of_processes_are_refused(name: str, profiles: Path) -> None:
    """pmon's columns are of processes, whose sum is not the utilisation of the GPU: the error names dmon or a query."""
    path = profiles / "monitor" / name
    with pytest.raises(ReadError, match=r"nvidia-smi (dmon|--query-gpu)"):
        perfkit.load(path)


def test_no_other_log_is_claimed(profiles: Path) -> None:
    """Of all monitoring logs only those of nvidia-smi are claimed."""
    claimed = {path.name for path in (profiles / "monitor").iterdir() if nvidia_smi.sniff(path)}
    assert {*DMON, *QUERIES, OWN_SCRIPT, *(f"nvidia-smi_xml__{name}.xml" for name in XML)} == claimed
