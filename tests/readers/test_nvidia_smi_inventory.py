"""``nvidia-smi -q`` as text and XML: limits, devices, reasons, and documents that are hostile, cut or repeated."""

from pathlib import Path

import pytest
from readers import smi_files as smi

from perfkit.errors import ReadError

SECOND = 1_000_000_000
SAID = {"temperature_shutdown_c": 92.0, "temperature_slowdown_c": 89.0, "temperature_max_c": 85.0}
SAID |= {"temperature_c": 27.0, "power_limit_w": 500.0, "power_w": 67.03, "gpu_busy_frac": 0.65}
SAID |= {"memory_used_bytes": 50 * 2.0**20, "memory_total_bytes": 81920 * 2.0**20}
MOMENTS = ("Thu Jan  1 00:00:02 2026", "Thu Jan  1 00:00:07 2026")


def said(path: Path, gpu: int = 0) -> dict[str, float]:
    samples = smi.read(path).table("SAMPLES")
    samples = samples[samples["gpu"] == gpu]
    assert samples["metric"].is_unique
    return dict(zip(samples["metric"], samples["value"], strict=True))


@pytest.mark.parametrize("form", ["text", "xml"])
def test_limits_and_values_of_each_gpu(form: str, tmp_path: Path) -> None:
    write = {"text": smi.text, "xml": lambda path: smi.xml(path, smi.gpu(), smi.gpu())}[form]
    profile = smi.read(write(tmp_path / "gpu"))
    for gpu in (0, 1):
        found = said(profile.path, gpu)
        assert SAID == {name: found[name] for name in SAID}
    devices = profile.table("DEVICES")
    assert [["NVIDIA A100-SXM4-80GB", 81920 * 2**20]] * 2 == devices[
        ["name", "memory_bytes"]
    ].to_numpy().tolist()
    capture = profile.capture[["tool", "tool_version", "t0_unix_ns", "dur_ns"]].iloc[0]
    assert ["nvidia-smi -q", "535.54.03", 1_767_225_602 * SECOND, 0] == capture.tolist()


def test_reasons_and_counters(tmp_path: Path) -> None:
    # The text indents the hardware's causes: power cap and hardware thermal slowdown are active, nothing else.
    found = said(smi.text(tmp_path / "gpu.txt"))
    names = ("throttled_power", "throttled_thermal", "throttled_other", "idle")
    assert [1.0, 1.0, 0.0, 0.0] == [found[f"{name}_frac"] for name in names]
    assert 1.41e9 == found["sm_clock_hz"] == found["sm_max_clock_hz"]
    # Before driver 535 the elements say throttle instead of event.
    old = {k.replace("event_reason", "throttle_reason"): v for k, v in smi.gpu().items()}
    plain, renamed = (
        said(smi.xml(tmp_path / "a.xml", smi.gpu())),
        said(smi.xml(tmp_path / "b.xml", old)),
    )
    assert plain == renamed
    assert 1.0 == plain["throttled_power_frac"]
    # Text and XML have their own names for five counters in us, beside reasons of nearly the same name.
    names = {
        "sw_power": ("SW Power Capping", "sw_power_cap"),
        "sync_boost": ("Sync Boost", "sync_boost"),
        "sw_thermal": ("SW Thermal Slowdown", "sw_therm_slowdown"),
        "hw_thermal": ("HW Thermal Slowdown", "hw_therm_slowdown"),
        "power_brake": ("HW Power Braking", "hw_power_brake"),
    }
    section = "    Clocks Event Reasons Counters\n"
    section += "".join(
        f"        {line:<34}: {10**i} us\n" for i, (line, _) in enumerate(names.values())
    )
    text = said(
        smi.text(
            tmp_path / "gpu.txt",
            said=smi.SECTIONS.replace("    FB Memory", section + "    FB Memory"),
        )
    )
    path = "clocks_event_reasons_counters/clocks_event_reasons_counters_{}"
    counters = {path.format(tag): f"{10**i} us" for i, (_, tag) in enumerate(names.values())}
    expected = {f"throttled_{name}_ns": 1000.0 * 10**i for i, name in enumerate(names)}
    for found in (text, said(smi.xml(tmp_path / "gpu.xml", smi.gpu(counters)))):
        assert expected == {name: value for name, value in found.items() if name.endswith("_ns")}
        assert 1.0 == found["throttled_power_frac"]


