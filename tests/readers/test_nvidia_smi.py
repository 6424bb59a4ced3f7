"""nvidia-smi: what is claimed, and real logs against their truth."""

import codecs
import csv
from pathlib import Path

import pandas as pd
import pytest
from readers import smi_files as smi
from real import truth_of

import perfkit
from perfkit.analysis.readings import throttling
from perfkit.errors import ReadError
from perfkit.logs import nvidia_smi
from perfkit.readers import recognise

WRITERS = {
    "dmon": lambda path: smi.dmon(path, *smi.ticks()),
    "query": lambda path: smi.query(path, *smi.moments()),
    "table": smi.plain,
    "text": smi.text,
    "xml": lambda path: smi.xml(path, smi.gpu(), smi.gpu()),
}
every_form = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS.keys())


@every_form
def test_what_stands_around_a_log_changes_nothing(write, tmp_path: Path) -> None:
    path = write(tmp_path / "gpu")
    plain, content = smi.read(path).table("SAMPLES"), path.read_bytes()
    windows = content.replace(b"\n", b"\r\n")
    utf16 = (
        [] if write is WRITERS["xml"] else [windows.decode().encode("utf-16")]
    )  # as PowerShell redirects it
    for data in (codecs.BOM_UTF8 + content, b"\n\n" + content, windows, *utf16):
        path.write_bytes(data)
        assert "nvidia_smi" == recognise(path)
        pd.testing.assert_frame_equal(plain, smi.read(path).table("SAMPLES"))


