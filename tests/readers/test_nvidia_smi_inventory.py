"""``nvidia-smi -q`` as text and XML: limits, devices, reasons, and documents that are hostile, cut or repeated."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from readers import smi_files as smi

from perfkit.errors import ReadError
from perfkit.readers import nvidia_smi

SECOND = 1_000_000_000
SAID = {
    "temperature_shutdown_c": 92.0,
    "temperature_slowdown_c": 89.0,
    "temperature_max_c": 85.0,
    "power_limit_w": 500.0,
    "gpu_busy_frac": 0.65,
    "memory_used_bytes": 50 * 2.0**20,
    "memory_total_bytes": 81920 * 2.0**20,
    "temperature_c": 27.0,
    "power_w": 67.03,
}


def said(path: Path, gpu: int = 0) -> dict[str, float]:
    """Every metric of a GPU, read once."""
    samples = smi.read(path).table("SAMPLES")
    samples = samples[samples["gpu"] == gpu]
    assert samples["metric"].is_unique
    return dict(zip(samples["metric"], samples["value"], strict=True))


@pytest.mark.parametrize("form", ["text", "xml"])
def test_limits_and_values_of_each_gpu(form: str, tmp_path: Path) -> None:
    """Both forms: shutdown 92, slowdown 89, highest operation 85, limit 500 W, and the values of one moment."""
    write = {"text": smi.text, "xml": lambda path: smi.xml(path, smi.gpu(), smi.gpu())}[form]
    profile = smi.read(write(tmp_path / "gpu"))
    for gpu in (0, 1):
        found = said(profile.path, gpu)
        assert SAID == {name: found[name] for name in SAID}
    devices = profile.table("DEVICES")
    assert [("NVIDIA A100-SXM4-80GB", 81920 * 2**20)] * 2 == list(
        zip(devices["name"], devices["memory_bytes"], strict=True)
    )
    capture = profile.capture.iloc[0]
    assert ("nvidia-smi -q", "535.54.03", 1_767_225_602 * SECOND, 0) == tuple(
        capture[["tool", "tool_version", "t0_unix_ns", "dur_ns"]]
    )


def test_reasons_below_another_are_read(tmp_path: Path) -> None:
    """The text indents the hardware's causes: power cap and hardware thermal slowdown are active, nothing else."""
    found = said(smi.text(tmp_path / "gpu.txt"))
    assert (1.0, 1.0, 0.0, 0.0) == tuple(
        found[f"{name}_frac"] for name in ("throttled_power", "throttled_thermal", "throttled_other", "idle")
    )
    assert 1.41e9 == found["sm_clock_hz"] == found["sm_max_clock_hz"]


def test_counters_of_reasons_in_both_forms(tmp_path: Path) -> None:
    """Text and XML have their own names for five counters in us, beside reasons of nearly the same name."""
    section = "    Clocks Event Reasons Counters\n"
    lines = ["SW Power Capping", "Sync Boost", "SW Thermal Slowdown", "HW Thermal Slowdown", "HW Power Braking"]
    section += "".join(f"        {line:<34}: {10**i} us\n" for i, line in enumerate(lines))
    text = said(smi.text(tmp_path / "gpu.txt", said=smi.SECTIONS.replace("    FB Memory", section + "    FB Memory")))
    tags = ["sw_power_cap", "sync_boost", "sw_therm_slowdown", "hw_therm_slowdown", "hw_power_brake"]
    path = "clocks_event_reasons_counters/clocks_event_reasons_counters_{}"
    counters = {path.format(tag): f"{10**i} us" for i, tag in enumerate(tags)}
    names = ["sw_power", "sync_boost", "sw_thermal", "hw_thermal", "power_brake"]
    expected = {f"throttled_{name}_ns": 1000.0 * 10**i for i, name in enumerate(names)}
    for found in (text, said(smi.xml(tmp_path / "gpu.xml", smi.gpu(counters)))):
        assert expected == {name: value for name, value in found.items() if name.endswith("_ns")}
        assert 1.0 == found["throttled_power_frac"]


def test_reasons_under_their_old_name_are_read(tmp_path: Path) -> None:
    """Before driver 535 the elements say throttle instead of event."""
    old = {k.replace("event_reason", "throttle_reason"): v for k, v in smi.gpu().items()}
    plain, renamed = said(smi.xml(tmp_path / "a.xml", smi.gpu())), said(smi.xml(tmp_path / "b.xml", old))
    assert plain == renamed
    assert 1.0 == plain["throttled_power_frac"]


