"""A PEFT adapter as a GGUF: ``python -m infeng_peers.export_gguf_adapter ADAPTER_DIR MODEL OUT.gguf``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from infeng_gguf.api import write_gguf_adapter
from infeng_inspect.api import shape_and_formats
from infeng_peft.api import weights_of

from infeng_core.api import EngineConfig, InfengError, Plugins, UsageError
from infeng_core.api.adapters import find_adapter
from infeng_core.api.formats import format_lookup


def main(argv: Sequence[str] | None = None) -> int:
    """Export what the command line names; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("model", type=Path, help="its base: a Hugging Face directory, or a GGUF")
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="f16", choices=("f16", "f32"), help="of A and B (f16)")
    arguments = parser.parse_args(argv)
    try:
        export(arguments.adapter, arguments.model, arguments.out, arguments.type)
    except (InfengError, OSError) as error:
        print(f"gguf: error: {error}", file=sys.stderr)
        return 1
    return 0


def export(adapter: Path, model: Path, out: Path, kind: str = "f16") -> None:
    """Write an adapter over ``model`` as a GGUF. Raises InfengError or OSError."""
    config = EngineConfig()
    plugins = Plugins.discover(config)
    base = shape_and_formats(str(model), config, format_lookup(plugins), plugins)[0]
    path, reader = find_adapter(adapter, plugins)
    if reader is None:
        raise UsageError(f"{path}", "is an engine-native adapter", "give the PEFT directory that it was made from")
    write_gguf_adapter(weights_of(reader, path, base), base, out, kind)


if __name__ == "__main__":
    sys.exit(main())
