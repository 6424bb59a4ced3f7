"""Ask a Prometheus server for what it scraped of GPUs: `perfkit record prometheus URL`."""

import math
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from perfkit import options
from perfkit.errors import PerfkitError, ReadError
from perfkit.format import printable, several
from perfkit.logs.dcgm import fields, forms
from perfkit.readers.text import put

POINTS = 10_000  # a server refuses more than 11,000 per series and query
Form = TypeVar("Form")
PAGE = "Give the address under which Prometheus's own page opens."
FILE = click.Path(path_type=Path)
LONGEST = 4000  # characters of a path


@click.command("prometheus")
@click.argument("url")
@click.option(
    "--start",
    type=options.TIME,
    required=True,
    help="For example 2026-01-31T10:00:00Z, or s since 1970.",
)
@click.option("--end", type=options.TIME, help="Now if not given.")
@click.option(
    "--step", type=float, default=15.0, show_default=True, help="Time between two points in s."
)
@click.option("--match", default="", help="Label matchers, for example 'Hostname=~\"node0[12]\"'.")
@click.option(
    "--out", type=FILE, default=Path("gpus.json"), show_default=True, help="File to write."
)
def command(url: str, start: float, end: float | None, step: float, match: str, out: Path) -> None:
    """Store the GPU metrics of a time range that the Prometheus server at URL has scraped."""
    if os.path.lexists(out) and not out.is_dir():
        raise PerfkitError(f"{out}: the file is there already. Choose another --out, or remove it.")
    last = time.time() if end is None else end
    try:
        written = fetch(url, start, last, step, out, match=match)
    except ValueError as e:
        raise click.UsageError(str(e)) from e
    click.echo(printable(written, LONGEST))


