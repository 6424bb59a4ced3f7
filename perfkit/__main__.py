"""`python -m perfkit` is the `perfkit` command."""

from perfkit.cli import main

main(prog_name="perfkit")
