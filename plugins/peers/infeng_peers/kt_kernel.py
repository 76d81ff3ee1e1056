"""kt-kernel, the experts of kTransformers on CPUs: no engine, but what `infeng bench experts` compares with.

``kernels/oracle_kt_kernel.py`` runs in its environment. The wheel requires PyTorch, which its compiled part does not
need.
"""

from __future__ import annotations

NAME = "kt_kernel"
ABOUT = "kt-kernel, the experts of kTransformers, for `infeng bench experts`"
REQUIREMENTS = ("kt-kernel==0.7.2", "numpy==2.4.6")
PIP_OPTIONS = ("--no-deps",)
IMPORTS = ("numpy",)
FORMATS = {
    "int4-p32": "int4",
    "int4-g64": "int4",
    "int4-g32": "int4",
    "int8-row": "int8",
    "int8-g32": "int8",
    "bf16": "bf16",
}
"""Our weight format, by its stored bytes -> the peer's: integers with a scale for each output and each row."""

OPTIONS: dict[str, str] = {}