def test_power_of_every_age_is_read(tmp_path: Path) -> None:
    """power_readings up to driver 530 with an enforced limit, later gpu_power_readings with an instantaneous draw."""
    plain = {k: v for k, v in smi.gpu().items() if not k.startswith("gpu_power")}
    old = {"power_readings/power_draw": "4.61 W", "power_readings/power_limit": "80.00 W"}
    old["power_readings/enforced_power_limit"] = "75.00 W"
    new = {"gpu_power_readings/average_power_draw": "139.62 W", "gpu_power_readings/instant_power_draw": "142.33 W"}
    for number, (power, expected) in enumerate([(old, (4.61, 75.0)), (new, (142.33, None))]):
        found = said(smi.xml(tmp_path / f"{number}.xml", {**plain, **power}))
        assert expected == (found["power_w"], found.get("power_limit_w"))


def test_margins_are_no_temperatures(tmp_path: Path) -> None:
    """Where limits are margins (T.Limit), the margin is a sample, the limits a note: 27 + 55 + 2 is no threshold."""
    margins = {
        "temperature/gpu_temp_tlimit": "55 C",
        "temperature/gpu_temp_slow_tlimit_threshold": "-2 C",
        "temperature/gpu_temp_max_threshold": "N/A",
        "temperature/gpu_temp_slow_threshold": "N/A",
        "temperature/gpu_temp_max_gpu_threshold": "N/A",
    }
    as_xml = smi.xml(tmp_path / "gpu.xml", smi.gpu(margins))
    text = smi.SECTIONS.replace("T.Limit Temp                  : N/A", "T.Limit Temp                  : 55 C")
    for name, value in (("Shutdown", "-8"), ("Slowdown", "-2"), ("Max Operating", "0")):
        text = text.replace(f"GPU {name} Temp ", f"GPU {name} T.Limit Temp {value} ", 1)
    for limit, value in (("92", "-8"), ("89", "-2"), ("85", "0")):
        text = text.replace(f"{value}            ", "          ", 1).replace(f": {limit} C", f": {value} C")
    as_text = smi.text(tmp_path / "gpu.txt", 1, said=text)
    for path in (as_xml, as_text):
        found = said(path)
        assert 55.0 == found["temperature_margin_c"]
        assert not set(found) & {"temperature_slowdown_c", "temperature_shutdown_c", "temperature_max_c"}
        assert any("the slowdown of GPU 0 at -2 C" in note for note in smi.read(path).notes)


def test_a_section_of_the_text_is_enough(tmp_path: Path) -> None:
    """`-q -d TEMPERATURE` has no name and no memory: the limits are samples, devices are missing."""
    text = "    Temperature\n        GPU Current Temp : 27 C\n        GPU Slowdown Temp Specification : 89 C\n"
    profile = smi.read(smi.text(tmp_path / "gpu.txt", 1, said=text))
    assert {"temperature_c": 27.0, "temperature_slowdown_c": 89.0} == said(profile.path)
    assert profile.table("DEVICES").empty
    assert "DEVICES" in {m.table for m in profile.missing}


def test_a_repeated_inventory_is_a_log(tmp_path: Path) -> None:
    """`-q -l` prints text again and again, `-q -x -l` documents: samples at 0 and 5 s of each GPU."""
    times = ("Thu Jan  1 00:00:02 2026", "Thu Jan  1 00:00:07 2026")
    one = smi.xml(tmp_path / "one.xml", smi.gpu(), smi.gpu()).read_text()
    twice = tmp_path / "gpu.xml"
    twice.write_text(f"{one}\n{one.replace(times[0], times[1])}")
    for path in (smi.text(tmp_path / "gpu.txt", times=times), twice):
        profile = smi.read(path)
        samples = profile.table("SAMPLES")
        power = samples[samples["metric"] == "power_w"]
        assert [(0, 0), (0, 5 * SECOND), (1, 0), (1, 5 * SECOND)] == list(
            zip(power["gpu"], power["time_ns"], strict=True)
        )
        assert 5 * SECOND == profile.capture["dur_ns"].iloc[0]


@pytest.mark.parametrize("time", ["", "Thu Jan 32 00:00:02 2026", "Do 1. Jan 00:00:02 2026"])
def test_an_inventory_without_a_time_has_no_clock(time: str, tmp_path: Path) -> None:
    """A time that is none is not guessed: the values are there, the wall clock is not."""
    profile = smi.read(smi.text(tmp_path / "gpu.txt", times=(time,)))
    assert profile.capture["t0_unix_ns"].isna().all()
    assert any("the wall clock is not known" in note for note in profile.notes)
    assert {0} == set(profile.table("SAMPLES")["time_ns"])


