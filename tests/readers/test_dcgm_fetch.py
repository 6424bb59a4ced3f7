"""Asking a Prometheus server: a real one, and stubs that do not answer as Prometheus does."""

import json
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from prometheus import INTERVAL_S, Exporter, ask, serving, wait_for
from readers import dcgm_files
from readers.dcgm_files import labels

import perfkit
from perfkit.cli import main
from perfkit.errors import ReadError
from perfkit.logs.dcgm.fields import METRICS
from perfkit.logs.prometheus import fetch

Answer = Callable[[BaseHTTPRequestHandler], None]
SECRET = "s3cret"


class Stub:
    """A server on the loopback whose answer each test decides; keeps the requests' paths and headers."""

    def __init__(self) -> None:
        self.answer: Answer = lambda request: None
        self.asked: list[tuple[str, dict[str, str]]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.asked.append((self.path, dict(self.headers)))
                stub.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Stub()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def says(status: int, content: bytes, **headers: str) -> Answer:
    """Answer with this status and content, and its length unless another is given."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content_Length": str(len(content)), **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(content)

    return answer


def matrix(*points: tuple[float, str], **more: object) -> bytes:
    series = {
        "metric": {"__name__": "DCGM_FI_DEV_GPU_TEMP", **labels(), "pod": "trainer"},
        "values": points,
    }
    return json.dumps(
        {"status": "success", "data": {"resultType": "matrix", "result": [series]}, **more}
    ).encode()


def test_what_is_stored_is_read_back(stub: Stub, tmp_path: Path) -> None:
    stub.answer = says(200, matrix((60.0, "61"), (61.5, "62"), warnings=["store 2 is down"]))
    path = fetch(
        f"http://me:{SECRET}%2F@{stub.host}/monitoring/", 60, 62, 0.5, tmp_path / "gpus.json"
    )
    assert [path] == list(tmp_path.iterdir())
    run = perfkit.load(path)
    assert [(0, 61.0), (1_500_000_000, 62.0)] == list(
        zip(run.samples["time_ns"], run.samples["value"], strict=True)
    )
    assert any("Prometheus warned: store 2 is down" in note for note in run.notes)
    assert "trainer" not in path.read_text()  # labels of pods are not stored
    # All names stand in one selector, and the address stays short enough for any proxy.
    [(asked, headers)] = stub.asked
    assert asked.startswith("/monitoring/api/v1/query_range?query=")
    assert len(asked) < 4096
    for name in METRICS:
        assert (
            name.removeprefix("DCGM_FI_").removeprefix("dcgm_").removeprefix("nvidia_smi_") in asked
        )
    # Name and password are sent as Basic authorization, not as part of the address.
    assert f"Basic {b64encode(f'me:{SECRET}/'.encode()).decode()}" == headers["Authorization"]
    assert SECRET not in asked + headers["Host"]


REFUSALS = [
    (says(401, b"no"), r"HTTP 401\. Put name and password into the address"),
    (says(404, b"<html>not here</html>"), r"HTTP 404\. Give the address under which"),
    (
        says(503, b'{"status":"error","errorType":"timeout","error":"query timed out"}'),
        "refused .*query timed out",
    ),
    (
        says(200, b"<html>Sign in to Grafana</html>"),
        "the answer is not Prometheus's .starts with b'<html>Sign in",
    ),
    (says(200, b'{"status":"success"', Content_Length="4000"), "no answer from the server"),
    (
        says(200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}'),
        "the answer is not Prometheus's",
    ),
]


@pytest.mark.parametrize(("answer", "message"), REFUSALS)
def test_what_is_no_answer_is_an_error(
    stub: Stub, answer: Answer, message: str, tmp_path: Path
) -> None:
    stub.answer = answer
    with pytest.raises(ReadError, match=message) as caught:
        fetch(f"http://me:{SECRET}@{stub.host}", 60, 62, 1, tmp_path / "gpus.json")
    assert str(caught.value).startswith(f"http://{stub.host}: ")
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None
    assert [] == list(tmp_path.iterdir())


def test_servers_and_folders_in_the_way(stub: Stub, tmp_path: Path) -> None:
    stub.answer = lambda request: time.sleep(0.5)
    with pytest.raises(ReadError, match=r"no answer from the server .*timed out"):
        fetch(f"http://{stub.host}", 60, 62, 1, tmp_path / "gpus.json", timeout_s=0.1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(
        ReadError, match=r"no answer from the server .*refused.*Check the address"
    ) as caught:
        fetch(f"http://me:{SECRET}@{host}", 60, 62, 1, tmp_path / "gpus.json")
    assert SECRET not in str(caught.value)
    stub.answer = says(200, matrix((60.0, "61")))
    (tmp_path / "gpus.json").mkdir()
    with pytest.raises(ReadError, match=r"gpus\.json: cannot be written .Is a directory."):
        fetch(f"http://{stub.host}", 60, 62, 1, tmp_path / "gpus.json")
    assert ["gpus.json"] == [p.name for p in tmp_path.iterdir()]  # no partial file stays

    def answer(request: BaseHTTPRequestHandler) -> None:
        moved = says(302, b"", Location=f"http://{stub.host}/other/{request.path}")
        (says(200, matrix((60.0, "61"))) if "/other/" in request.path else moved)(request)

    stub.answer = answer
    fetch(f"http://me:{SECRET}@{stub.host}", 60, 62, 1, tmp_path / "moved.json")
    assert [True, False] == ["Authorization" in headers for _, headers in stub.asked[-2:]]


URLS = ["host:9090", "ftp://host", "file:///etc/passwd", "http://", f"http://host?token={SECRET}"]
URLS += [
    f"http://me:a/{SECRET}@host"
]  # a password with a slash must be escaped, or it would be shown


def test_addresses_and_ranges_that_are_none_are_wrong_arguments(tmp_path: Path) -> None:
    for url in URLS:
        with pytest.raises(ValueError, match="url: ") as caught:
            fetch(url, 60, 62, 1, tmp_path / "gpus.json")
        assert SECRET not in str(caught.value)
    for start, end, step in ((62, 60, 1), (60, 62, 0), (60, 62, -1), (60, float("nan"), 1)):
        with pytest.raises(ValueError, match=r"start, end: |step: "):
            fetch("http://127.0.0.1:9", start, end, step, tmp_path / "gpus.json")


def command(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["record", "prometheus", *map(str, arguments)])


@pytest.mark.parametrize("start", ["60", "1970-01-01T00:01:00Z", "1970-01-01 01:01:00+01:00"])
def test_the_command_knows_times_with_their_zone(stub: Stub, start: str, tmp_path: Path) -> None:
    stub.answer = says(200, matrix((60.0, "61")))
    out = tmp_path / "gpus.json"
    result = command(
        f"http://{stub.host}", "--start", start, "--end", "62", "--step", 1, "--out", out
    )
    assert (0, f"{out}\n") == (result.exit_code, result.output)
    assert "start=60.0&end=62.0&step=1.0" in stub.asked[0][0]


def test_the_command_refuses_wrong_arguments(stub: Stub, tmp_path: Path) -> None:
    for arguments, message in [
        (
            ["http://127.0.0.1:9", "--start", "2026-01-31T10:00"],
            "has no time zone: append Z",
        ),  # it is never guessed
        (["http://127.0.0.1:9", "--start", "yesterday"], "is no time such as 2026-01-31T10:00:00Z"),
        (["127.0.0.1:9", "--start", "0"], "url: not the address of a server"),
        (["http://127.0.0.1:9", "--start", "5", "--end", "4"], "is no range of times"),
        (["http://127.0.0.1:9"], "Missing option '--start'"),
    ]:
        result = command(*arguments)
        assert 2 == result.exit_code
        assert message in result.output
        assert isinstance(result.exception, SystemExit)
    stub.answer = says(500, b"oops")
    result = command(
        f"http://me:{SECRET}@{stub.host}", "--start", "0", "--out", tmp_path / "gpus.json"
    )
    assert 2 == result.exit_code
    assert f"perfkit: http://{stub.host}: HTTP 500" in result.stderr
    assert SECRET not in result.output + result.stderr


SCRAPES = 5
BLANK = "9223372036854775794"


def page(host: str, i: int) -> list[str]:
    blank = [
        dcgm_files.line("DCGM_FI_DEV_MEMORY_TEMP", dcgm_files.labels(gpu, host), BLANK)
        for gpu in range(2)
    ]
    pod = dcgm_files.labels(0, host, pod="trainer-7f", namespace="team-a")
    return [
        *dcgm_files.page(host=host, i=i),
        *blank,
        dcgm_files.line("DCGM_FI_DEV_SM_CLOCK", pod, 1200 + i),
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that has stored some scrapes of two hosts."""
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        Exporter(lambda i: page("node2", i)) as first,
        Exporter(lambda i: page("node10", i)) as second,
        serving(folder, first, second) as address,
    ):
        wait_for(address, 'DCGM_FI_DEV_GPU_UTIL{gpu="0"}', SCRAPES)
        yield address


