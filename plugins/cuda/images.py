"""Write the C++ source that holds the machine code of the kernels: ``images.py OUT.cc IMAGE...``."""

import sys
from pathlib import Path


def main() -> None:
    """Include each image as it is, and list them."""
    out, *images = map(Path, sys.argv[1:])
    lines = ['#include "images.h"', ""]
    for index, image in enumerate(images):
        lines += [
            f'asm(".section .rodata\\n.balign 64\\ninfeng_image_{index}:\\n.incbin \\"{image.resolve()}\\"\\n.byte 0\\n.text\\n");',
            f'extern "C" const unsigned char infeng_image_{index}[];',
        ]
    listed = ", ".join(f"{{infeng_image_{index}}}" for index in range(len(images)))
    lines += [
        "",
        "namespace infeng_cuda {",
        "std::span<const Image> images() {",
        f"  static const Image all[] = {{{listed}}};",
        "  return all;",
        "}",
        "}  // namespace infeng_cuda",
        "",
    ]
    out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
