"""Search on a CPU by compiled kernels (`kernels.cpp`), one call a step; eager torch is the reference and the fallback."""
