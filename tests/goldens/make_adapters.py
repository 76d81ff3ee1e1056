"""Write the folders of adapters/ with PEFT and transformers, in an environment of its own; names choose some:

build/torch/bin/pip install peft
PYTHONPATH=tests build/torch/bin/python tests/goldens/make_adapters.py [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import peft
import peft_run
import torch
import transformers
from goldens.adapted import ACTIVATED, ADAPTED, EMBEDDED, VECTORS, Adapted

MADE_BY = f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}"


def write(case: Adapted, scratch: Path) -> None:
    """Write one folder; refuse logits that are flat, or near the base's, or a greedy choice that hangs on rounding."""
    model = case.base.write(scratch / case.base.name)
    case.directory.mkdir(parents=True, exist_ok=True)
    if not case.combines:
        peft_run.make(model, case.directory, case.lora, case.seed, case.dtype, case.keeps_base)
    plain, found = peft_run.run(model, [], case.prompts), peft_run.run(model, case.adapters, case.prompts)
    spread, lead = float(found["logits"].std()), float(found["lead"].min())
    moved = float(np.abs(found["logits"] - plain["logits"]).mean())
    print(f"{case.name}: logit std {spread:.2f}, {moved:.2f} from the base's, smallest lead {lead:.4f}")
    if spread < 1 or moved < 0.2 or lead < 0.004:
        raise SystemExit(f"{case.name}: std >= 1, distance >= 0.2 and lead >= 0.004 are needed: take another seed")
    np.savez_compressed(case.directory / "expected.npz", **found, made_by=MADE_BY)


def write_vectors(scratch: Path) -> None:
    """Write the vectors of prompts with and without adapters."""
    found = {}
    for case in EMBEDDED:
        model = case.base.write(scratch / case.base.name)
        found[case.name] = peft_run.vectors(model, case.adapters, case.prompts)
        plain = peft_run.vectors(model, [], case.prompts)
        print(f"{case.name}: vectors std {plain.std():.2f}, {np.abs(found[case.name] - plain).mean():.2f} away")
    np.savez_compressed(VECTORS, **found, made_by=MADE_BY)


def main(names: list[str]) -> None:
    """Write the named cases, "vectors", or all."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as scratch:
        if not names or "vectors" in names:
            write_vectors(Path(scratch))
        for case in (*ADAPTED, *ACTIVATED):
            if not names or case.name in names:
                write(case, Path(scratch))


if __name__ == "__main__":
    main(sys.argv[1:])
