"""Write the golden files beside this script from transformers, in an environment of its own:

python3 -m venv build/torch && build/torch/bin/pip install torch==2.13.0 transformers
PYTHONPATH=tests build/torch/bin/python tests/goldens/make_goldens.py [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from goldens.families import FAMILY_CASES
from goldens.neox import NEOX_CASES
from goldens.shapes import CASES, GREEDY_STEPS
from goldens.transformers_run import run

HERE = Path(__file__).parent


def main() -> None:
    """Write one file per case; refuse a case whose logits are too flat or whose greedy choice hangs on rounding.

    Arguments name cases; without any, all are written.
    """
    for case in (*CASES, *FAMILY_CASES, *NEOX_CASES):
        if sys.argv[1:] and case.name not in sys.argv[1:]:
            continue
        context = case.context if getattr(case, "at_full_length", False) else 0
        with tempfile.TemporaryDirectory() as scratch:
            golden = run(case.write(Path(scratch)), case.prompt, case.positions, GREEDY_STEPS, context)
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
