"""The type by which a notebook holds a picture, and the library that draws it in a page of perfkit's own."""

from functools import cache
from pathlib import Path

# JupyterLab draws this type without network access and papermill stores it; Altair's own type for
# Vega-Lite 6 has neither property. The version in it only selects JupyterLab's viewer.
MIME = "application/vnd.vegalite.v5+json"
VEGA_LITE = "6.4"
SCRIPT = Path(__file__).with_name("vega.js")


@cache
def library() -> str:
    """Return the script of Vega-Lite, 0.9 MB, that sets ``window.vegaEmbed``; it needs no network."""
    return SCRIPT.read_text("utf-8")
