"""A device that does not exist: tensors that say they are on the device `fake` and keep their numbers in host memory.

It runs the code for GPUs on a machine without one. Inside the context `FakeDevice()`

* an operation on tensors of the device and of the host raises OtherDevice, as on a GPU (tensors without a dimension may mix),
  and so does an operation that only CPUs have, or a generator of the host for a tensor of the device;
* `synchronisations` counts, by place in the source, the operations that wait for the device: a number or a tensor that comes
  to the host, `nonzero`, indexing by booleans, sizes that depend on numbers;
* `uploads` counts the copies from the host to the device.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as tree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

if (
    torch.cuda.is_available()
):  # torch would take this device for the accelerator, and no backward pass of the GPU would run
    pytest.skip("there is a real GPU: see tests/gpu", allow_module_level=True)

NAME = "fake"
SOURCE = str(Path(__file__).parents[1] / "src" / "phraseloom") + "/"
WAITS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "masked_scatter_backward", "_unique2", "bincount"}
TAKES_HOST_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_"}
TAKES_HOST_LENGTHS = {"_pack_padded_sequence", "_pack_padded_sequence_backward"}
HostGenerator = torch.Generator
aten = torch.ops.aten


class OtherDevice(RuntimeError):
    """What a GPU refuses."""


class FakeTensor(Tensor):
    """A tensor of the device; `inner` has its numbers."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, inner: Tensor) -> FakeTensor:
        self: FakeTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        self.inner = inner
        return self

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> FakeTensor:
        return FakeTensor(self.inner.clone()).requires_grad_(self.requires_grad)  # type: ignore[return-value]

    def __repr__(self, **_: Any) -> str:
        return f"FakeTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise OtherDevice(f"{func}: a tensor of the device is used outside of FakeDevice")


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


# At import, since autograd counts the devices once, at the first backward of the process.
_setup_privateuseone_for_python_backend(NAME, _Backend())


def device() -> torch.device:
    """The device, for `.to(…)` inside the context."""
    return torch.device(NAME, 0)


def to_device(model: torch.nn.Module) -> torch.nn.Module:
    """The model on the device. `model.to` would give each use of a shared matrix a copy, since the type of tensors changes."""
    moved: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                moved.setdefault(id(parameter), torch.nn.Parameter(parameter.detach().to(device())))
                module._parameters[name] = moved[id(parameter)].requires_grad_(parameter.requires_grad)
    return model.to(device())


