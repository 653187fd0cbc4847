"""Compiled kernels for a CPU: search, one call a step (`kernels.cpp`), and rivals of max-margin losses (`farthest.cpp`).

Eager torch is the reference and the fallback.
"""