class Server:
    """A Prometheus server: its address, shown without the password that may be in it, and its answers."""

    def __init__(self, url: str, timeout_s: float) -> None:
        parts = urllib.parse.urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
        ):
            raise ValueError("url: not the address of a server, such as http://host:9090")
        if "@" in parts.path:
            raise ValueError("url: a name or password in it has a '/'; write %2F for it")
        self._base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
        self.shown = printable(self._base, 200)
        self._timeout_s = timeout_s
        name, word = (urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
        self._basic = f"Basic {b64encode(f'{name}:{word}'.encode()).decode()}" if name else ""

    def series(self, query: str, start: float, end: float, step: float) -> forms.Answer:
        """Return the answer to a query over a range."""
        return self._decoded(
            self._get("query_range", query=query, start=start, end=end, step=step), forms.Answer
        )

    def names(self, start: float, end: float) -> list[str]:
        """Return the names of all metrics of a range."""
        return self._decoded(
            self._get("label/__name__/values", start=start, end=end), forms.Names
        ).data

    def _decoded(self, content: bytes, form: type[Form]) -> Form:
        try:
            return msgspec.json.decode(content, type=form)
        except forms.UNREADABLE:
            raise ReadError(
                f"{self.shown}: the answer is not Prometheus's (starts with {content[:40]!r}). "
                f"{PAGE}"
            ) from None

    def _get(self, path: str, **parameters: object) -> bytes:
        request = urllib.request.Request(
            f"{self._base}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        )
        if self._basic:  # unredirected: no other server gets the password
            request.add_unredirected_header("Authorization", self._basic)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as e:
            with e:
                raise ReadError(self._refused(e)) from None
        except (OSError, HTTPException) as e:
            why = printable(getattr(e, "reason", None) or e or type(e).__name__, 120)
            raise ReadError(
                f"{self.shown}: no answer from the server ({why}). Check the address, and that "
                "Prometheus runs there."
            ) from None

    def _refused(self, error: urllib.error.HTTPError) -> str:
        try:
            reason = msgspec.json.decode(error.read(), type=forms.Answer).error
        except (OSError, HTTPException, *forms.UNREADABLE):
            reason = ""
        if reason:
            advice = (
                "Ask for a shorter range, a longer step or fewer hosts, and check what they must "
                "match."
            )
            return (
                f"{self.shown}: Prometheus refused the query ({printable(reason, 200)}). {advice}"
            )
        if error.code in (401, 403):
            return (
                f"{self.shown}: HTTP {error.code}. Put name and password into the address: "
                "http://NAME:PASSWORD@host."
            )
        return f"{self.shown}: HTTP {error.code}. {PAGE}"


def fetch(
    url: str,
    start: float,
    end: float,
    step: float,
    out: Path,
    *,
    match: str = "",
    timeout_s: float = 60.0,
) -> Path:
    """Store what a Prometheus server knows of the GPUs in a time range as a file, and return its path, `out`.

    Asks ``/api/v1/query_range`` for every metric of dcgm-exporter and nvidia_gpu_exporter that
    perfkit reads, in as many requests as the server's limit of points demands. Labels that name
    pods, containers and jobs are not kept.

    `url`: Address of the server, such as ``http://host:9090``; a name and password in it are sent
    to this server only and shown nowhere.
    `start`, `end`: Range, seconds since 1970 UTC, both included.
    `step`: Distance of the points, seconds; with the scrape interval every scrape is kept once.
    `out`: File to write, as a whole or not at all; its folder is made.
    `match`: Further label matchers in PromQL, such as ``Hostname=~"node0[12]"``.
    `timeout_s`: Longest wait for the server, seconds.

    ReadError if the server does not answer, refuses, answers with something else, or knows no GPU
    in the range; the message says which metrics it has.
    """
    server = Server(url, timeout_s)
    if not (math.isfinite(start) and math.isfinite(end) and start <= end):
        raise ValueError(
            f"start, end: {start} to {end} is no range of times; the end must not be before the "
            "start"
        )
    if not (math.isfinite(step) and step > 0):
        raise ValueError(f"step: {step} s is not above 0")
    query = _query(match)
    series: dict[bytes, forms.Result] = {}
    warnings: dict[str, None] = {}
    for first, last in _parts(start, end, step):
        answer = server.series(query, first, last, step)
        warnings.update(dict.fromkeys(answer.warnings))
        for one in answer.data.result if answer.data else ():
            labels = {label: value for label, value in one.metric.items() if label in fields.NEEDED}
            key = msgspec.json.encode(one.metric, order="sorted")
            series.setdefault(key, forms.Result(labels)).values += one.values
    if not series:
        raise ReadError(_nothing(server, start, end, match))
    answered = forms.Answer(
        "success", forms.Data("matrix", list(series.values())), warnings=list(warnings)
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        put(out, msgspec.json.encode(answered))
    except OSError as e:
        raise ReadError(f"{out}: cannot be written ({e.strerror}). Choose another file.") from e
    return out


def _query(match: str) -> str:
    """Return the selector of all metrics that are read."""
    names = {*fields.METRICS, fields.INDEX, fields.INFO}
    groups = []
    for prefix in ("DCGM_FI_", *fields.PREFIXES):
        rest = sorted(name.removeprefix(prefix) for name in names if name.startswith(prefix))
        groups.append(f"{prefix}({'|'.join(rest)})")
    return f'{{__name__=~"{"|".join(groups)}"{"," if match else ""}{match}}}'


def _parts(start: float, end: float, step: float) -> Iterator[tuple[float, float]]:
    """Split the range where a query would hold too many points; no point is in two parts."""
    points = math.floor((end - start) / step + 1e-9) + 1
    for first in range(0, points, POINTS):
        last = min(first + POINTS, points) - 1
        yield round(start + first * step, 3), round(start + last * step, 3)


def _nothing(server: Server, start: float, end: float, match: str) -> str:
    names = server.names(start, end)
    shown = [
        name for name in names if any(word in name.casefold() for word in ("dcgm", "gpu", "nvidia"))
    ] or names
    listed = several((printable(name, 60) for name in shown), 5) or "none"
    span = " to ".join(f"{datetime.fromtimestamp(t, UTC):%Y-%m-%d %H:%M:%S}" for t in (start, end))
    where = f" where {match}" if match else ""
    return (
        f"{server.shown}: no GPU metric that perfkit knows from {span} UTC{where} (metrics there: "
        f"{listed}). Check the range, and that Prometheus scrapes dcgm-exporter."
    )
