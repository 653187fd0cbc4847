"""`python -m phraseloom` is the command `phraseloom`."""

from __future__ import annotations

from phraseloom.cli.main import main

if __name__ == "__main__":
    main()
