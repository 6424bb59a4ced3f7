"""Logs: what monitors of GPUs, NCCL, and trainings wrote down while a program ran.

A room of its own. Nothing else in perfkit imports it: its readers are registered in pyproject.toml,
as those of any other package are, and bring what judges a log (`perfkit.logs.diagnosis`) and what
records one (`perfkit.logs.prometheus`). It uses the rest of perfkit as such a package may.

- dcgm, nvidia_smi, rocm_smi: logs of the GPUs. nccl: logs and benchmarks of NCCL. deepspeed: what trainings print.
- monitoring: what a log of the GPUs says. charts, views, live: how it is shown, in notebooks and while it grows.
"""
