"""A student's program in its sandbox, as the grading process sees it: it takes requests, and may reply anything."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import selectors
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from perfkit.course import sandbox
from perfkit.course.answers import decode

PROGRAM = (sys.executable, "-m", "perfkit.course.student")
MOST_BYTES = 64 * 2**20  # of a reply
GRACE_S = 15  # that a reply may be late, after the program's own alarm
READ_BYTES = 2**16
LEAVE_S = 3


class StudentError(Exception):
    """What a student's program raised: the name of its class and its text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}" if text else name)
        self.name, self.text = name, text


class Ended(Exception):
    """The student's program replies no more."""


class Session:
    """The process of one submission; it ends with the block."""

    def __init__(self, tool: str, box: Path, limits: sandbox.Limits) -> None:
        self._limits = limits
        self._end_s = time.monotonic() + limits.total_s  # waiting takes no time of a CPU
        self._rest = b""
        self._ended = ""
        self._process = subprocess.Popen(
            sandbox.command(tool, PROGRAM, box),
            env=sandbox.environment(tool, box),
            cwd=box / "work",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._send(asdict(limits))

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._leave()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()

    def run(self, source: str) -> None:
        """Run a cell. Raises StudentError or Ended."""
        self._request({"cell": source})

    def ask(self, name: str, arguments: bytes) -> Any:
        """Return what a student's function answers.

        Raises StudentError, Ended, or ValueError if it is no plain value.
        """
        reply = self._request({"ask": name, "arguments": base64.b64encode(arguments).decode()})
        if "answer" not in reply:
            raise ValueError(f"{name}: no plain value came back")
        try:
            return decode(reply["answer"])
        except RecursionError:
            raise ValueError(f"{name}: the answer is nested too deep") from None

    def _request(self, content: dict[str, Any]) -> dict[str, Any]:
        if self._ended:
            raise Ended(self._ended)
        self._send(content)
        reply = self._reply()
        match reply:
            case {"error": [str(name), str(text)]}:
                raise StudentError(name, text)
            case dict():
                return reply
        raise ValueError("no plain value came back")

    def _send(self, content: dict[str, Any]) -> None:
        """Write a request; the time that the program takes to read it counts."""
        if self._process.stdin is None:
            raise Ended("it has no input")
        try:
            self._process.stdin.write(json.dumps(content).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._end("the notebook's process ended")

    def _reply(self) -> Any:
        """Return the next line that the program writes, as JSON."""
        line = self._line(min(time.monotonic() + self._limits.request_s + GRACE_S, self._end_s))
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            return None

    def _line(self, deadline: float) -> bytes:
        """Return the next line; the process ends if that is too late or too long."""
        stdout = self._process.stdout
        if stdout is None:
            raise Ended("it has no output")
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if len(self._rest) > MOST_BYTES:
                    self._end("an answer of the notebook is too long")
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self._end("the notebook's process did not reply in time")
                part = os.read(stdout.fileno(), READ_BYTES)
                if not part:
                    self._end(
                        "the notebook's process ended, or used more memory or time than it may"
                    )
                self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _end(self, reason: str) -> None:
        self._ended = reason
        self._kill()
        raise Ended(reason)

    def _leave(self) -> None:
        """Let the process end by itself, for a moment: the system then knows what it used."""
        if self._process.stdin:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_S)
        self._kill()

    def _kill(self) -> None:
        """End the process and all that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class _Writer(pickle.Pickler):
    """Writes read-only mappings, which pickle does not know, as dictionaries."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to make a dictionary of a read-only mapping."""
        if isinstance(value, MappingProxyType):
            return dict, (dict(value),)
        return NotImplemented


def packed(args: tuple[Any, ...], named: dict[str, Any]) -> bytes:
    """Return the arguments of a question as bytes. The student's process reads them, this one never reads any."""
    content = BytesIO()
    _Writer(content).dump((args, named))
    return zlib.compress(content.getvalue(), level=1)
