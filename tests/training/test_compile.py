"""`compile: true`: the loss of a Transformer is one graph, whatever its attention, and an update with it is near an eager one.

The backend of these tests is `eager`, which runs the graphs as they are: no compiler is needed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
from tests.contracts import test_device, test_encoders_decoders

# torch makes an object of each autograd function that it compiles, and warns of that itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
LINES = ["token", "queryk heterogeneous 1-2", "convkv heterogeneous 1-2"]


@pytest.mark.parametrize("line", LINES)
def test_the_loss_is_one_graph_and_its_gradient_that_of_eager_torch(line: str) -> None:
    batch = test_encoders_decoders.batch().to("cpu")
    expected = test_device.update(test_device.translation(attention=line, dropout=0.0), batch)
    model = test_device.translation(attention=line, dropout=0.0)
    dynamo.reset()
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    loss = torch.compile(model.loss, backend=backend, fullgraph=True)(batch)
    loss.objective.backward()
    assert len(graphs) == 1
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-9, atol=1e-9)


def test_dropout_does_not_cut_the_graph() -> None:
    model = test_device.translation(dropout=0.3).train()
    dynamo.reset()
    loss = torch.compile(model.loss, backend="eager", fullgraph=True)(test_encoders_decoders.batch().to("cpu"))
    loss.objective.backward()
    assert torch.isfinite(loss.objective)
