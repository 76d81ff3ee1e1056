"""`infeng plugins rust`: writes the crate ``infeng-abi``, for kernels in Rust that cargo builds."""

from __future__ import annotations

import argparse
from pathlib import Path

from infeng_core.api import say


class RustCrate:
    """The verb."""

    name = "rust"
    help = "write the crate infeng-abi: the kernel ABI in Rust, whose layout is checked when it is compiled"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add the argument."""
        parser.add_argument("folder", metavar="DIR", help="of the crate, absent or empty")

    def run(self, arguments: argparse.Namespace) -> int:
        """Write the crate; raises UsageError where it cannot be written."""
        import infeng_abi

        from infeng_kit.rust import crate
        from infeng_kit.templates import write

        folder = Path(arguments.folder)
        write(crate(infeng_abi.include_dir(), infeng_abi.__version__), folder)
        say(
            f"wrote {folder}: the kernel ABI {infeng_abi.__version__}",
            f'in Cargo.toml of a kernel: infeng-abi = {{ path = "{folder}" }}',
        )
        return 0
