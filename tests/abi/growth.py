"""The rules by which a header may grow (docs/abi.md, "How it grows"), as a comparison of two headers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FIXED = {"infeng_tensor", "infeng_args", "infeng_epilogue", "infeng_extension", "infeng_range"}
"""Structs that others hold by value, or in arrays without a stride."""
STRIDED = {"infeng_lora_segment", "infeng_kv_segment", "infeng_operand"}
"""Structs of arrays whose stride their writer sets."""
HEADS = {"infeng_args", "infeng_epilogue", "infeng_extension"}
"""First fields that hold the size of the struct around them."""
MAY_GROW = {"INFENG_ABI_MINOR", "INFENG_OP_COUNT"}


@dataclass
class Header:
    """What a header declares, without comments."""

    path: Path
    fields: dict[str, list[str]] = field(default_factory=dict)  # of structs, "int32_t rank"
    enums: list[dict[str, str]] = field(default_factory=list)
    macros: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, str]:
        """All names of enums."""
        return {name: value for enum in self.enums for name, value in enum.items()}


def read(path: Path) -> Header:
    """Return the declarations of a header."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    header = Header(path)
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\n\} \w+;", text, re.DOTALL):
        header.fields[name] = [" ".join(item.split()) for item in body.split(";") if item.strip()]
    for body in re.findall(r"enum \{(.*?)\}", text, re.DOTALL):
        header.enums.append(dict(re.findall(r"(\w+) = (\w+)", body)))
    header.macros = dict(re.findall(r"^#define (INFENG_\w+(?:\(\w+\))?) (.+?)\s*$", text, re.MULTILINE))
    for declared in re.findall(r"^(?:typedef|INFENG_EXPORT) [^{;]*\(.*?;", text, re.MULTILINE | re.DOTALL):
        header.functions[re.search(r"(infeng_\w+)\)?\(", declared)[1]] = " ".join(declared.split())  # type: ignore[index]
    return header


def violations(old: Header, new: Header) -> list[str]:
    """Return what of ``new`` breaks the rules for libraries that were built with ``old``; [] if they all still run."""
    return [*_changed_names(old, new), *_reused_numbers(old, new), *_changed_structs(old, new), *_moved(old, new)]


def _changed_names(old: Header, new: Header) -> Iterator[str]:
    for kind in ("numbers", "macros", "functions"):
        was, now = getattr(old, kind), getattr(new, kind)
        for name, value in was.items():
            if name not in now:
                yield f"{name} is gone"
            elif name in MAY_GROW:
                if int(now[name]) < int(value):
                    yield f"{name} shrank"
            elif now[name] != value:
                yield f"{name} was {value}, is {now[name]}"


def _reused_numbers(old: Header, new: Header) -> Iterator[str]:
    """An enum of ``new`` with a name of an enum of ``old`` is the same one."""
    for was in old.enums:
        now = next((enum for enum in new.enums if was.keys() & enum.keys()), {})
        taken = {int(value, 0): name for name, value in was.items() if name not in MAY_GROW}
        for name, value in now.items():
            if name not in was and int(value, 0) in taken:
                yield f"{name} has the number of {taken[int(value, 0)]}"


def _changed_structs(old: Header, new: Header) -> Iterator[str]:
    for name, was in old.fields.items():
        now = new.fields.get(name)
        if now is None:
            yield f"{name} is gone"
        elif now[: len(was)] != was:
            yield f"the first fields of {name} are no longer those that it had"
        elif len(now) > len(was) and not may_grow(name, was):
            yield f"{name} grew, which others hold by value"


def may_grow(name: str, fields: list[str]) -> bool:
    """Return whether readers of a struct learn its size."""
    has_size = fields[0] == "uint32_t struct_size" or fields[0].split()[0] in HEADS
    return name not in FIXED and (has_size or name in STRIDED)


def _moved(old: Header, new: Header) -> Iterator[str]:
    """Compare what a compiler makes of the fields that ``old`` has."""
    layouts = [layout(header, old) for header in (old, new)]
    if isinstance(layouts[1], str):
        yield f"fields cannot be found: {layouts[1]}"
        return
    assert not isinstance(layouts[0], str), layouts[0]
    for name, place in layouts[0].items():
        if layouts[1][name] != place:
            yield f"{name} was at {place}, is at {layouts[1][name]}"


def layout(header: Header, names: Header) -> dict[str, str] | str:
    """Return offset and size of each field that ``names`` has, in ``header``; the compiler's text if it has not all."""
    lines = ["#include <stdio.h>", f'#include "{header.path}"', "int main(void) {"]
    for struct, fields in names.fields.items():
        for declared in fields:
            found = re.search(r"\(\*(\w+)\)\(", declared) or re.search(r"(\w+)(\[\w+\])*$", declared)
            assert found, declared
            place = f"offsetof({struct}, {found[1]}), sizeof(((const {struct}*)0)->{found[1]})"
            lines.append(f'printf("{struct}.{found[1]} %zu+%zu\\n", {place});')
    program = header.path.parent / "layout"
    done = subprocess.run(
        ["cc", "-std=c11", "-xc", "-", "-o", program], input="\n".join([*lines, "}"]), capture_output=True, text=True
    )
    if done.returncode:
        return done.stderr
    listed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    program.unlink()
    return dict(line.split() for line in listed.splitlines())
