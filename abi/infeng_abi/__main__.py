"""Print the compiler flags or folders that a build system needs for a kernel library."""

import argparse
import shlex

from infeng_abi import CFLAGS, SDK_VERSION, __version__, include_dir, pkg_config_dir


def main() -> None:
    """Print the flags or the folder that an option selects."""
    parser = argparse.ArgumentParser(prog="python -m infeng_abi", description=__doc__)
    choice = parser.add_mutually_exclusive_group(required=True)
    choice.add_argument("--includes", action="store_true", help="-I flags")
    choice.add_argument("--cflags", action="store_true", help="every required compiler flag, -I included")
    choice.add_argument("--include-dir", action="store_true", help="the bare folder of the headers")
    choice.add_argument("--pkg-config-dir", action="store_true", help="the folder for PKG_CONFIG_PATH")
    choice.add_argument("--version", action="version", version=__version__)
    choice.add_argument("--sdk-version", action="version", version=SDK_VERSION, help="the version of the SDK's headers")
    parser.add_argument("--lines", action="store_true", help="print one flag per line, unquoted")
    options = parser.parse_args()
    flags = [f"-I{include_dir()}", *(CFLAGS if options.cflags else ())]
    if options.include_dir:
        print(include_dir())
    elif options.pkg_config_dir:
        print(pkg_config_dir())
    else:
        print("\n".join(flags) if options.lines else shlex.join(flags))


if __name__ == "__main__":
    main()
