"""The files of quantization libraries, and their own values for them (``goldens/make_quantized.py``)."""

from __future__ import annotations

import json
from pathlib import Path

import goldens
import numpy as np
import pytest
from infeng_convert.quantized.blocks import Blocks
from infeng_convert.quantized.columns import Columns
from infeng_convert.quantized.module import Module
from infeng_convert.quantized.raw import Raw
from infeng_convert.quantized.rows import Rows, floats
from infeng_convert.quantized.scheme import read
from infeng_convert.safetensors_file import SafetensorsFile

FILES = sorted((Path(goldens.__path__[0]) / "quantized").glob("*.safetensors"))


def test_there_are_published_files_of_each_library() -> None:
    makers = {SafetensorsFile(path).header.metadata["made_by"].split()[0] for path in FILES}
    assert makers == {"compressed-tensors", "gptqmodel", "autoawq", "auto-round", "transformers"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_published_weights_equal_their_librarys_values(path: Path) -> None:
    file = SafetensorsFile(path)
    scheme = read({"quantization_config": json.loads(file.header.metadata["quantization_config"])}, path)
    assert scheme is not None
    raw = Raw(dict.fromkeys(file.tensors, file), str)
    expected = raw.floats("expected")
    n, k = expected.shape
    module: Module
    if scheme.has_blocks:
        module = Blocks(raw, "m.w", n, k, n)
    elif scheme.words:
        module = Columns(raw, "m", n, k, scheme)
    elif "m.weight" in raw and raw.dtype("m.weight") == "F8_E4M3":
        module = floats(raw, "m", n, k, scheme)
    else:
        module = Rows(raw, "m", n, k, scheme)
    values = module.values(0, n)
    assert np.array_equal(values, expected)
    assert np.array_equal(module.values(5, 9), expected[5:14])
