"""Pictures of dumps on the first page: what fills the memory, and which rank the others wait for."""

import pandas as pd
from charts.checking import checked, drawn, title

from perfkit.dumps.charts import peak, ranks


def test_the_bar_of_the_peak_names_its_largest_kind() -> None:
    kinds = ["activations", "gradients", "activations"]
    alive = pd.DataFrame({"rank": 0, "gpu": 1, "kind": kinds, "bytes": [10**9, 10**9, 2 * 10**9]})
    spec = checked(peak(alive))
    assert "Of 4.00 GB at the peak, 75.0 % is activations" == title(spec)
    parts = drawn(spec, "label", "kind", "begin", "end")
    assert [("GPU 1", "gradients", 0.0, 0.25), ("GPU 1", "activations", 0.25, 1.0)] == parts


def test_each_rank_has_the_colour_of_what_it_does() -> None:
    roles = ["suspect", "waits", "no difference"]
    found = pd.DataFrame({"rank": [0, 1, 2], "role": roles, "waits_for": ["", "0", ""], "last": ""})
    spec = checked(ranks(found))
    assert "Ranks that others wait for: 0" == title(spec)
    shown = [(0, "waited for"), (1, "waits for others"), (2, "no difference seen")]
    assert shown == drawn(spec, "rank", "role")


def test_without_memory_or_ranks_the_picture_says_so() -> None:
    assert "No memory" == title(peak(pd.DataFrame({"kind": [], "bytes": []})))
    assert "No ranks" == title(ranks(pd.DataFrame()))
