"""The storages of adapters, as the problems of kernels state them."""

from __future__ import annotations

A_FORMATS = {"int8": "int8-row", "bf16": "bf16", "f32": "f32", "int8t4": "int8-row"}
"""The weight format of a shrink's problem, by the storage of adapters; int8t4 is a need beside it."""

INTEGERS = ("int8", "int8t4")
"""The storages whose A reads int8 rows, and whose B has a scale for each output."""


def a_form(storage: str) -> tuple[str, str]:
    """Return the weight format of A, and the format of the rows that it multiplies."""
    return A_FORMATS[storage], "int8-g64" if storage in INTEGERS else "f32"


def shrink_needs(storage: str) -> list[str]:
    """Return the needs of a shrink's problem."""
    return ["lora_int8t4"] if storage == "int8t4" else []
