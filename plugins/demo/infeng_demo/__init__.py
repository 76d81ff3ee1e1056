"""A small Llama and its adapters, trained by this project, as package data."""

from pathlib import Path

__version__ = "0.1.0"


def model_dir() -> Path:
    """Return the Hugging Face directory of the embedded model (5.77M parameters, bf16)."""
    return Path(__file__).parent / "model"


def adapter_dir(name: str) -> Path:
    """Return the PEFT directory of an embedded adapter: "shakespeare", "python" or "shakespeare-dora"."""
    return Path(__file__).parent / "adapters" / name
