"""Small logs as DCGM's tools and a Prometheus server write them.

`dmon` prints rows as ``dcgmi dmon`` does, `scrape` a page of dcgm-exporter, `answer` what a server answers to a query.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Labels = Mapping[str, str]
Row = tuple[str, Sequence[object]]

COLUMNS = ("GPUTL", "POWER", "SMACT", "TENSO")
START_S = 1_700_000_000.5
UUID = "GPU-00000000-0000-0000-0000-00000000000{}"


def dmon(
    path: Path, *rows: Row, columns: Sequence[str] = COLUMNS, around: Sequence[str] = ()
) -> Path:
    """Write rows of (entity, cells) under the header, which comes again every 14 rows, after the lines `around`."""
    header = ["#Entity".ljust(10) + "".join(c.ljust(12) for c in columns), "ID".ljust(10)]
    text = [*around]
    for i, (entity, cells) in enumerate(rows):
        text += header if i % 14 == 0 else []
        text.append(entity.ljust(10) + "".join(str(cell).ljust(12) for cell in cells))
    path.write_text("\n".join([*text, ""] if rows else [*text, *header, ""]))
    return path


def ticks(count: int = 4, gpus: int = 2) -> list[Row]:
    """Rows of `gpus` GPUs: the first tick is not there yet, then utilisation rises by 1 % each tick."""
    first: list[Row] = [(f"GPU {gpu}", ["N/A"] * 4) for gpu in range(gpus)]
    rest = [
        (f"GPU {gpu}", [90 + i, 300.5 + gpu, "0.750", "0.500"])
        for i in range(1, count)
        for gpu in range(gpus)
    ]
    return first + rest


def labels(gpu: int = 0, host: str = "node1", **more: str) -> dict[str, str]:
    own = {
        "gpu": str(gpu),
        "UUID": UUID.format(gpu),
        "device": f"nvidia{gpu}",
        "modelName": "NVIDIA A100-SXM4-80GB",
    }
    return {**own, "Hostname": host, **more}


def line(name: str, said: Labels, value: object, time: object = "") -> str:
    inside = ",".join(
        '{}="{}"'.format(k, v.replace("\\", "\\\\").replace('"', '\\"')) for k, v in said.items()
    )
    return f"{name}{{{inside}}} {value}" + (f" {time}" if time != "" else "")


def page(gpus: int = 2, host: str = "node1", i: int = 0) -> list[str]:
    """The lines of a scrape: utilisation of 50 % and `i`, power, memory and the ratios."""
    text = []
    each = {
        "DEV_GPU_UTIL": 50 + i,
        "DEV_POWER_USAGE": 250.25 + i,
        "DEV_ENFORCED_POWER_LIMIT": 400,
        "DEV_GPU_TEMP": 60,
    }
    each |= {
        "DEV_FB_USED": 1024,
        "DEV_FB_FREE": 3072,
        "DEV_FB_RESERVED": 512,
        "PROF_SM_ACTIVE": 0.5 + i / 1024,
    }
    each |= {"PROF_PIPE_TENSOR_ACTIVE": 0.25, "PROF_DRAM_ACTIVE": 0.125}
    for name, value in each.items():
        text += [f"# HELP DCGM_FI_{name} help.", f"# TYPE DCGM_FI_{name} gauge"]
        text += [line(f"DCGM_FI_{name}", labels(gpu, host), value) for gpu in range(gpus)]
    return text


def scrape(path: Path, *text: str) -> Path:
    path.write_text("\n".join([*text, ""]))
    return path


def answer(path: Path, *series: tuple[Labels, Sequence[tuple[float, str]]], **more: object) -> Path:
    result = [
        {"metric": dict(said), "values": [list(point) for point in points]}
        for said, points in series
    ]
    path.write_text(
        json.dumps(
            {"status": "success", "data": {"resultType": "matrix", "result": result}, **more}
        )
    )
    return path


def series(
    name: str, *values: object, gpu: int = 0, host: str = "node1"
) -> tuple[Labels, list[tuple[float, str]]]:
    """One series of an answer, with a point every second from `START_S` on."""
    points = [(START_S + i, str(value)) for i, value in enumerate(values)]
    return {"__name__": name, **labels(gpu, host)}, points


def stored(path: Path) -> Path:
    names = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE")
    return answer(path, *(series(name, 50, 60, 70, gpu=gpu) for name in names for gpu in range(2)))
