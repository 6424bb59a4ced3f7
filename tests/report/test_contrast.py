"""The colours of a page are read by everybody: WCAG 2.2 asks for 4.5 between text and what lies behind it."""

import re
from itertools import product

import pytest

from perfkit.report.html import TEMPLATES

STYLE = (TEMPLATES / "page.css").read_text("utf-8")
LEAST = 4.5
TEXTS = ("ink", "quiet", "link", "keyword", "string", "comment", "value")


def luminance(colour: str) -> float:
    """The relative luminance of #rrggbb, as WCAG defines it."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def palettes() -> list[dict[str, str]]:
    """The colours by their names: on a light screen, on a dark one, and on paper."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, flags=re.S)
    return [dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in blocks]


def test_contrast_as_wcag_defines_it() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("place", [0, 1, 2], ids=["light", "dark", "paper"])
def test_each_text_is_read_on_page_and_panel(place: int) -> None:
    colours = palettes()[0] | palettes()[place]
    pairs = [*product(TEXTS, ("page", "panel")), ("bad", "bad-panel"), ("bad", "page")]
    low = {pair: contrast(colours[pair[0]], colours[pair[1]]) for pair in pairs}
    assert {} == {pair: found for pair, found in low.items() if found < LEAST}
