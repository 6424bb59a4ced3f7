"""Dumps: what PyTorch writes when a program hangs or runs out of memory.

A room of its own, like `perfkit.logs`: its readers are registered in pyproject.toml, and nothing
else in perfkit imports it.

- pickled: reads the pickles, and never runs what is in them. frames: the stacks in them.
- flight_recorder: the last collectives of each rank. hang: which rank the others wait for. hang_diagnosis, hang_rules.
- memory_snapshot: what a GPU's memory holds. held: when, why and by which line. memory_diagnosis, memory_rules.
- views: what a notebook shows.
"""
