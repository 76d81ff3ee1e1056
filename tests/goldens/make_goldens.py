"""Write the golden files beside this script from transformers, in an environment of its own:

python3 -m venv build/torch && build/torch/bin/pip install torch==2.13.0 transformers
build/torch/bin/python tests/goldens/make_goldens.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from shapes import CASES, GREEDY_STEPS
from transformers_run import run

HERE = Path(__file__).parent


def main() -> None:
    """Write one file per case; refuse a case whose logits are too flat or whose greedy choice hangs on rounding."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as scratch:
            golden = run(case.write(Path(scratch)), case.prompt, case.positions, GREEDY_STEPS)
        spread, lead = float(golden["logits"].std()), float(golden["lead"].min())
        print(f"{case.name}: logit std {spread:.2f}, smallest lead of a greedy token {lead:.4f}")
        if spread < 1 or lead < 0.005:
            raise SystemExit(f"{case.name}: logit std >= 1 and a lead >= 0.005 are needed: take another seed")
        made_by = f"torch {torch.__version__}, transformers {transformers.__version__}"
        np.savez_compressed(
            HERE / f"{case.name}.npz", **golden, prompt=case.prompt, positions=case.positions, made_by=made_by
        )


if __name__ == "__main__":
    main()