def test_fewer_gpus_than_the_node_has_are_noted(tmp_path: Path) -> None:
    """`-i 2` describes one of four GPUs, whose index the text does not say."""
    profile = smi.read(smi.xml(tmp_path / "gpu.xml", smi.gpu(), attached=4))
    assert "1 of 4 GPUs are described: they are numbered in their order here" in profile.notes


def test_a_gpu_that_lacks_a_value_is_counted(tmp_path: Path) -> None:
    """Of two GPUs one has no memory sensor: one sample, one of two not available."""
    profile = smi.read(smi.xml(tmp_path / "gpu.xml", smi.gpu({"temperature/memory_temp": "44 C"}), smi.gpu()))
    assert ([44.0], []) == tuple(smi.values(profile, "memory_temperature_c", gpu) for gpu in (0, 1))
    assert any("temperature.memory 1 of 2" in note for note in profile.notes)


def test_values_of_slices_are_not_those_of_the_gpu(tmp_path: Path) -> None:
    """In MIG mode every slice has its own memory; that of the GPU counts, wherever it stands."""
    slices = {"mig_devices/mig_device/fb_memory_usage/total": "19968 MiB", "mig_devices/mig_device/index": "0"}
    found = said(smi.xml(tmp_path / "gpu.xml", {**slices, **smi.gpu()}))
    assert 81920 * 2.0**20 == found["memory_total_bytes"]


@pytest.mark.parametrize(
    "declared",
    [
        '<!ENTITY a "b">',
        '<!ENTITY a SYSTEM "file:///etc/hostname">',
        '<!ENTITY % a SYSTEM "http://127.0.0.1:1/x.dtd">',
        '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">',
    ],
)
def test_a_document_that_declares_entities_is_refused(declared: str, tmp_path: Path) -> None:
    """nvidia-smi declares none, so none is expanded and nothing is fetched."""
    head = f"<!DOCTYPE nvidia_smi_log [{declared}]>"
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu({"product_name": "&a;"}), head=head)
    with pytest.raises(ReadError, match=r"has an entity 'a', nvidia-smi none. Run `nvidia-smi -q -x -f gpus.xml`"):
        smi.read(path)


def test_an_entity_that_nothing_declares_is_refused(tmp_path: Path) -> None:
    """A parser that reads no DTD would skip it: 2&b;7 C is not 27 C."""
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu({"temperature/gpu_temp": "2&b;7 C"}))
    with pytest.raises(ReadError, match="has an entity 'b', nvidia-smi none"):
        smi.read(path)


def test_the_entities_of_xml_itself_are_text(tmp_path: Path) -> None:
    """&amp; and &lt; are characters, also in a name from outside."""
    devices = smi.read(smi.xml(tmp_path / "gpu.xml", smi.gpu({"product_name": "A&amp;B &lt;i&gt;"}))).table("DEVICES")
    assert "A&B <i>" == devices["name"].iloc[0]


def test_a_document_that_ends_early_is_read_up_to_its_last_whole_gpu(tmp_path: Path) -> None:
    """Killed within the second GPU: the first is read, and a note says what is left out; within the first, an error."""
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu(), smi.gpu())
    text = path.read_text()
    path.write_text(text[: text.rindex("<temperature>")])
    profile = smi.read(path)
    assert {0} == set(profile.table("SAMPLES")["gpu"])
    assert "the end is cut: what is not whole is left out" in profile.notes
    path.write_text(text[: text.index("</gpu>")])
    with pytest.raises(ReadError, match="no GPU is described to its end"):
        smi.read(path)


@pytest.mark.parametrize("wrong", ["\0\1", "<", "</gpu></gpu>"])
def test_damage_within_a_document_is_an_error_with_its_line(wrong: str, tmp_path: Path) -> None:
    """Bytes that are no XML before the end: the line of the GPU's name, the seventh, is named or the one after."""
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu({"product_name": f"A{wrong}"}), smi.gpu())
    with pytest.raises(ReadError, match=r"line [89] is damaged"):
        smi.read(path)


