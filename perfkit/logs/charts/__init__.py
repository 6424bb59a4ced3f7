"""Pictures of logs of the GPUs, in the style and after the rules of `perfkit.charts`."""

from perfkit.logs.charts import monitor, states

__all__ = ["monitor", "states"]
