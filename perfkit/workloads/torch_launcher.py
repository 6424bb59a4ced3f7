"""Run a Python script under PyTorch's profiler, without a change of the script.

`perfkit record torch` calls this file by its path, with the Python of the script: it needs PyTorch,
but not perfkit::

    python torch_launcher.py FOLDER DELAY_S DURATION_S stop|go SCRIPT ARGUMENTS...
    python torch_launcher.py FOLDER DELAY_S DURATION_S stop|go -m MODULE ARGUMENTS...

PyTorch records the thread that starts the profiler. So the timers do not touch it: they ask the
main thread, which then starts and stops it between two lines of the script.
"""

import _thread
import os
import runpy
import signal
import sys
from pathlib import Path
from threading import Timer
from types import FrameType
from typing import Any, NoReturn

SUFFIX = ".pt.trace.json.gz"
RECORDED = {"record_shapes": True, "profile_memory": True, "with_stack": True}
# Variables that name the rank of a process, and the number of ranks.
RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
# Nobody sends this signal. Python calls its handler in the main thread when a timer asks for it.
TURN = getattr(signal, "SIGRTMAX", signal.SIGTERM + 5)


def rank() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks; 0 and 1 if no variable says so."""
    for name, count in RANKS:
        numbers = [os.environ.get(name, ""), os.environ.get(count, "")]
        if all(number.isdecimal() for number in numbers):
            return int(numbers[0]), int(numbers[1])
    return 0, 1


def stem() -> str:
    """Return how the file of this process is called, without its suffix."""
    number, count = rank()
    return f"rank-{number}" if count > 1 else "run"


def profiler(torch: Any, **options: Any) -> Any:
    """Return PyTorch's profiler of CPU and GPU, with shapes, memory and stacks."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities, **(RECORDED | options))


class Recording:
    """One recording of this process, from `begin` to `end`."""

    def __init__(self, folder: Path, delay_s: int, duration_s: int, *, stops: bool) -> None:
        self.target = folder / f"{stem()}{SUFFIX}"
        self.delay_s = delay_s
        self.duration_s = duration_s
        self.stops = stops
        self.running: Any = None
        self.is_over = False

    def wait(self) -> None:
        """Begin now, or after the delay, which starts when PyTorch is there."""
        import torch  # noqa: F401

        signal.signal(TURN, self._turn)
        if self.delay_s:
            _later(self.delay_s)
        else:
            self.begin()

    def begin(self) -> None:
        """Start the profiler."""
        import torch

        self.running = profiler(torch)
        self.running.start()
        if self.duration_s:
            _later(self.duration_s)

    def end(self) -> None:
        """Stop the profiler and write the trace, whole or not at all."""
        if self.running is None or self.is_over:
            return
        self.is_over = True
        self.running.stop()
        part = self.target.with_name(f".{os.getpid()}-{self.target.name}")
        self.running.export_chrome_trace(str(part))
        os.replace(part, self.target)
        sys.stderr.write(f"perfkit: {self.target} is written\n")

    def _turn(self, number: int, frame: FrameType | None) -> None:
        """Begin or end, in the main thread."""
        if self.running is None:
            self.begin()
            return
        self.end()
        if self.stops:
            raise SystemExit(0)


def _later(seconds: float) -> None:
    timer = Timer(seconds, _thread.interrupt_main, args=(TURN,))
    timer.daemon = True
    timer.start()


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def run(words: list[str]) -> None:
    """Run a script, or a module after -m, as Python itself would."""
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


def main(words: list[str]) -> None:
    """Record a script; what it raises, and its exit status, stay its own."""
    folder, delay, duration, then, *program = words
    recording = Recording(Path(folder), int(delay), int(duration), stops=then == "stop")
    signal.signal(signal.SIGTERM, _terminated)  # else Python ends without writing the trace
    recording.wait()
    try:
        run(program)
    finally:
        recording.end()


if __name__ == "__main__":
    main(sys.argv[1:])
