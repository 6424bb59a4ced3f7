"""The scripts of other projects that travel with perfkit."""

from importlib.metadata import version
from pathlib import Path

import pytest
import scripts


@pytest.mark.parametrize("file", list(scripts.MADE), ids=lambda file: file.stem)
def test_a_script_is_the_one_of_the_version_that_it_names(file: Path) -> None:
    stored = file.read_text(encoding="utf-8")
    package = stored.split()[2]
    if not stored.startswith(scripts.header(package)):
        pytest.skip(f"{package} {version(package)} is another version")
    assert scripts.MADE[file]() == stored


def test_the_library_of_charts_is_of_the_version_that_altair_writes() -> None:
    from altair.vegalite import SCHEMA_VERSION

    assert f"v{scripts.VEGA_LITE}." in SCHEMA_VERSION
