"""A program that is recorded keeps its exit status, gets signals, and leaves nothing behind."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfkit.errors import PerfkitError
from perfkit.recorders import running

SOON_S = 10.0


def is_there(process: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def ends_soon(process: int) -> bool:
    """Whether a process ends: who was killed may take a moment."""
    end = time.monotonic() + SOON_S
    while is_there(process) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_there(process)


def signal_when(file: Path, number: int) -> None:
    """Send this process a signal as soon as a file has content."""

    def wait() -> None:
        end = time.monotonic() + SOON_S
        while time.monotonic() < end and not (file.exists() and file.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.parametrize(("code", "status"), [("exit 3", 3), ("kill -KILL $$", 137)])
def test_the_status_is_that_of_the_program(code: str, status: int) -> None:
    assert status == running.run(["sh", "-c", code])


def test_a_command_that_is_not_there_is_refused() -> None:
    with pytest.raises(PerfkitError, match="no-such-program: cannot be run"):
        running.run(["no-such-program"])


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """Let programs hear SIGINT: in the background of a script it is ignored, and stays so in a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_program_and_what_it_started(
    number: int, status: int, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    code = f"trap 'exit {status}' INT TERM; (sleep 60) & echo $! > {file}; wait"
    signal_when(file, number)
    assert status == running.run(["sh", "-c", code])
    assert ends_soon(int(file.read_text()))


@pytest.mark.usefixtures("hears_interrupts")
def test_a_log_ends_with_the_program(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with running.beside(["sh", "-c", f"echo $$ > {file}; exec sleep 60"]):
        end = time.monotonic() + SOON_S
        while time.monotonic() < end and not (file.exists() and file.read_text()):
            time.sleep(0.01)
    assert not is_there(int(file.read_text()))
