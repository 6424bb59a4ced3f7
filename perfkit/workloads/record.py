"""Record what the notebooks need of a training or inference loop.

Every rank writes a trace of its own into one folder, which `perfkit.load` reads as one run. The rank is that of
PyTorch's process group if there is one, otherwise what a launcher such as ``torchrun`` puts into RANK, otherwise 0.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfkit.errors import PerfkitError

if TYPE_CHECKING:
    from torch.profiler import profile

SNIPPET = """\
from perfkit.workloads.record import torch_profile
with torch_profile("trace") as profiler:  # around the loop: 1 step waits, 1 warms up, 3 are recorded
    profiler.step()  # in the loop, after each step
"""


TRACE = ".pt.trace.json.gz"


OF_A_RANK = re.compile(rf"rank-(\d+){re.escape(TRACE)}")


@contextmanager
def torch_profile(
    out: str | Path,
    *,
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    record_shapes: bool = True,
    profile_memory: bool = True,
    with_stack: bool = True,
) -> Iterator[profile]:
    """Record steps of a loop with PyTorch's profiler (https://docs.pytorch.org/docs/stable/profiler.html).

    Of the steps that ``step()`` ends, the first `wait` pass unobserved, the next `warmup` are thrown away because the
    profiler's start distorts them, and the next `active` are recorded, once. The GPU is recorded where PyTorch can
    use one.

    Parameters
    ----------
    out
        Folder for the traces, made if it does not exist; a rank's earlier trace in it is replaced.
    wait, warmup, active
        Steps of each kind; together no more than the loop has.
    record_shapes, profile_memory, with_stack
        Whether to record the operators' shapes, the allocations and the Python stacks; each costs time in the
        operators' CPU time and makes the file larger.

    Yields
    ------
    torch.profiler.profile
        Call its ``step()`` after every step. When the last active step ends, or the block if that is earlier,
        ``rank-R.pt.trace.json.gz`` appears in `out`, whole; a UserWarning says if active steps are missing.

    Raises
    ------
    PerfkitError
        If PyTorch is not installed, the folder holds traces of ranks that this job does not have, or the block ended
        before the first active step did.

    Examples
    --------
    >>> with torch_profile("trace", active=0):
    ...     pass
    Traceback (most recent call last):
    ...
    ValueError: active: 0 steps; at least 1 is needed
    """
    for name, steps, least in (("wait", wait, 0), ("warmup", warmup, 0), ("active", active, 1)):
        if steps < least:
            raise ValueError(f"{name}: {steps} steps; at least {least} is needed")
    torch = _torch()
    rank, ranks = _place(torch)
    target = _target(Path(out), rank, ranks)

    def save(profiler: profile) -> None:
        if profiler.step_num > wait + warmup:
            _write(profiler, target)

    activities = torch.profiler.ProfilerActivity
    profiler = torch.profiler.profile(
        activities=[activities.CPU, *([activities.CUDA] if torch.cuda.is_available() else [])],
        schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=save,
        record_shapes=record_shapes,
        profile_memory=profile_memory,
        with_stack=with_stack,
    )
    if ranks > 1 and not _grouped(torch):
        profiler.preset_metadata_json("distributedInfo", json.dumps({"rank": rank, "world_size": ranks}))
    with profiler:
        yield profiler
    _check(profiler.step_num, wait + warmup, active, target)


def _torch() -> Any:
    try:
        import torch
        import torch.profiler
    except ImportError as e:
        raise PerfkitError(
            f"torch: cannot be imported ({e}). Install PyTorch, for example with `pip install 'perfkit[torch]'`."
        ) from e
    return torch


def _place(torch: Any) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks."""
    if _grouped(torch):
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    values = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE")]
    if values == [None, None]:
        return 0, 1
    if all(text and text.isdecimal() for text in values):
        rank, ranks = (int(text or 0) for text in values)
        if rank < ranks:
            return rank, ranks
    raise PerfkitError(
        f"RANK: {values[0]!r} is no rank of WORLD_SIZE {values[1]!r}. Set both as torchrun does, or unset both."
    )


def _grouped(torch: Any) -> bool:
    """Return whether there is a process group, which the profiler writes into the trace itself."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _target(folder: Path, rank: int, ranks: int) -> Path:
    """Return where a rank's trace goes, in a folder that holds no trace of a rank beyond this job's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise PerfkitError(f"{folder}: the folder cannot be made ({e.strerror}). Choose another one.") from e
    matches = [OF_A_RANK.fullmatch(file.name) for file in folder.iterdir()]
    foreign = sorted(int(match[1]) for match in matches if match and int(match[1]) >= ranks)
    if foreign:
        raise PerfkitError(
            f"{folder}: holds the trace of rank {foreign[0]}, and this job has {ranks} rank(s). "
            "Choose another folder, or remove that run."
        )
    return folder / f"rank-{rank}{TRACE}"


def _write(profiler: profile, target: Path) -> None:
    """Write a trace under a name that no reader looks at, and rename it when it is whole."""
    part = target.with_name(f".{os.getpid()}-{target.name}")
    try:
        profiler.export_chrome_trace(str(part))
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def _check(steps: int, before: int, active: int, target: Path) -> None:
    """Say how many steps are missing from the trace."""
    if steps <= before:
        raise PerfkitError(
            f"{target.parent}: nothing was recorded: step() was called {steps} times, and the first recorded step is "
            f"number {before + 1}. Call step() after every step, run more of them, or lower wait and warmup."
        )
    if steps < before + active:
        warnings.warn(f"{target}: {steps - before} of {active} active steps were recorded", stacklevel=4)
