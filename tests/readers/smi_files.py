"""Small logs as nvidia-smi and rocm-smi write them.

`dmon` prints rows as ``nvidia-smi dmon``, `query` as ``--query-gpu``, `text` and `xml` what ``-q`` says of a GPU,
`plain` the table of ``nvidia-smi`` alone, `rocm` what ``rocm-smi --json`` does.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfkit.logs import nvidia_smi
from perfkit.profile import Profile

UNITS = {
    "Date": "YYYYMMDD",
    "Time": "HH:MM:SS",
    "gpu": "Idx",
    "pwr": "W",
    "gtemp": "C",
    "mtemp": "C",
    "tviol": "bool",
}
UNITS |= {
    "mclk": "MHz",
    "pclk": "MHz",
    "rxpci": "MB/s",
    "txpci": "MB/s",
    "fb": "MB",
    "bar1": "MB",
    "ccpm": "MB",
}
UNITS |= {"sbecc": "errs", "dbecc": "errs", "pci": "errs"}  # all others are in %
COLUMNS = ("gpu", "pwr", "gtemp", "mtemp", "sm", "mem", "mclk", "pclk")
FIELDS = (
    "timestamp",
    "index",
    "name",
    "utilization.gpu [%]",
    "memory.used [MiB]",
    "power.draw [W]",
    "temperature.gpu",
)


def read(path: Path) -> Profile:
    return nvidia_smi.read(path)


def values(profile: Profile, metric: str, gpu: int = 0, rank: int = 0) -> list[float]:
    samples = profile.table("SAMPLES")
    chosen = (samples["metric"] == metric) & (samples["gpu"] == gpu) & (samples["rank"] == rank)
    return samples.loc[chosen, "value"].tolist()


def dmon(
    path: Path,
    *rows: Sequence[str],
    columns: Sequence[str] = COLUMNS,
    every: int = 4,
    mark: str = "# ",
) -> Path:
    """Write rows of words under their header, which comes again after as many rows; `mark` is before its names.

    The mark is glued to a date, as dmon does.
    """
    glued = mark.strip() if columns[0] in ("Date", "Time") else mark
    of_both = columns, [UNITS.get(name, "%") for name in columns]
    header = [glued + " ".join(f"{word:>6}" for word in words).lstrip() + " " for words in of_both]
    lines: list[str] = []
    for i, row in enumerate(rows):
        lines += header if i % every == 0 else []
        lines.append(" " + " ".join(f"{word:>6}" for word in row) + " ")
    path.write_text("\n".join([*(lines or header), ""]))
    return path


def ticks(count: int = 6, gpus: int = 2) -> list[Sequence[str]]:
    """Rows of `gpus` GPUs whose power rises by 1 W each tick from 600 W, GPU 1 drawing 100 W less; no memory sensor."""
    each = ((tick, gpu) for tick in range(count) for gpu in range(gpus))
    return [
        (str(gpu), str(600 + tick - 100 * gpu), "63", "-", "100", "10", "2619", "1980")
        for tick, gpu in each
    ]


def query(
    path: Path, *rows: Sequence[str], columns: Sequence[str] = FIELDS, between: str = ", "
) -> Path:
    path.write_text("\n".join([between.join(columns), *(between.join(row) for row in rows), ""]))
    return path


def moments(count: int = 4, gpus: int = 2) -> list[Sequence[str]]:
    """Rows of `gpus` GPUs at 2026/01/01 00:00:00.250 and every second after: 90, 91, ... % busy."""
    rest = ("1024 MiB", "300.50 W", "60")
    each = ((second, gpu) for second in range(count) for gpu in range(gpus))
    return [
        (f"2026/01/01 00:00:{s:02d}.250", str(gpu), "NVIDIA A100", f"{90 + s} %", *rest)
        for s, gpu in each
    ]


def gpu(said: Mapping[str, str] | None = None) -> dict[str, str]:
    """What ``-q`` says of a GPU by path below it, in the words of the XML, with other values."""
    reasons = {
        "sw_power_cap": "Active",
        "hw_slowdown": "Not Active",
        "sw_thermal_slowdown": "Not Active",
    }
    limits = {"max_threshold": "92 C", "slow_threshold": "89 C", "max_gpu_threshold": "85 C"}
    return {
        "product_name": "NVIDIA A100-SXM4-80GB",
        "uuid": "GPU-1",
        "fb_memory_usage/total": "81920 MiB",
        "fb_memory_usage/used": "50 MiB",
        "utilization/gpu_util": "65 %",
        "temperature/gpu_temp": "27 C",
        **{f"temperature/gpu_temp_{name}": at for name, at in limits.items()},
        "gpu_power_readings/power_draw": "67.03 W",
        "gpu_power_readings/current_power_limit": "500.00 W",
        **{
            f"clocks_event_reasons/clocks_event_reason_{name}": told
            for name, told in reasons.items()
        },
        **(said or {}),
    }


def xml(path: Path, *gpus: Mapping[str, str], head: str = "", attached: int | None = None) -> Path:
    """Write the XML of ``-q -x``; `head` stands before its first element."""
    said = {"timestamp": "Thu Jan  1 00:00:02 2026", "driver_version": "535.54.03"}
    lines = [
        '<?xml version="1.0" ?>',
        head or '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
    ]
    lines += ["<nvidia_smi_log>", *(f"<{tag}>{value}</{tag}>" for tag, value in said.items())]
    lines.append(f"<attached_gpus>{attached or len(gpus)}</attached_gpus>")
    for number, values in enumerate(gpus):
        lines.append(f'<gpu id="00000000:0{number + 1}:00.0">')
        for place, value in values.items():
            tags = place.split("/")
            lines.append(
                "".join(f"<{tag}>" for tag in tags)
                + value
                + "".join(f"</{tag}>" for tag in tags[::-1])
            )
        lines.append("</gpu>")
    path.write_text("\n".join([*lines, "</nvidia_smi_log>"]))
    return path


SECTIONS = """\
    Product Name                          : NVIDIA A100-SXM4-80GB
    GPU UUID                              : GPU-{number}
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
        SW Thermal Slowdown               : Not Active
    FB Memory Usage
        Total                             : 81920 MiB
        Used                              : 50 MiB
    Utilization
        Gpu                               : 65 %
        Memory                            : N/A
    Temperature
        GPU Current Temp                  : 27 C
        GPU T.Limit Temp                  : N/A
        GPU Shutdown Temp                 : 92 C
        GPU Slowdown Temp                 : 89 C
        GPU Max Operating Temp            : 85 C
    GPU Power Readings
        Power Draw                        : 67.03 W
        Current Power Limit               : 500.00 W
        Max Power Limit                   : 500.00 W
    Clocks
        SM                                : 1410 MHz
    Max Clocks
        SM                                : 1410 MHz
    Processes                             : None
