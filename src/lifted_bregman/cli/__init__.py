"""The command line `lifted`: thin, over the same settings and functions that Python users have."""

from lifted_bregman.cli._main import main

__all__ = ["main"]
