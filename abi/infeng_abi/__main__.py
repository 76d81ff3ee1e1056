"""Print what a build system needs: ``python -m infeng_abi --includes`` or ``--cflags``."""

import argparse

from infeng_abi import CFLAGS, include_dir


def main() -> None:
    """Print the chosen facts on one line."""
    parser = argparse.ArgumentParser(prog="python -m infeng_abi", description=__doc__)
    parser.add_argument("--includes", action="store_true", help="print -I flags")
    parser.add_argument("--cflags", action="store_true", help="print every required compiler flag, -I included")
    parser.add_argument("--include-dir", action="store_true", help="print the bare folder")
    options = parser.parse_args()
    if options.include_dir:
        print(include_dir())
    elif options.cflags:
        print(f"-I{include_dir()}", *CFLAGS)
    elif options.includes:
        print(f"-I{include_dir()}")
    else:
        parser.error("choose --includes, --cflags or --include-dir")


if __name__ == "__main__":
    main()