def stored(address: str, name: str, host: str) -> tuple[np.ndarray, list[float]]:
    """Times in s and values of GPU 0 as the server stored them, which it says itself."""
    points = ask(address, f'{name}{{gpu="0",Hostname="{host}"}}[1m]')[0]["values"]
    return np.array([t for t, _ in points]), [float(v) for _, v in points]


def test_the_server_stored_what_was_replayed_and_what_is_blank_is_missing(
    server: str, tmp_path: Path
) -> None:
    # Utilisation is 50, 51, ... in the order of the scrapes: the oracle of the other tests is itself right.
    _, values = stored(server, "DCGM_FI_DEV_GPU_UTIL", "node2")
    assert [50.0 + i for i in range(len(values))] == values
    times, _ = stored(server, "DCGM_FI_DEV_GPU_UTIL", "node2")
    path = fetch(server, times[0], times[-1], 1, tmp_path / "gpus.json")
    run = perfkit.load(path)
    assert "memory_temperature_c" not in set(run.samples["metric"])  # the GPU does not support it
    assert any("values are missing" in note for note in run.notes)
    assert not [word for word in ("trainer-7f", "team-a") if word in path.read_text()]
    assert ["NVIDIA A100-SXM4-80GB"] * 4 == run.devices["name"].tolist()
    # A label matcher of the caller is added to the query.
    path = fetch(server, times[0], times[-1], 1, tmp_path / "one.json", match='Hostname="node10"')
    assert {0} == set(perfkit.load(path).samples["rank"])
    assert "node2" not in path.read_text()
    # 20,001 points need three queries: every point since the first scrape is there, once.
    times, values = stored(server, "DCGM_FI_DEV_FB_USED", "node2")
    end = times[-1]
    path = fetch(
        server, end - 200, end, 0.01, tmp_path / "gpus.json", match='Hostname="node2",gpu="0"'
    )
    result = json.loads(path.read_text())["data"]["result"]
    used = next(
        one["values"] for one in result if one["metric"]["__name__"] == "DCGM_FI_DEV_FB_USED"
    )
    at = np.array([t for t, _ in used])
    assert times[0] <= at[0] < times[0] + 0.011
    assert np.diff(at) == pytest.approx(0.01, abs=1e-6)
    assert {float(v) for _, v in used} == set(values)


