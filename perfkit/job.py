"""What only the user knows of a run: the model, the work of a step, and the price of a GPU.

It is given to `perfkit.load`, on the command line, or in a file `perfkit.toml` beside the run::

    [job]
    parameters = 7e9
    tokens_per_step = 4_194_304
    dtype = "bf16"
    world_size = 64
    price_per_gpu_hour = 2.5
    hours = 720
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from perfkit.errors import PerfkitError
from perfkit.format import printable
from perfkit.settings import finite, toml

FILE = "perfkit.toml"
# Formats in which a model computes, and the peak that each is held against (`perfkit.hardware.PRECISIONS`).
DTYPES = {
    "fp32": "fp32",
    "tf32": "tf32_tensor",
    "fp16": "fp16_tensor",
    "bf16": "bf16_tensor",
    "fp8": "fp8_tensor",
}


@dataclass(frozen=True)
class Job:
    """What the user said of a run; 0 and an empty text stand for what was not said.

    `parameters`: the parameters that a token passes through. `tokens_per_step`, `samples_per_step`: of all GPUs
    together, in one optimizer step. `total_tokens`: of the whole training. `dtype`: a key of DTYPES, in
    which most of the arithmetic runs. `world_size`: GPUs of the job, recorded or not.
    `price_per_gpu_hour`: in any currency. `hours`: that the whole job takes.
    """

    parameters: float = 0.0
    tokens_per_step: float = 0.0
    samples_per_step: float = 0.0
    total_tokens: float = 0.0
    dtype: str = ""
    world_size: int = 0
    price_per_gpu_hour: float = 0.0
    hours: float = 0.0

    def __bool__(self) -> bool:
        return self != Job()


def known(given: Mapping[str, Any], path: Path | None = None) -> Job:
    """Return what was given of a job, completed by `perfkit.toml` in the folder of the run, or next to its file.

    Raises PerfkitError for a name or a value that perfkit does not know.

    >>> known({"parameters": 7e9, "dtype": "bf16"}).parameters
    7000000000.0
    """
    stored = _stored(path) if path else {}
    values = {**stored, **{name: value for name, value in given.items() if value}}
    return Job(**{name: _checked(name, value) for name, value in values.items()})


def _stored(path: Path) -> dict[str, Any]:
    file = (path if path.is_dir() else path.parent) / FILE
    if not file.is_file():
        return {}
    table = toml(file).get("job", {})
    if not isinstance(table, dict):
        raise PerfkitError(f"{file}: `job` is no table. Write its values below a line [job].")
    try:
        return {name: _checked(name, value) for name, value in table.items()}
    except PerfkitError as e:
        raise PerfkitError(f"{file}: {e}") from e


def _checked(name: str, value: Any) -> Any:
    """Return a value in the type of its field."""
    of = {field.name: field.default for field in fields(Job)}
    if name not in of:
        raise PerfkitError(f"job: {name!r} is not known. Use {', '.join(of)}.")
    if name == "dtype":
        if value not in ("", *DTYPES):
            raise PerfkitError(
                f"job: dtype {printable(repr(value), 40)} is not known. Use {', '.join(DTYPES)}."
            )
        return value
    number = finite(value)
    is_whole = name == "world_size"
    if number is None or number <= 0 or (is_whole and number != int(number)):
        raise PerfkitError(
            f"job: {name} = {printable(value, 40)} is no {'whole ' * is_whole}number above 0."
        )
    return int(number) if is_whole else number
