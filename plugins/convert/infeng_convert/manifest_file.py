"""Writing the manifest of an engine-native directory."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import yaml

from infeng_core.api.formats import artifact_manifest


def write_manifest(manifest: artifact_manifest.Manifest, path: Path) -> None:
    """Write ``manifest``, one tensor per line."""
    document = {
        "infeng_weights": manifest.version,
        "written_by": manifest.written_by,
        "id": manifest.id,
        "key": manifest.key,
        "model": manifest.model.to_dict(),
        "files": dict(manifest.files),
        "weights": list(manifest.weights),
        "tensors": {name: asdict(entry) for name, entry in manifest.tensors.items()},
        "vectors": {name: asdict(entry) for name, entry in manifest.vectors.items()},
        **manifest.quantizer_entry,
        **({"plugins": dict(manifest.plugins)} if manifest.plugins else {}),
    }
    text = yaml.safe_dump(document, default_flow_style=None, sort_keys=False, width=1 << 20)
    path.write_text(
        f"# Weights packed for INF-ENG; docs/format.md says what each byte means.\n{text}", encoding="utf-8"
    )