def test_power_margins_and_sections(tmp_path: Path) -> None:
    # Up to driver 530 with an enforced limit, later with an instantaneous draw.
    plain = {k: v for k, v in smi.gpu().items() if not k.startswith("gpu_power")}
    old = {"power_readings/power_draw": "4.61 W", "power_readings/power_limit": "80.00 W"}
    old["power_readings/enforced_power_limit"] = "75.00 W"
    new = {
        "gpu_power_readings/average_power_draw": "139.62 W",
        "gpu_power_readings/instant_power_draw": "142.33 W",
    }
    for number, (power, expected) in enumerate([(old, (4.61, 75.0)), (new, (142.33, None))]):
        found = said(smi.xml(tmp_path / f"{number}.xml", {**plain, **power}))
        assert expected == (found["power_w"], found.get("power_limit_w"))
    # Where limits are margins (T.Limit), the margin is a sample, the limits a note: 27 + 55 + 2 is no threshold.
    margins = {
        "temperature/gpu_temp_tlimit": "55 C",
        "temperature/gpu_temp_slow_tlimit_threshold": "-2 C",
    }
    margins |= {
        f"temperature/gpu_temp_{name}_threshold": "N/A" for name in ("max", "slow", "max_gpu")
    }
    as_xml = smi.xml(tmp_path / "gpu.xml", smi.gpu(margins))
    text = smi.SECTIONS.replace(
        "T.Limit Temp                  : N/A", "T.Limit Temp                  : 55 C"
    )
    for name, limit, value in (
        ("Shutdown", "92", "-8"),
        ("Slowdown", "89", "-2"),
        ("Max Operating", "85", "0"),
    ):
        text = text.replace(f"GPU {name} Temp ", f"GPU {name} T.Limit Temp ", 1).replace(
            f": {limit} C", f": {value} C"
        )
    for path in (as_xml, smi.text(tmp_path / "gpu.txt", 1, said=text)):
        found = said(path)
        assert 55.0 == found["temperature_margin_c"]
        assert not set(found) & {
            "temperature_slowdown_c",
            "temperature_shutdown_c",
            "temperature_max_c",
        }
        assert any("the slowdown of GPU 0 at -2 C" in note for note in smi.read(path).notes)
    text = "    Temperature\n        GPU Current Temp : 27 C\n        GPU Slowdown Temp Specification : 89 C\n"
    profile = smi.read(smi.text(tmp_path / "gpu.txt", 1, said=text))  # as of `-q -d TEMPERATURE`
    assert {"temperature_c": 27.0, "temperature_slowdown_c": 89.0} == said(profile.path)
    assert profile.table("DEVICES").empty
    assert "DEVICES" in {m.table for m in profile.missing}


def test_repeated_inventories_and_their_clock(tmp_path: Path) -> None:
    # `-q -l` prints text again and again, `-q -x -l` documents: samples at 0 and 5 s of each GPU.
    one = smi.xml(tmp_path / "one.xml", smi.gpu(), smi.gpu()).read_text()
    (tmp_path / "gpu.xml").write_text(f"{one}\n{one.replace(*MOMENTS)}")
    for path in (smi.text(tmp_path / "gpu.txt", times=MOMENTS), tmp_path / "gpu.xml"):
        profile = smi.read(path)
        power = profile.table("SAMPLES").query("metric == 'power_w'")
        expected = [[0, 0], [0, 5 * SECOND], [1, 0], [1, 5 * SECOND]]
        assert expected == power[["gpu", "time_ns"]].to_numpy().tolist()
        assert 5 * SECOND == profile.capture["dur_ns"].iloc[0]
    for time in ["", "Do 1. Jan 00:00:02 2026", "Thu Jan  1 00:00:02 9999"]:
        profile = smi.read(smi.text(tmp_path / "gpu.txt", times=(time,)))
        assert profile.capture["t0_unix_ns"].isna().all()
        assert any("the wall clock is not known" in note for note in profile.notes)
        assert {0} == set(profile.table("SAMPLES")["time_ns"])
        assert [0.65] == smi.values(profile, "gpu_busy_frac")


