"""The two scripts of other projects that travel with perfkit, made from the packages that publish them.

``python -m tests.scripts`` writes them anew, as they are for the installed vl-convert-python and itables, which have
94 MB and which perfkit's users therefore need not install. `perfkit/charts/scripts.md` holds their licences.
"""

import re
from importlib.metadata import version

from perfkit.charts.vega import SCRIPT as VEGA
from perfkit.charts.vega import VEGA_LITE

DATATABLES = VEGA.with_name("datatables.js")
EXPORTED = re.compile(r"\bexport\s*\{([^}]*)\};?")


def header(package: str) -> str:
    """Return the first line of a script: the package that it is from."""
    return f"/* From {package} {version(package)}; licences: perfkit/charts/scripts.md */\n"


def alone(body: str) -> str:
    """Return a script that leaves no name behind but those of `window`, and that a script element may hold.

    Neither of both marks may stand in such an element; in JavaScript's strings and patterns both spellings are one.
    """
    safe = re.sub("</(script)", r"<\\/\1", body, flags=re.IGNORECASE).replace("<!--", r"<\!--")
    return "(()=>{" + safe + "})();"


def vega() -> str:
    """Return the script that sets ``window.vegaEmbed``."""
    from vl_convert import javascript_bundle

    body = str(javascript_bundle("window.vegaEmbed=vegaEmbed;", vl_version=VEGA_LITE))
    return header("vl-convert-python") + alone(body)


def datatables() -> str:
    """Return the script that sets ``window.perfkitTables``."""
    from itables.utils import read_package_file

    source = str(read_package_file("html/dt_bundle.js"))
    exported = EXPORTED.search(source)
    assert exported is not None
    (name,) = re.findall(r"([\w$]+) as ITable\b", exported[1])
    body = f"{source[: exported.start()]};window.perfkitTables={name};"
    return header("itables") + alone(body)


MADE = {VEGA: vega, DATATABLES: datatables}


def main() -> None:
    for file, made in MADE.items():
        file.write_text(made(), encoding="utf-8")


if __name__ == "__main__":
    main()
