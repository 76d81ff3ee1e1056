"""llama.cpp's quantizer as a program: ``PYTHON -P quantize_gguf.py MODEL.gguf OUT.gguf --type q4_0``.

It runs in the environment of the peer ``llama_cpp`` and imports nothing of this project. The quantizer has its
defaults, as llama.cpp's users run it: the head of a Q4_0 file is Q6_K.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def quantize(source: Path, out: Path, kind: str) -> None:
    """Quantize an f16 GGUF. Raises ValueError for an unknown type, RuntimeError on failure."""
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    file_type = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}", None)
    if file_type is None:
        raise ValueError(f"llama.cpp has no file type {kind!r}")
    parameters.ftype = file_type
    if llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), parameters) != 0:
        raise RuntimeError(f"llama.cpp could not quantize {source} to {kind}")


def main() -> int:
    """Quantize what the command line names, and delete the source."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", required=True, help="llama.cpp's name of the file type")
    options = parser.parse_args()
    try:
        quantize(options.model, options.out, options.type)
    except (ValueError, RuntimeError) as error:
        print(f"gguf: error: {error}", file=sys.stderr)
        return 1
    options.model.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