def test_a_file_that_only_looks_like_one_is_not_claimed(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    for text in (
        *("timestamp, name, value\n2026/01/01 00:00:00.000, a, 1\n", "index, temperature\n0, 60\n"),
        *("# gpu utilisation of the cluster\n", "<html><body>nvidia-smi -q -x</body></html>"),
        *("hello\n# gpu    pwr  gtemp\n", "==============SMI LOG==============\n"),
    ):
        path.write_text(text)
        assert nvidia_smi.sniff(path) is False, text
        assert nvidia_smi.refused(path) is None, text
    assert nvidia_smi.refused(tmp_path / "gone") is None  # looking never raises


REFUSED = {
    "pmon": (
        "# gpu         pid   type     sm    mem    command \n# Idx  #  C/G  %  %  name \n",
        "nvidia-smi dmon -s",
    ),
    "compute-apps": (
        "timestamp, gpu_name, pid, process_name, used_gpu_memory [MiB]\n",
        "--query-gpu=timestamp,index",
    ),
    "compute-apps of old": ("pid, used_memory [MiB]\n7, 100 MiB\n", "--query-gpu=timestamp,index"),
    "noheader": (
        "2026/01/03 15:36:53.507, NVIDIA GeForce RTX 4090, 1 %, 2 %\n",
        "without `noheader`",
    ),
    "no driver": (
        "Failed to initialize NVML: Driver/library version mismatch\n",
        "Driver/library version mismatch",
    ),
}


@pytest.mark.parametrize(("text", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_what_no_table_can_hold_is_refused_with_what_to_record(
    text: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.txt"
    path.write_text(text)
    assert nvidia_smi.sniff(path) is False
    for load in (perfkit.load, nvidia_smi.read):
        with pytest.raises(ReadError) as caught:
            load(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert said in str(caught.value)
    # Beside a log it is left out, and a note names it.
    smi.dmon(tmp_path / "gpu.log", *smi.ticks())
    run = perfkit.load(tmp_path)
    assert ["gpu.log"] == [profile.path.name for profile in run.profiles]
    assert any("left out what is no profile (file.txt)" in note for note in run.notes)


def changed(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


DAMAGED = {
    "dmon: header only": ("dmon", None, "", "a header and no whole row"),
    "dmon: binary": (
        "dmon",
        "601 ",
        "6\0\1",
        r"line 5 holds bytes that are no text \(b'\\x00\\x01",
    ),
    "dmon: no number": ("dmon", "601 ", "6o1 ", "line 5: pwr is '6o1'"),
    "dmon: field lost": ("dmon", "   501 ", "", "line 6 has 7 fields, the header has 8"),
    "dmon: another screen": (
        "dmon",
        "pwr  gtemp  mtemp     sm",
        "pwr  gtemp     sm  mtemp",
        "change within the log",
    ),
    "query: no index": ("query", ".250, 1, ", ".250, one, ", "line 3: index is 'one'"),
    "query: header only": ("query", None, "", "a header and no whole row"),
    "query: no number": ("query", "300.50 W", "300.5O W", r"line 2: power.draw is '300.5O W'"),
    "query: another unit": (
        "query",
        "300.50 W",
        "300.50 MiB",
        "line 2: power.draw is '300.50 MiB'",
    ),
    "query: no time": (
        "query",
        "2026/01/01 00:00:01.250",
        "2026/01/01 00:61:01.250",
        "line 4: timestamp is",
    ),
    "query: field lost": (
        "query",
        ", NVIDIA A100, 91",
        ", 91",
        "line 4 has 6 fields, the header has 7",
    ),
    "query: column twice": (
        "query",
        "index, name",
        "index, index",
        "the column index is there more than once",
    ),
}


@pytest.mark.parametrize(("form", "old", "new", "said"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damage_is_an_error_with_its_line(
    form: str, old: str | None, new: str, said: str, tmp_path: Path
) -> None:
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


def test_logs_without_a_value_or_with_another_separator(tmp_path: Path) -> None:
    # A row may begin with Unknown Error, which is a spelling of nothing and no message.
    rows = [("60", "0"), ("Unknown Error", "0"), ("62", "0")]
    profile = smi.read(smi.query(tmp_path / "gpu.csv", *rows, columns=("temperature.gpu", "index")))
    assert "not available: temperature.gpu 1 of 3" in profile.notes
    path = smi.query(
        tmp_path / "gpu.csv", *[("0", "[N/A]")] * 2, columns=("index", "utilization.gpu [%]")
    )
    with pytest.raises(ReadError, match="no column has a value that is a metric of the GPU"):
        nvidia_smi.read(path)
    for form, between in [("query", ";"), ("query", "\t"), ("dmon", ";")]:
        path = tmp_path / "gpu.csv"  # a spreadsheet saved it again
        if form == "query":
            smi.query(path, *smi.moments(), between=between)
        else:
            path.write_text(f"# gpu{between}pwr{between}sm\n0{between}600{between}90\n")
        assert nvidia_smi.sniff(path)
        with pytest.raises(ReadError, match="separated by"):
            nvidia_smi.read(path)
    lacking = {
        m.table: m.record for m in smi.read(smi.dmon(tmp_path / "gpu.log", *smi.ticks())).missing
    }
    metrics = ["memory_used_bytes", "memory_total_bytes", "power_limit_w", "throttled_power_frac"]
    lacked = {"DEVICES", *(f"SAMPLES.{metric}" for metric in [*metrics, "pcie_rx_bytes_per_s"])}
    assert lacked == set(lacking)
    assert "nvidia-smi -q -x -f gpus.xml" == lacking["SAMPLES.power_limit_w"]
    assert "nvidia-smi dmon -s pucvmet -o DT -f LOG" == lacking["SAMPLES.throttled_power_frac"]
    power = smi.read(
        smi.query(tmp_path / "gpu.csv", ("0", "1 W"), columns=("index", "power.draw [W]"))
    )
    (busy,) = (m.record for m in power.missing if m.table == "SAMPLES.gpu_busy_frac")
    assert busy.startswith("nvidia-smi --query-gpu=timestamp,index,name,")


@pytest.mark.parametrize("form", ["dmon", "query"])
def test_what_nvidia_smi_says_is_a_note(form: str, tmp_path: Path) -> None:
    path = WRITERS[form](tmp_path / "gpu.log")
    content, plain = path.read_text(), smi.read(path)
    said = "Unable to determine the device handle for GPU 0000:0A:00.0: GPU is lost."
    path.write_text(content + f"{said}\n{said}\n")
    profile = smi.read(path)
    pd.testing.assert_frame_equal(plain.table("SAMPLES"), profile.table("SAMPLES"))
    assert [f"nvidia-smi said {said!r}"] == [note for note in profile.notes if "said" in note]


@pytest.mark.parametrize("form", ["dmon", "query"])
@pytest.mark.parametrize("cut", [2, 3])  # characters: 1980 may have been cut to 198 or 19
def test_of_a_row_without_line_break_the_last_value_is_left_out(
    form: str, cut: int, tmp_path: Path
) -> None:
    path = WRITERS[form](tmp_path / "gpu.log")
    content, plain = path.read_text(), smi.read(path)
    metric = {"dmon": "sm_clock_hz", "query": "temperature_c"}[form]
    path.write_text(content[: -cut - (form == "dmon")])  # dmon ends a row with a space
    profile = smi.read(path)
    assert smi.values(plain, "power_w", 1) == smi.values(profile, "power_w", 1)
    assert smi.values(plain, metric, 1)[:-1] == smi.values(profile, metric, 1)
    told = "the last line has no line break: its last value may be cut, and is left out"
    assert told in profile.notes


@pytest.mark.parametrize("form", ["dmon", "query"])
def test_a_row_that_is_cut_before_its_last_value_is_left_out(form: str, tmp_path: Path) -> None:
    path = WRITERS[form](tmp_path / "gpu.log")
    content, plain = path.read_text(), smi.read(path)
    path.write_text(content[: content.rindex({"dmon": "  ", "query": ","}[form]) - 2])
    profile = smi.read(path)
    assert smi.values(plain, "power_w", 1)[:-1] == smi.values(profile, "power_w", 1)
    assert "the last line has no line break: it may be cut, and is left out" in profile.notes


@pytest.mark.parametrize("cell", ["300.50 W", "[N/A]"])
def test_a_row_without_line_break_that_ends_with_its_unit_is_whole(
    cell: str, tmp_path: Path
) -> None:
    rows = (("0", "1 W"), ("0", cell))
    path = smi.query(tmp_path / "gpu.csv", *rows, columns=("index", "power.draw [W]"))
    plain = smi.read(path).table("SAMPLES")
    path.write_text(path.read_text().removesuffix("\n"))
    profile = smi.read(path)
    pd.testing.assert_frame_equal(plain, profile.table("SAMPLES"))
    assert not any("line break" in note for note in profile.notes)


def test_the_only_row_of_a_query_may_lack_its_line_break(tmp_path: Path) -> None:
    path = smi.query(tmp_path / "gpu.csv", ("0", "7 W"), columns=("index", "power.draw [W]"))
    path.write_text(path.read_text().removesuffix("\n"))
    assert [7.0] == smi.values(smi.read(path), "power_w", 0)


def test_a_row_of_dmon_that_ends_with_its_space_is_whole(tmp_path: Path) -> None:
    path = WRITERS["dmon"](tmp_path / "gpu.log")
    plain = smi.read(path)
    path.write_text(path.read_text().removesuffix("\n"))
    pd.testing.assert_frame_equal(plain.table("SAMPLES"), smi.read(path).table("SAMPLES"))


MIB = 2**20
MACHINES = [
    "geforce-rtx-2080-super__610.57.04",
    "geforce-rtx-4080-super__595.71.05",
    "h100-80gb-hbm3__590.48.01",
]
MACHINES += ["h100-mig__590.48.01"]
LOGS = [f"nvidia-smi__nvidia-{name}__{state}__" for name in MACHINES for state in ("idle", "load")]
DMON = ["dmon_DT_pucet_2021.txt", "dmon_nvenc_load.txt", "dmon_pucvmet_gfx_470.txt"]
DMON += [f"{log}dmon.txt" for log in LOGS]
QUERIES = ["smi_query__power_only_fluidsGL.csv", "smi_query__rtx4090_training_run.csv"]
QUERIES += ["tkjunsei__OpenAD__gpu_usage_2xA6000.csv"]
QUERIES += [f"{log}query-gpu.csv" for log in LOGS]
XML = [
    "a100-sxm4-v12",
    "gtx-1070-ti",
    "quadro-p2000-v12",
    "rtx-3060-v12",
    "rtx-3080-v13",
    "rtx-4000-sff-ada-v13",
]
TABLE = "nvidia-smi_table_loop__X-yang03_mixed_gpus.txt"
OWN_SCRIPT = (
    "xypp3__gpu_glasses__nvidia_smi_8gpu_custom.csv"  # in the form of a query, with time zones
)
PROCESSES = [
    f"{log}{kind}" for log in (*LOGS[4:6], LOGS[7]) for kind in ("pmon.txt", "compute-apps.csv")
]
COLUMNS = {
    "pwr": ("power_w", 1),
    "gtemp": ("temperature_c", 1),
    "mtemp": ("memory_temperature_c", 1),
}
COLUMNS |= {
    "sm": ("gpu_busy_frac", 0.01),
    "mem": ("memory_busy_frac", 0.01),
    "enc": ("encoder_busy_frac", 0.01),
}
COLUMNS |= {
    "dec": ("decoder_busy_frac", 0.01),
    "jpg": ("jpeg_busy_frac", 0.01),
    "ofa": ("ofa_busy_frac", 0.01),
}
COLUMNS |= {
    "mclk": ("memory_clock_hz", 1e6),
    "pclk": ("sm_clock_hz", 1e6),
    "pviol": ("power_violation_frac", 0.01),
}
COLUMNS |= {
    "tviol": ("thermal_violation_frac", 1),
    "fb": ("memory_used_bytes", MIB),
    "bar1": ("bar1_used_bytes", MIB),
}
COLUMNS |= {
    "pci": ("pcie_replay_count", 1),
    **{f"{way}pci": (f"pcie_{way}_bytes_per_s", 1e6) for way in ("rx", "tx")},
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


def figures(samples: pd.DataFrame, metric: str, scale: float) -> dict[str, float]:
    values = samples.loc[samples["metric"] == metric, "value"] / scale
    return {"n": len(values), "mean": values.mean(), "min": values.min(), "max": values.max()}


@pytest.mark.parametrize("name", DMON)
def test_dmon_equals_its_truth(name: str, profiles: Path) -> None:
    told = truth_of(profiles, "monitor", name)
    profile = smi.read(profiles / "monitor" / name)
    samples = profile.table("SAMPLES")
    assert {int(gpu): rows for gpu, rows in told["rows_per_gpu"].items()} == {
        int(gpu): part.groupby("metric", observed=True).size().max()
        for gpu, part in samples.groupby("gpu")
    }
    for gpu, columns in told["per_gpu"].items():
        own = samples[samples["gpu"] == int(gpu)]
        for column, expected in columns.items():
            metric, scale = COLUMNS[column]
            assert expected == pytest.approx(figures(own, metric, scale), rel=1e-12), column
        assert {COLUMNS[column][0] for column in columns} == set(own["metric"])
    rows = sum(told["rows_per_gpu"].values())
    noted = next(
        (n.removeprefix("not available: ").split(", ") for n in profile.notes if "available" in n),
        [],
    )
    assert {
        f"{column} {count} of {rows}" for column, count in told["not_available"].items()
    } == set(noted)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_equals_its_truth(name: str, profiles: Path) -> None:
    told = truth_of(profiles, "monitor", name)
    profile = smi.read(profiles / "monitor" / name)
    samples = profile.table("SAMPLES")
    assert set(range(len(told["per_gpu"]))) == set(samples["gpu"])
    for gpu, columns in enumerate(told["per_gpu"].values()):
        own = samples[samples["gpu"] == gpu]
        for field in columns.keys() - OTHER_READINGS:
            assert columns[field] == pytest.approx(figures(own, *FIELDS[field]), rel=1e-12), field
    assert not {FIELDS[f][0] for f in set(told["not_available"]) - OTHER_READINGS} & set(
        samples["metric"]
    )
    first, last = (pd.Timestamp(told[end]).value for end in ("first", "last"))
    assert (first, last - first) == tuple(profile.capture.iloc[0][["t0_unix_ns", "dur_ns"]])
    assert (told["names"] or []) == profile.table("DEVICES")["name"].unique().tolist()


PLACES = {
    "util": ("gpu_busy_frac", 0.01),
    "mem_used": ("memory_used_bytes", MIB),
    "temp": ("temperature_c", 1),
}
PLACES |= {"mem_total": ("memory_total_bytes", MIB), "power": ("power_w", 1)}


@pytest.mark.parametrize("name", XML)
def test_an_inventory_equals_its_truth(name: str, profiles: Path) -> None:
    told = truth_of(profiles, "monitor", f"nvidia-smi_xml__{name}.xml")
    profile = smi.read(profiles / "monitor" / f"nvidia-smi_xml__{name}.xml")
    assert (told["driver"] or "") == profile.capture["tool_version"].iloc[0]
    assert [gpu["name"] for gpu in told["gpus"]] == profile.table("DEVICES")["name"].tolist()
    for number, gpu in enumerate(told["gpus"]):
        for key, (metric, scale) in PLACES.items():
            expected = (
                []
                if gpu[key] == "N/A"
                else [pytest.approx(float(gpu[key].split()[0]) * scale, rel=1e-12)]
            )
            assert expected == smi.values(profile, metric, number), key
    # The XML of a driver of 2026 has the five counters of reasons, all of them 0 on this RTX 3080.
    counters = [smi.values(profile, metric) for metric in COUNTERS]
    assert [[0.0]] * 5 == counters or name != "rtx-3080-v13"


def test_real_limits_reasons_and_lists_of_processes(profiles: Path, tmp_path: Path) -> None:
    def found(log: str, *metrics: str) -> list[list[float]]:
        profile = smi.read(profiles / "monitor" / log)
        return [smi.values(profile, metric) for metric in metrics]

    limits = [f"temperature_{name}_c" for name in ("slowdown", "shutdown", "max", "margin")]
    assert [[89.0], [92.0], [85.0], []] == found("nvidia-smi_xml__a100-sxm4-v12.xml", *limits)
    assert [[101.0], [104.0], [], []] == found(
        "nvidia-smi_xml__quadro-p2000-v12.xml", *limits
    )  # none of operation
    assert [[], [], [], [49.0]] == found(
        "nvidia-smi_xml__rtx-4000-sff-ada-v13.xml", *limits
    )  # only margins
    # The H100 says 59 C with a margin of 26, and 53 C with 24: their sum is no constant of the GPU, so a margin is
    # never turned into a slowdown temperature.
    margins = [
        found(f"{log}query-gpu.csv", "temperature_c", limits[3]) for log in (LOGS[5], LOGS[7])
    ]
    assert [85.0, 77.0] == [sum(temperature + margin) for temperature, margin in margins]
    # The idle RTX 4080 says that it is idle; the loaded H100 that nothing lowers its clock.
    assert [[1.0]] == found(f"{LOGS[2]}query-gpu.csv", "idle_frac")
    causes = [f"throttled_{cause}_frac" for cause in ("power", "thermal", "other")]
    assert [[0.0]] * 4 == found(f"{LOGS[5]}query-gpu.csv", "idle_frac", *causes)
    # Two queries of an RTX 2080, 14.941 s apart, show no reason; the power cap has counted 5.738122 s: 38.4 %.
    first, second = ((profiles / "monitor" / f"{log}query-gpu.csv").read_text() for log in LOGS[:2])
    path = tmp_path / "both.csv"
    path.write_text(first + second.splitlines()[1] + "\n", encoding="utf-8")
    profile = smi.read(path)
    (header, *rows) = csv.reader(path.read_text().splitlines(), skipinitialspace=True)
    for metric, column in COUNTERS.items():
        printed = [
            float(row[header.index(f"{column} [us]")].removesuffix(" us")) * 1000 for row in rows
        ]
        assert printed == smi.values(profile, metric)
    assert [0.0, 0.0] == smi.values(profile, "throttled_power_frac")
    found = throttling(profile.table("SAMPLES")).iloc[0]
    assert (15_820_333_506 - 15_814_595_384) / 14_941_000 == pytest.approx(
        found["power_frac"], rel=1e-9
    )
    assert found["power_frac"] == found["throttled_frac"]
    for name in PROCESSES:
        with pytest.raises(ReadError, match=r"nvidia-smi (dmon|--query-gpu)"):
            perfkit.load(profiles / "monitor" / name)
    with pytest.raises(
        ReadError,
        match=r"line 2: timestamp is .* another program wrote this. Record: nvidia-smi --q",
    ):
        perfkit.load(profiles / "monitor" / OWN_SCRIPT)
    claimed = {path.name for path in (profiles / "monitor").iterdir() if nvidia_smi.sniff(path)}
    assert {
        *DMON,
        *QUERIES,
        OWN_SCRIPT,
        *(f"nvidia-smi_xml__{name}.xml" for name in XML),
        TABLE,
    } == claimed


COUNTERS = {
    "throttled_sw_power_ns": "clocks_event_reasons_counters.sw_power_cap",
    "throttled_power_brake_ns": "clocks_event_reasons_counters.hw_power_brake_slowdown",
    "throttled_sw_thermal_ns": "clocks_event_reasons_counters.sw_thermal_slowdown",
    "throttled_hw_thermal_ns": "clocks_event_reasons_counters.hw_thermal_slowdown",
    "throttled_sync_boost_ns": "clocks_event_reasons_counters.sync_boost",
}
