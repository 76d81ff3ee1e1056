"""The file of an engine-native adapter, written. docs/format.md describes it; the core reads it."""

from __future__ import annotations

import json
from pathlib import Path

from infeng_convert.api import Entry, tensor_header, write_all

from infeng_core.api import __version__
from infeng_core.api.adapters import ARTIFACT_FILE, ARTIFACT_VERSION, AdapterImage, Artifact, shapes_of
from infeng_core.api.formats import LoadedModel


def describe(image: AdapterImage, model: LoadedModel) -> Artifact:
    """Return the header's contents for an image over ``model``."""
    return Artifact(image.spec, image.digest, shapes_of(model.config), model.id, image.base_name)


def write_artifact(image: AdapterImage, artifact: Artifact, directory: Path) -> None:
    """Write the file of an artifact into ``directory``."""
    entries = [Entry(name, "U8", (nbytes,), nbytes) for name, nbytes in image.pieces.nbytes.items()]
    document = {
        "id": artifact.id,
        "base": artifact.base,
        "base_name": artifact.base_name,
        "shapes": dict(artifact.shapes),
        "digest": image.digest,
        **image.spec.to_dict(),
    }
    metadata = {
        "format": "infeng",
        "infeng_adapter": "{}.{}".format(*ARTIFACT_VERSION),
        "written_by": __version__,
        "adapter": json.dumps(document, separators=(",", ":")),
    }
    with (directory / ARTIFACT_FILE).open("wb", buffering=0) as file:
        write_all(file.write, tensor_header(entries, metadata))
        write_all(file.write, image.data.data)