def test_gpus_and_values_that_lack_are_counted(tmp_path: Path) -> None:
    fewer = "{} of {} GPUs are described: they are numbered in their order here"
    assert (
        fewer.format(1, 4) in smi.read(smi.xml(tmp_path / "gpu.xml", smi.gpu(), attached=4)).notes
    )  # as with `-i 2`
    # A log of -l that lost the second GPU of its second run.
    path = smi.text(tmp_path / "gpu.txt", times=MOMENTS)
    content = path.read_text()
    path.write_text(content[: content.rindex("GPU 00000000:02:00.0")])
    assert fewer.format(1, 2) in smi.read(path).notes
    # Of two GPUs one has no memory sensor.
    profile = smi.read(
        smi.xml(tmp_path / "gpu.xml", smi.gpu({"temperature/memory_temp": "44 C"}), smi.gpu())
    )
    assert ([44.0], []) == tuple(smi.values(profile, "memory_temperature_c", gpu) for gpu in (0, 1))
    assert any("temperature.memory 1 of 2" in note for note in profile.notes)
    # In MIG mode every slice has its own memory; that of the GPU counts, wherever it stands.
    slices = {
        "mig_devices/mig_device/fb_memory_usage/total": "19968 MiB",
        "mig_devices/mig_device/index": "0",
    }
    assert (
        81920 * 2.0**20
        == said(smi.xml(tmp_path / "gpu.xml", {**slices, **smi.gpu()}))["memory_total_bytes"]
    )


def test_entities(tmp_path: Path) -> None:
    for declared in [
        '<!ENTITY a SYSTEM "file:///etc/hostname">',
        '<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">',
        "",  # a parser that reads no DTD would skip it: 2&a;7 C is not 27 C
    ]:
        head = f"<!DOCTYPE nvidia_smi_log [{declared}]>" if declared else ""
        path = smi.xml(
            tmp_path / "gpu.xml", smi.gpu({"temperature/gpu_temp": "2&a;7 C"}), head=head
        )
        with pytest.raises(
            ReadError,
            match=r"has an entity 'a', nvidia-smi none. Run `nvidia-smi -q -x -f gpus.xml`",
        ):
            smi.read(path)
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu({"product_name": "A&amp;B &lt;i&gt;"}))
    assert "A&B <i>" == smi.read(path).table("DEVICES")["name"].iloc[0]


def test_damage_of_a_document(tmp_path: Path) -> None:
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu(), smi.gpu())
    text = path.read_text()
    path.write_text(text[: text.rindex("<temperature>")])
    profile = smi.read(path)
    assert {0} == set(profile.table("SAMPLES")["gpu"])
    assert "the end is cut: what is not whole is left out" in profile.notes
    path.write_text(text[: text.index("</gpu>")])
    with pytest.raises(ReadError, match="no GPU is described to its end"):
        smi.read(path)
    # A driver without GPUs prints a title and nothing to read.
    with pytest.raises(ReadError, match="no GPU is described to its end"):
        smi.read(smi.text(tmp_path / "gpu.txt", gpus=0))
    for wrong in ("\0\1", "<", "</gpu></gpu>"):  # in the line of the GPU's name, the seventh
        with pytest.raises(ReadError, match=r"line [89] is damaged"):
            smi.read(
                smi.xml(tmp_path / "gpu.xml", smi.gpu({"product_name": f"A{wrong}"}), smi.gpu())
            )
    with pytest.raises(ReadError, match=r"GPU 1: temperature\.gpu is 'hot'"):
        smi.read(smi.xml(tmp_path / "gpu.xml", smi.gpu(), smi.gpu({"temperature/gpu_temp": "hot"})))
    # Where the title of the next listing is lost, two moments of one GPU would be two GPUs.
    path = smi.text(tmp_path / "gpu.txt", times=MOMENTS)
    first, title, rest = path.read_text().rpartition("==============NVSMI LOG==============")
    path.write_text(first + title.replace("NVSMI", "NV") + rest)
    with pytest.raises(
        ReadError,
        match=r"gpu\.txt: line \d+ describes GPU 00000000:01:00\.0 again, without a title",
    ):
        smi.read(path)
    path = smi.xml(tmp_path / "gpu.xml", smi.gpu(), smi.gpu())
    path.write_text(path.read_text().replace('id="00000000:02:00.0"', 'id="00000000:01:00.0"'))
    with pytest.raises(ReadError, match=r"gpu\.xml: GPU '00000000:01:00\.0' is described twice"):
        smi.read(path)
