"""The Grafana dashboard: seven panels whose queries a real Prometheus answers, and the manifest that feeds them."""

import json
import re
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus import DIRECT, Exporter, ask, serving, wait_for
from readers.dcgm_files import labels, line, page

from perfkit.logs.dcgm.fields import METRICS

FOLDER = Path(__file__).parents[1] / "data" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
TOKENS = 1000  # that the replayed training program counts from one scrape to the next
# What Grafana puts in the place of its variables.
FILLED = {"$host": ".*", "$gpu": ".*", "$__rate_interval": "20s"}


def filled(query: str) -> str:
    for variable, value in FILLED.items():
        query = query.replace(variable, value)
    assert "$" not in query
    return query


def scrape(i: int) -> list[str]:
    """What two GPUs and the training program export."""
    memory = [line("DCGM_FI_DEV_MEMORY_TEMP", labels(gpu), 70) for gpu in range(2)]
    return [
        *page(),
        *memory,
        "# TYPE training_tokens_total counter",
        f"training_tokens_total {TOKENS * i}",
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that has stored some scrapes."""
    with (
        Exporter(scrape) as exporter,
        serving(tmp_path_factory.mktemp("grafana"), exporter) as address,
    ):
        wait_for(address, "training_tokens_total", 5)
        yield address


def test_the_seven_panels() -> None:
    titles = ["SM activity", "Tensor core activity", "Memory used", "HBM bandwidth, share of peak"]
    assert [*titles, "Power draw", "Temperature", "Training throughput"] == [
        panel["title"] for panel in PANELS
    ]
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"] in (
            "percentunit",
            "watt",
            "celsius",
            "short",
        )
        assert all(target["legendFormat"] for target in panel["targets"])
        grid = panel["gridPos"]
        cells = {(grid["x"] + x, grid["y"] + y) for x in range(grid["w"]) for y in range(grid["h"])}
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len(PANELS) == len({panel["id"] for panel in PANELS})
    # No server of ours is named in it.
    assert ["datasource", "host", "gpu"] == [
        variable["name"] for variable in DASHBOARD["templating"]["list"]
    ]
    sources = [part["datasource"] for panel in PANELS for part in (panel, *panel["targets"])]
    assert {"${datasource}"} == {source["uid"] for source in sources}


def test_every_query_returns_what_was_exported(server: str) -> None:
    # A panel's first line shows what the exporter said, in the panel's unit: one series per GPU, one of training.
    values = {"SM activity": 0.5, "Tensor core activity": 0.25, "Memory used": 1024 / (1024 + 3072)}
    values |= {"HBM bandwidth, share of peak": 0.125, "Power draw": 250.25, "Temperature": 60}
    for title, query in reversed(QUERIES):
        found = [float(one["value"][1]) for one in ask(server, filled(query))]
        assert (1 if title == "Training throughput" else 2) == len(found), title
        if query == dict(reversed(QUERIES))[title] and title in values:
            assert [pytest.approx(values.pop(title))] * 2 == found, title
    assert {} == values


def test_throughput_is_the_rate_of_the_counter(server: str) -> None:
    """1000 tokens from scrape to scrape: what was counted between the first and last scrape, over the minute asked for.

    Prometheus extends the slope at either end by one interval at the most, so the rate lies between that and two
    intervals more.
    """
    now = time.time()
    query = filled(dict(QUERIES)["Training throughput"]).replace("20s", "60s")
    [rate] = ask(server, query, at=now)
    [stored] = ask(server, "training_tokens_total[60s]", at=now)
    counted = float(stored["values"][-1][1]) - float(stored["values"][0][1])
    assert TOKENS * (len(stored["values"]) - 1) == counted
    assert counted / 60 <= float(rate["value"][1]) <= (counted + 2 * TOKENS) / 60


def test_variables_list_hosts_and_gpus(server: str) -> None:
    found = {}
    for variable in DASHBOARD["templating"]["list"][1:]:
        selector, label = re.fullmatch(
            r"label_values\((.*), (\w+)\)", variable["definition"]
        ).groups()
        asked = urllib.parse.urlencode({"match[]": filled(selector)})
        with DIRECT.open(f"{server}/api/v1/label/{label}/values?{asked}", timeout=60) as response:
            found[variable["name"]] = json.load(response)["data"]
    assert {"host": ["node1"], "gpu": ["0", "1"]} == found


def manifest() -> dict[str, dict[str, Any]]:
    return {
        part["kind"]: part
        for part in yaml.safe_load_all((FOLDER / "dcgm-exporter.yaml").read_text())
    }


def test_the_manifest_has_the_official_form() -> None:
    parts = manifest()
    pod = parts["DaemonSet"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert parts["DaemonSet"]["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert parts["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    assert re.fullmatch(
        r"nvcr\.io/nvidia/k8s/dcgm-exporter:\d+\.\d+\.\d+-\d+\.\d+\.\d+-\w+", container["image"]
    )
    assert ["SYS_ADMIN"] == container["securityContext"]["capabilities"]["add"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert "/var/lib/kubelet/pod-resources" == mounts["pod-gpu-resources"]
    assert set(mounts) == {volume["name"] for volume in pod["spec"]["volumes"]}
    assert (
        9400
        == container["ports"][0]["containerPort"]
        == parts["Service"]["spec"]["ports"][0]["port"]
    )


def test_the_manifest_collects_what_the_dashboard_shows() -> None:
    counters = [
        row.split(", ") for row in manifest()["ConfigMap"]["data"]["counters.csv"].splitlines()
    ]
    assert all(3 == len(row) and row[1] in ("gauge", "label") for row in counters)
    collected = {name for name, kind, _ in counters if kind == "gauge"}
    shown = {name for _, query in QUERIES for name in re.findall(r"DCGM_\w+", query)}
    assert shown <= collected <= set(METRICS)
