"""The rival of a max-margin loss, found exactly by products of bytes (`farthest.cpp`), about three times as fast as in float32.

Rows of the table and directions are rounded to whole numbers from -127 to 127. The length of what the rounding took away bounds
the error of a product, so only the few rows that are within this bound of the largest product are computed again, in double.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from ctypes import byref

import torch
from torch import Tensor, nn

from phraseloom.native.library import ByteTableStruct, DirectionsStruct, check, load
from phraseloom.outputs import ContinuousOutput

LEAST_ROWS = 1024  # of a table: below it, making the bytes of the directions takes longer than the search
PANEL, TILE, PART = 64, 6, 96  # rows of a panel, directions of a tile, and the fewest directions of a thread
LARGEST = 127
ROUNDING = 2e-6  # of products, bounds and lengths in float32, beside numbers near 1 or the longest row


def search_by_bytes(model: nn.Module) -> None:
    """Let the continuous outputs of a model find their rivals here, where the library and the processor can (AVX-512 VNNI)."""
    for output in model.modules():
        if isinstance(output, ContinuousOutput) and (output.kind == "max_margin" or output.margin_weight):
            output.farthest = ByteTable(output.table.rows_VM) if ByteTable.suits(output.table.rows_VM) else None


class ByteTable:
    """The rows of a fixed table (V, m) as bytes; a call finds the farthest row of each direction.

    Exact up to the rounding of a product in double; of rows that are equally far, the first. The table must not change.
    """

    def __init__(self, rows_VM: Tensor) -> None:
        self.rows_VM = rows_VM.detach().contiguous()
        rows, width = rows_VM.shape
        quads, filled = -(-width // 4), -(-rows // PANEL) * PANEL
        self.panels = torch.zeros(filled, 4 * quads, dtype=torch.int8, device="cpu")
        self.starts = torch.zeros(filled, dtype=torch.int32, device="cpu")
        self.scales = torch.full((filled,), float("nan"), dtype=torch.float32, device="cpu")
        self.lost, self.longest = 0.0, 0.0  # the largest |d| and |s q|
        for first in range(0, rows, 2**13):
            part = slice(first, min(first + 2**13, rows))
            scale_R, whole_RM, lost_R = _round(self.rows_VM[part])
            self.panels[part, :width] = whole_RM.to(torch.int8)
            self.starts[part], self.scales[part] = (-128 * whole_RM.sum(1)).to(torch.int32), scale_R
            self.lost = max(self.lost, lost_R.max().item())
            self.longest = max(self.longest, (whole_RM.norm(dim=1) * scale_R).max().item())
        self.panels = self.panels.view(-1, PANEL, quads, 4).transpose(1, 2).contiguous()

    @staticmethod
    def suits(rows_VM: Tensor) -> bool:
        """Whether a table can be searched so on this machine: float32 on a CPU, finite, not small."""
        library = load()
        if library is None or not library.pl_has_farthest() or len(rows_VM) < LEAST_ROWS:
            return False
        return rows_VM.device.type == "cpu" and rows_VM.dtype == torch.float32 and bool(rows_VM.isfinite().all())

    def __call__(self, towards_NM: Tensor, excluded_N: Tensor) -> Tensor:
        """The row of the table that is farthest in the direction of each vector, but not the excluded one, (N,).

        Of a direction that is not finite, or zero, it is the first row that is not excluded; with one row, it is that row.
        """
        towards_NM, excluded_N = towards_NM.contiguous(), excluded_N.contiguous()
        length_N = towards_NM.norm(dim=1)
        usable_N = length_N.isfinite() & (length_N > 1e-20)
        found_N = ((excluded_N == 0) & (len(self.rows_VM) > 1)).to(torch.int64)
        (some,) = usable_N.nonzero(as_tuple=True)
        if len(some) == 0:
            return found_N
        if len(some) < len(towards_NM):
            return found_N.index_copy(0, some, self(towards_NM[some], excluded_N[some]))
        scale_N, whole_NM, lost_N = _round(towards_NM)
        bytes_NQ = torch.full((len(towards_NM), 4 * self.panels.shape[1]), 128, dtype=torch.uint8, device="cpu")
        bytes_NQ[:, : towards_NM.shape[1]] = (whole_NM + 128).to(torch.uint8)
        error_N = length_N * (self.lost + ROUNDING * max(1.0, self.longest)) + lost_N * self.longest
        slack_N, inverse_N = (error_N * (1 + ROUNDING) / scale_N).float(), 1 / scale_N
        tensors = [bytes_NQ, towards_NM, inverse_N, slack_N, excluded_N, found_N]
        threads = max(1, min(torch.get_num_threads(), len(towards_NM) // PART))
        part = -(-len(towards_NM) // (threads * TILE)) * TILE
        parts = [[x[first : first + part] for x in tensors] for first in range(0, len(towards_NM), part)]
        with ThreadPoolExecutor(threads) as pool:
            for code in pool.map(self._search, parts):
                check(code)
        return found_N

    def _search(self, tensors: list[Tensor]) -> int:
        """Call the library for some directions; its code."""
        library = load()
        assert library is not None
        *directions, found = tensors
        quads, (rows, width) = self.panels.shape[1], self.rows_VM.shape
        pointers = (x.data_ptr() for x in (self.panels, self.starts, self.scales, self.rows_VM))
        table = ByteTableStruct(*pointers, rows, width, quads)
        to = DirectionsStruct(*(x.data_ptr() for x in directions), len(found))
        code: int = library.pl_farthest(byref(table), byref(to), found.data_ptr())
        return code


def _round(x_NM: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The scale of each row (N,), its whole numbers (N, M), and the length in double of what they miss, (N,)."""
    scale_N = (x_NM.abs().amax(1) / LARGEST).clamp(min=torch.finfo(torch.float32).tiny)
    whole_NM = (x_NM / scale_N[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return (
        scale_N,
        whole_NM,
        torch.addcmul(x_NM.double(), whole_NM.double(), scale_N.double()[:, None], value=-1).norm(dim=1),
    )
