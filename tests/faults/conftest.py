"""Makes the toy model and the fault harness importable: the tests are not a package."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "training"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
