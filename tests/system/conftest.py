"""What the tests of whole runs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from phraseloom.report.charts import plots
from phraseloom.training import distributed


@pytest.fixture(scope="module")
def one_process() -> Iterator[None]:
    """Runs on one core that draw no picture. A run settles torch for its process; here the process goes on as it was."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "available_cores", lambda: 1)
        patch.setattr(plots, "draw_after_training", lambda *_: None)
        yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill
