"""Benchmarks, run by `python -m tests.bench`; the makers of their captures lie in data/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "data"))