def test_a_document_cut_before_another_is_an_error(tmp_path: Path) -> None:
    """Only the end of the file may be cut."""
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu())
    text = path.read_text()
    path.write_text(text[: len(text) // 2] + "\n" + text)
    with pytest.raises(ReadError, match=f"{path}: "):
        smi.read(path)


def test_a_text_without_a_gpu_is_an_error(tmp_path: Path) -> None:
    """A driver without GPUs prints a title and nothing to read."""
    with pytest.raises(ReadError, match="no GPU is described to its end"):
        smi.read(smi.text(tmp_path / "gpu.txt", gpus=0))


def test_a_value_that_is_no_number_names_its_gpu(tmp_path: Path) -> None:
    """The inventory has no rows, so the error names the GPU."""
    with pytest.raises(ReadError, match=r"GPU 1: temperature\.gpu is 'hot'"):
        smi.read(smi.xml(tmp_path / "gpu.xml", smi.gpu(), smi.gpu({"temperature/gpu_temp": "hot"})))


def test_deep_nesting_is_read(tmp_path: Path) -> None:
    """A hundred thousand elements within each other are neither an error nor slow."""
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu({"a": "<b>" * 100_000 + "</b>" * 100_000}))
    pd.testing.assert_frame_equal(
        smi.read(smi.xml(tmp_path / "plain.xml", smi.gpu())).table("SAMPLES"), smi.read(path).table("SAMPLES")
    )


def test_a_moment_that_int64_does_not_hold_is_none(tmp_path: Path) -> None:
    """The year 9999 is no time of a recording: the values are of a moment that is not known."""
    profile = smi.read(smi.text(tmp_path / "gpu.txt", times=("Thu Jan  1 00:00:02 9999",)))
    assert profile.capture["t0_unix_ns"].isna().all()
    assert [0.65] == smi.values(profile, "gpu_busy_frac")


def test_a_number_of_gpus_that_cannot_be_is_noted(tmp_path: Path) -> None:
    """Five thousand digits are more than Python converts."""
    path = smi.text(tmp_path / "gpu.txt")
    path.write_text(path.read_text().replace(": 2\n", f": {'9' * 5000}\n"))
    assert any(note.startswith("2 of 99999999999…") for note in smi.read(path).notes)


def test_a_later_inventory_that_lacks_a_gpu_is_noted(tmp_path: Path) -> None:
    """A log of -l that lost the second GPU of its second run."""
    path = smi.text(tmp_path / "gpu.txt", times=("Thu Jan  1 00:00:02 2026", "Thu Jan  1 00:00:03 2026"))
    content = path.read_text()
    path.write_text(content[: content.rindex("GPU 00000000:02:00.0")])
    noted = "1 of 2 GPUs are described: they are numbered in their order here"
    assert noted in smi.read(path).notes


def test_names_and_values_are_parted_at_the_first_colon_between_blanks(tmp_path: Path) -> None:
    """A value may hold colons, a name too, and a name without a value opens a section."""
    lines = ("Product Name : A : B", "Temperature", "    GPU Current Temp: old : 9 C", "    GPU Current Temp   :  27 C")
    said = "".join(f"    {line}\n" for line in lines)
    profile = smi.read(smi.text(tmp_path / "gpu.txt", gpus=1, said=said))
    assert (["A : B"], [27.0]) == (profile.table("DEVICES")["name"].tolist(), smi.values(profile, "temperature_c"))


def test_an_unknown_encoding_is_refused(tmp_path: Path) -> None:
    """Python raises another error for a name of an encoding than for damaged XML."""
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu())
    path.write_text(path.read_text().replace('version="1.0"', 'version="1.0" encoding="no-such"', 1))
    with pytest.raises(ReadError, match=r"gpu.xml: the encoding that the document names is unknown"):
        nvidia_smi.read(path)


def test_a_gpu_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    """Where the title of the next listing is lost, two moments of one GPU would be two GPUs."""
    path = smi.text(tmp_path / "gpu.txt", times=("Thu Jan  1 00:00:02 2026", "Thu Jan  1 00:00:03 2026"))
    first, title, rest = path.read_text().rpartition("==============NVSMI LOG==============")
    path.write_text(first + title.replace("NVSMI", "NV") + rest)
    with pytest.raises(ReadError, match=r"gpu\.txt: line \d+ describes GPU 00000000:01:00\.0 again, without a title"):
        smi.read(path)
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu(), smi.gpu())
    path.write_text(path.read_text().replace('id="00000000:02:00.0"', 'id="00000000:01:00.0"'))
    with pytest.raises(ReadError, match=r"gpu\.xml: GPU '00000000:01:00\.0' is described twice"):
        smi.read(path)
