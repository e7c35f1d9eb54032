"""`python -m lifted_bregman.cli` is `lifted`."""

from lifted_bregman.cli._main import main

if __name__ == "__main__":
    raise SystemExit(main())