"""


def text(
    path: Path,
    gpus: int = 2,
    times: Sequence[str] = ("Thu Jan  1 00:00:02 2026",),
    said: str = SECTIONS,
) -> Path:
    """Write the text of ``-q``, once per time."""
    parts = []
    for time in times:
        parts.append(f"\n==============NVSMI LOG==============\n\nTimestamp{' ' * 33}: {time}\n")
        parts.append(f"Driver Version{' ' * 28}: 535.54.03\n\nAttached GPUs{' ' * 29}: {gpus}\n")
        parts += [
            f"GPU 00000000:0{number + 1}:00.0\n{said.format(number=number)}\n"
            for number in range(gpus)
        ]
    path.write_text("".join(parts).rstrip("\n") + "\n")
    return path


PLAIN = """\
+---------------------------------------------------------------------------------------+
| NVIDIA-SMI 535.54.03              Driver Version: 535.54.03    CUDA Version: 12.2     |
|-----------------------------------------+----------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|=========================================+======================+======================|
{gpus}
+---------------------------------------------------------------------------------------+
| Processes:                                                                            |
|    0   N/A  N/A      4711      C   python                                    17700MiB |
+---------------------------------------------------------------------------------------+
"""
ROWS = """\
|   {gpu}  NVIDIA A100-SXM4-80GB        On  | 00000000:0{gpu}:00.0 Off |                    0 |
| N/A   {degrees}C    P0              69W / 400W |  17706MiB / 81920MiB |     48%      Default |
|                                         |                      |             Disabled |
+-----------------------------------------+----------------------+----------------------+"""


def plain(
    path: Path,
    gpus: Sequence[int] = (0, 1),
    times: Sequence[str] = ("Thu Jan  1 00:00:02 2026",),
) -> Path:
    """Write the table that nvidia-smi prints without an option, once per time."""
    tables = []
    for time in times:
        rows = "\n".join(ROWS.format(gpu=gpu, degrees=30 + gpu) for gpu in gpus)
        tables.append(f"{time}       \n{PLAIN.format(gpus=rows)}")
    path.write_text("".join(tables))
    return path


def card(said: Mapping[str, object] | None = None) -> dict[str, object]:
    return {
        "Temperature (Sensor edge) (C)": "45.0",
        "sclk clock speed:": "(500Mhz)",
        "Average Graphics Package Power (W)": "250.5",
        "Max Graphics Package Power (W)": "290.0",
        "GPU use (%)": "57",
        "VRAM Total Memory (B)": "34342961152",
        "VRAM Total Used Memory (B)": "6782976",
        "Card series": "Instinct MI100",
        **(said or {}),
    }


def rocm(path: Path, *cards: Mapping[str, object], before: str = "", times: int = 1) -> Path:
    """Write the JSON of rocm-smi as often as `times`, each after the line `before`."""
    document = {f"card{number}": dict(said) for number, said in enumerate(cards)}
    one = before + json.dumps({**document, "system": {"Driver version": "6.3.6"}}, indent=4)
    path.write_text("\n".join([one] * times))
    return path


def metric(gpu: int, said: Mapping[str, object] | None = None) -> dict[str, object]:
    """What `amd-smi metric --json` says of a GPU."""
    return {
        "gpu": gpu,
        "usage": {"gfx_activity": quantity(57, "%"), "umc_activity": quantity(20, "%")},
        "power": {"socket_power": quantity(550, "W"), "gfx_voltage": "N/A"},
        "clock": {"gfx_0": {"clk": quantity(2100, "MHz")}, "mem_0": {"clk": quantity(900, "MHz")}},
        "temperature": {"edge": "N/A", "hotspot": quantity(45, "C"), "mem": quantity(40, "C")},
        "mem_usage": {"total_vram": quantity(196592, "MB"), "used_vram": quantity(283, "MB")},
        "energy": {"total_energy_consumption": quantity(1000.5, "J")},
        **(said or {}),
    }


def quantity(value: float, unit: str) -> dict[str, object]:
    """A number of amd-smi with its unit."""
    return {"value": value, "unit": unit}


def amd(path: Path, *documents: object) -> Path:
    """Write documents of amd-smi, one after the other."""
    path.write_text("\n".join(json.dumps(document, indent=4) for document in documents))
    return path


METRIC_CSV = (
    "timestamp,gpu,gfx_activity,umc_activity,socket_power,gfx_0_clk,mem_0_clk,edge,hotspot,mem"
)
MONITOR_CSV = (
    "timestamp,gpu,power_usage,max_power,hotspot_temperature,memory_temperature,gfx_clk,gfx,mem,"
    "mem_clock,vram_used,vram_total"
)


AMD_ROWS = [f"{1772939616 + second},0,57,20,550,2100,900,38,45,40" for second in range(9)]


def amd_csv(path: Path, *lines: str, header: str = METRIC_CSV) -> Path:
    """Write CSV of amd-smi."""
    path.write_text("".join(f"{line}\n" for line in (header, *lines)))
    return path