def _place() -> str:
    """The innermost function of the package that is running."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCE):
            return f"{frame.f_code.co_filename.removeprefix(SOURCE)}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


def _same(one: torch.Generator, other: torch.Generator) -> bool:
    """Whether these are one generator; torch hands on new objects of it."""
    return torch.equal(one.get_state(), other.get_state())


def _of_device(value: Any) -> bool:
    return value is not None and torch.device(value).type == NAME


def _to_inner(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return value.inner
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value


def _has_size_of_its_numbers(name: str, args: Any, kwargs: Any) -> bool:
    """Whether an operation has to know numbers of the device before its result has a size."""
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    if name not in TAKES_HOST_INDICES:
        return False
    masks = [x for x in args[1] if isinstance(x, Tensor) and x.dtype in (torch.bool, torch.uint8)]
    one_number = name != "index" and len(masks) == len(args[1]) == 1 and args[2].numel() == 1  # is masked_fill
    return bool(masks) and not one_number


class _Generators:
    """In place of `torch.Generator`: generators of the host, those for the device in a list."""

    of_device: ClassVar[list[torch.Generator]] = []

    def __new__(cls, place: Any = "cpu") -> torch.Generator:
        generator = HostGenerator()
        if _of_device(place):
            cls.of_device.append(generator)
        return generator


class FakeDevice(TorchDispatchMode):
    """The context; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self.synchronisations: Counter[str] = Counter()
        self.uploads: Counter[str] = Counter()
        self._lift = False

    def __enter__(self) -> FakeDevice:
        self._lift = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(…, device=…) copies where this mode sees it
        self._inference_mode = torch.inference_mode
        torch.Generator = _Generators
        torch.inference_mode = torch.no_grad  # it has no tensors of subclasses
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        torch._C._set_only_lift_cpu_tensors(self._lift)
        torch.inference_mode, torch.Generator = self._inference_mode, HostGenerator
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat, spec = tree.tree_flatten((args, kwargs))
        to_device = _of_device(kwargs.get("device"))
        if not to_device and not any(isinstance(x, FakeTensor) for x in flat):
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        self._check(func, name, flat)
        inner_args, inner_kwargs = tree.tree_unflatten([_to_inner(x) for x in flat], spec)
        if func is aten._to_copy.default and kwargs.get("device") is not None and not to_device:
            self.synchronisations[f"{_place()} to the host"] += 1
            return func(*inner_args, **inner_kwargs)
        if func is aten.copy_.default and isinstance(args[1], FakeTensor) and not isinstance(args[0], FakeTensor):
            self.synchronisations[f"{_place()} to the host"] += 1
            func(*inner_args, **inner_kwargs)
            return args[0]
        if name in ("_to_copy", "copy_") and not isinstance(args[name == "copy_"], FakeTensor):
            self.uploads[_place()] += 1
        if name in WAITS or _has_size_of_its_numbers(name, args, kwargs):
            self.synchronisations[f"{_place()} {name}"] += 1
        result = CELLS.get(name, func)(*inner_args, **inner_kwargs)
        if torch.Tag.inplace_view in func.tags:
            with no_dispatch():
                func(*args, **kwargs)  # the shape of the tensor of the device
        outer = {id(x.inner): x for x in flat if isinstance(x, FakeTensor)} if func._schema.is_mutable else {}

        def wrap(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            return outer[id(x)] if id(x) in outer else FakeTensor(x)

        wrapped = tree.tree_map(wrap, result)
        if name == "_pack_padded_sequence":  # the sizes of the steps stay on the host
            return wrapped[0], result[1]
        return wrapped

    def _check(self, func: Any, name: str, flat: list[Any]) -> None:
        if func.namespace == "mkldnn" or "for_cpu" in name or "mkldnn" in name:
            raise OtherDevice(f"{func} is for CPUs only ({_place()})")
        for x in flat:
            if isinstance(x, HostGenerator) and not any(_same(x, own) for own in _Generators.of_device):
                raise OtherDevice(f"{func} gets a generator of the host ({_place()})")
        if name in ("_to_copy", "copy_", *TAKES_HOST_LENGTHS):
            return
        if name in TAKES_HOST_INDICES and isinstance(flat[0], FakeTensor):
            self.uploads[_place()] += sum(isinstance(x, Tensor) and not isinstance(x, FakeTensor) for x in flat)
            return
        if any(isinstance(x, Tensor) and not isinstance(x, FakeTensor) and x.dim() for x in flat):
            raise OtherDevice(f"{func} gets tensors of the device and of the host ({_place()})")


# The cells that torch fuses on devices (aten/src/ATen/native/cuda/RNN.cu), which have no kernel for CPUs.


def _lstm_cell(x: Tensor, h: Tensor, cx: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    gates = sum((b for b in biases if b is not None), x + h)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def _lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    i, f, g, o = workspace.chunk(4, 1)
    out = cy.tanh()
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    grad = grad_hy * o * (1 - out * out) + (0 if grad_cy is None else grad_cy)
    parts = (grad * g * (1 - i) * i, grad * cx * (1 - f) * f, grad * i * (1 - g * g), grad_hy * out * (1 - o) * o)
    gates = torch.cat(parts, 1)
    return gates, grad * f, gates.sum(0) if has_bias else None


def _gru_cell(x: Tensor, h: Tensor, hx: Tensor, *biases: Tensor | None) -> tuple[Tensor, Tensor]:
    of_x, of_h = [b for b in biases if b is not None] or (0.0, 0.0)
    x_r, x_z, x_n = (x + of_x).chunk(3, 1)
    h_r, h_z, h_n = (h + of_h).chunk(3, 1)
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n = (x_n + r * h_n).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, h_n), 1)


def _gru_cell_backward(grad: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor | None, ...]:
    r, z, n, hx, h_n = workspace.chunk(5, 1)
    of_n = grad * (1 - z) * (1 - n * n)
    of_r, of_z = of_n * h_n * (1 - r) * r, grad * (hx - n) * (1 - z) * z
    of_x, of_h = torch.cat((of_r, of_z, of_n), 1), torch.cat((of_r, of_z, of_n * r), 1)
    return of_x, of_h, grad * z, of_x.sum(0) if has_bias else None, of_h.sum(0) if has_bias else None


CELLS = {
    "_thnn_fused_lstm_cell": _lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}
