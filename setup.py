"""The compiled library of `phraseloom.native`, where a compiler is at hand; without one the package works in eager torch."""

import os

from setuptools import Extension, setup

FLAGS = [
    "-O3",
    "-std=c++17",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
]

LINKS = [] if os.name == "nt" else ["-pthread"]  # glibc before 2.34 has pthread_atfork there

setup(
    ext_modules=[
        Extension(
            "phraseloom.native._kernels",
            [f"src/phraseloom/native/{name}.cpp" for name in ("kernels", "search", "farthest")],
            depends=["src/phraseloom/native/kernels.h", "src/phraseloom/native/body.inc"],
            extra_compile_args=[*FLAGS, "-g0", "-Wno-psabi", *os.environ.get("PHRASELOOM_KERNEL_FLAGS", "").split()],
            extra_link_args=LINKS,
            optional=True,
        )
    ]
)
