"""Nothing here is a test: `python -m tests.bench` runs it."""

collect_ignore_glob = ["*.py"]
