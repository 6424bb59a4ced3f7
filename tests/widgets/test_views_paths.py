"""Call paths are of the whole run: who moves through it does not wait for them again."""

from __future__ import annotations

from pathlib import Path

import perfkit
from perfkit.widgets import views
from perfkit.widgets.live import Shown

SAMPLE = Path(__file__).parents[2] / "data" / "dlrm_h100"


def test_the_same_pictures_for_every_choice() -> None:
    """Another choice of the run is answered with what was made before; another run is asked anew."""
    runs = [perfkit.load(SAMPLE) for _ in range(2)]
    first, again, other = (views.call_paths(perfkit.select(run)) for run in (runs[0], runs[0], runs[1]))
    assert isinstance(first, Shown)
    assert all(one is two for one, two in zip(first.parts, again.parts, strict=True))
    assert not any(one is two for one, two in zip(first.parts, other.parts, strict=True) if not isinstance(one, str))
    assert len(first.parts) > 2