@pytest.mark.parametrize(
    ("name", "metric", "scale"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", "gpu_busy_frac", 0.01),
        ("DCGM_FI_DEV_FB_USED", "memory_used_bytes", 2.0**20),
    ],
)
@pytest.mark.parametrize(("rank", "host"), [(0, "node2"), (1, "node10")])
def test_fetched_values_are_those_stored(
    server: str, name: str, metric: str, scale: float, rank: int, host: str, tmp_path: Path
) -> None:
    """At every point of the range stands the last scrape before it, of each host; node2 comes before node10."""
    times, values = stored(server, name, host)
    start, end, step = times[0], times[-1], INTERVAL_S / 2
    run = perfkit.load(fetch(server, start, end, step, tmp_path / "gpus.json"))
    found = run.samples.query(f"rank == {rank} and gpu == 0 and metric == '{metric}'")
    at = run.profiles[0].capture["t0_unix_ns"].iloc[0] / 1e9 + found["time_ns"].to_numpy() / 1e9
    asked = start + step * np.arange(round((end - start) // step) + 1)
    assert asked == pytest.approx(at, abs=1e-3)  # times are stored in ms
    before = np.searchsorted(times, asked + 1e-6, side="right") - 1
    assert [values[i] * scale for i in before] == pytest.approx(found["value"].tolist())


def test_the_command_records_and_says_what_the_server_refuses(server: str, tmp_path: Path) -> None:
    now = time.time()
    with pytest.raises(
        ReadError,
        match=r"no GPU metric .* where job=\"none\" \(metrics there: DCGM_FI_DEV_ENFORCED",
    ):
        fetch(server, now - 60, now, 1, tmp_path / "gpus.json", match='job="none"')
    with pytest.raises(ReadError, match=r"1970-01-02 .*metrics there: none\)"):
        fetch(server, 86_400, 86_460, 1, tmp_path / "gpus.json")
    with pytest.raises(ReadError, match=r"Prometheus refused the query .*parse error"):
        fetch(server, 0, 60, 1, tmp_path / "gpus.json", match="Hostname==")
    assert [] == list(tmp_path.iterdir())
    out = tmp_path / "new" / "gpus.json"
    result = command(
        server, "--start", time.time() - 5, "--step", "0.25", "--out", out
    )  # the end is now
    assert (0, f"{out}\n") == (result.exit_code, result.output)
    assert "samples" in CliRunner().invoke(main, ["inspect", str(out)]).output
