"""Record a program with an installed profiler (`perfkit record`), or a cell (`%%perfkit`).

`tools` says which command records a program, `running` runs it, `commands` is the command line.
`cells` records the cell of a notebook, by PyTorch's profiler or by `sampling`.
"""
