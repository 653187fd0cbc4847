"""What the tests of whole runs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.helpers import training_in_this_process

from phraseloom.report.charts import curves


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    """Runs on one core that draw no picture."""
    with training_in_this_process() as patch:
        patch.setattr(curves, "draw_after_training", lambda *_: None)
        yield
