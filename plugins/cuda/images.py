"""Write the C++ source that holds the machine code of the kernels: ``images.py OUT.cc IMAGE...``."""

import sys
from pathlib import Path


def main() -> None:
    """Include each image as it is, and list them."""
    out, *images = map(Path, sys.argv[1:])
    lines = ['#include "images.h"', ""]
    for index, image in enumerate(images):
        label, path = f"infeng_image_{index}", image.resolve()
        code = [".section .rodata", ".balign 64", f"{label}:", f'.incbin \\"{path}\\"', ".byte 0", ".text"]
        lines.append(f'asm("{"".join(line + chr(92) + "n" for line in code)}");')
        lines.append(f'extern "C" const unsigned char {label}[];')
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
