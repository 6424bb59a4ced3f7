"""Record a program with the profilers that are installed: `perfkit record`, and a cell with `%%perfkit`.

`tools` says which command records a program, `running` runs it, `commands` is the command line. `cells` records the
cell of a notebook, by PyTorch's profiler or by `sampling`.
"""
