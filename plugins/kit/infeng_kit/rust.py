"""The kernel ABI in Rust, written from ``abi.h``: constants, structs and function types, nothing by hand.

The header is plain C11 of few forms: enums of numbers, ``typedef struct``, fields of scalars, pointers, arrays and
functions. A line of another form is an error, so that a struct is never written in part. ``layout_check.c`` becomes
assertions, so that compiling the module checks every size, offset and number, as compiling that file does in C.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

SCALARS = {
    "void": "c_void",
    "char": "c_char",
    "float": "f32",
    "double": "f64",
    "infeng_status": "infeng_status",
    **{f"{sign}int{bits}_t": f"{letter}{bits}" for sign, letter in (("u", "u"), ("", "i")) for bits in (8, 16, 32, 64)},
}
"""Types of C to types of Rust."""
KEYWORDS = {name: f"r#{name}" for name in ("in", "type", "ref", "fn", "use")}
"""Names of fields that are words of Rust."""
HEAD = """\
//! The kernel ABI {version} of INF-ENG in Rust, written from <infeng/abi.h>: do not edit.
{attributes}#![allow(dead_code, non_camel_case_types, non_snake_case, unused_parens)]

use core::ffi::{{c_char, c_void}};
use core::mem::{{offset_of, size_of, MaybeUninit}};
use core::ptr::addr_of;

pub type infeng_status = i32;
"""
CARGO = """\
[package]
name = "infeng-abi"
version = "{version}"
edition = "2021"
rust-version = "1.77"
license = "Apache-2.0"
description = "The kernel ABI of INF-ENG, written from <infeng/abi.h>; compiling it checks its layout"

[lib]
path = "src/lib.rs"
"""
SIZE_OF_FIELD = """\
const fn pointed<T>(_: *const T) -> usize {
    size_of::<T>()
}

macro_rules! size_of_field {
    ($kind:ty, $field:ident) => {{
        let place = MaybeUninit::<$kind>::uninit();
        pointed(unsafe { addr_of!((*place.as_ptr()).$field) })
    }};
}
"""
_FIELD = re.compile(r"(?P<type>[\w\s*]+?)(?P<name>\w+)(?P<dims>(\[\w+\])*)$")
_FUNCTION = re.compile(r"(?P<result>[\w\s*]+?)\(\*(?P<name>\w+)\)\s*\((?P<parameters>.*)\)$", re.DOTALL)


def crate(include: Path, version: str) -> dict[str, str]:
    """Return the files of the crate ``infeng-abi`` by their relative paths; include: the folder of ``infeng/abi.h``.

    Raises ValueError for a form in the headers that it does not know.
    """
    return {"Cargo.toml": CARGO.format(version=version), "src/lib.rs": module(include, attributes="#![no_std]\n")}


def module(include: Path, attributes: str = "") -> str:
    """Return the Rust module of the ABI with its assertions; arguments and errors as in ``crate``."""
    checks = assertions(include / "infeng" / "layout_check.c")
    return f"{bindings(include / 'infeng' / 'abi.h', attributes)}\n{checks}"


def bindings(header: Path, attributes: str = "") -> str:
    """Return constants, structs and functions of a header; raises ValueError for a form that it does not know."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
    constants = dict(_constants(text))
    version = f"{constants['INFENG_ABI_MAJOR']}.{constants['INFENG_ABI_MINOR']}"
    parts = [HEAD.format(version=version, attributes=attributes)]
    for name, value in constants.items():
        kind = "infeng_status" if name in _first_enum(text) else "f32" if "." in value else "u32"
        parts.append(f"pub const {name}: {kind} = {value};")
    parts += [f"pub type {name} = {_function_type(result, taken)};" for result, name, taken in re.findall(_ALIAS, text)]
    parts += [_function(*found) for found in re.findall(_MACRO, text)]
    parts += [_struct(name, body) for body, name in re.findall(_STRUCT, text)]
    return "\n".join(parts) + "\n"


def assertions(layout: Path) -> str:
    """Return what ``layout_check.c`` says as assertions; raises ValueError for a line that it does not know."""
    text = re.sub(r"/\*.*?\*/", "", layout.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [_assertion(kind, inner) for kind, inner in re.findall(r"^(SIZE|AT|IS)\((.*)\);", text, re.MULTILINE)]
    return "\n".join([SIZE_OF_FIELD, "const _: () = {", *(f"    {line}" for line in lines), "};"]) + "\n"


def _assertion(kind: str, inner: str) -> str:
    if kind == "IS":
        name, _, number = inner.rpartition(", ")
        return f"assert!({name} as u64 == {_number(number, '')});"
    words = inner.split(", ")
    if len(words) != (2 if kind == "SIZE" else 4) or not all(re.fullmatch(r"\w+", word) for word in words):
        raise ValueError(f"layout_check.c: unknown form of a line: {kind}({inner})")
    if kind == "SIZE":
        return f"assert!(size_of::<{words[0]}>() == {words[1]});"
    struct, field, offset, size = words
    name = KEYWORDS.get(field, field)
    return f"assert!(offset_of!({struct}, {name}) == {offset} && size_of_field!({struct}, {name}) == {size});"


_ALIAS = re.compile(r"^typedef ([\w ]+) \(\*(\w+)\)\(([^)]*)\);", re.MULTILINE)
_STRUCT = re.compile(r"typedef struct \w+ \{(.*?)\n\} (\w+);", re.DOTALL)


_MACRO = re.compile(r"^#define (INFENG_\w+)\((\w+)\) \((.*)\) *$", re.MULTILINE)


def _function(name: str, parameter: str, body: str) -> str:
    """Return a macro of one number as a function."""
    kind = "u64" if "ull" in body else "u32"
    return f"pub const fn {name}({parameter}: u32) -> {kind} {{\n    {_number(body, kind)}\n}}"


def _number(text: str, kind: str) -> str:
    """Return an expression of numbers in Rust; kind: the type that a number with the suffix ull gets."""
    return re.sub(r"\b(0x[0-9a-fA-F]+|\d+)(ull|u)\b", lambda m: m[1] + (kind if m[2] == "ull" else ""), text)


def _constants(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and numbers of defines and enums."""
    yield from re.findall(r"^#define (INFENG_\w+) (\d+\.\d+|\d+|0x[0-9a-fA-F]+)[uf]?\s*$", text, re.MULTILINE)
    for body in re.findall(r"enum \{(.*?)\}", text, re.DOTALL):
        yield from re.findall(r"(\w+) = (\w+)", body)


def _first_enum(text: str) -> set[str]:
    """Return the names of the status codes."""
    body = text.partition("enum {")[2].partition("}")[0]
    return set(re.findall(r"(\w+) =", body))


def _struct(name: str, body: str) -> str:
    fields = [f"    pub {_declared(item.strip())}," for item in body.split(";") if item.strip()]
    lines = ["", "#[repr(C)]", "#[derive(Clone, Copy)]", f"pub struct {name} {{", *fields, "}"]
    return "\n".join([*lines, f"unsafe impl Sync for {name} {{}}"])


def _declared(item: str) -> str:
    """Return a field or a parameter as ``name: type``."""
    function = _FUNCTION.match(item)
    if function:
        return f"{function['name']}: {_function_type(function['result'], function['parameters'])}"
    field = _FIELD.match(item)
    if field is None:
        raise ValueError(f"abi.h: unknown form of a field: {item}")
    kind = _type(field["type"])
    for size in reversed(re.findall(r"\[(\w+)\]", field["dims"])):
        kind = f"[{kind}; {size} as usize]"
    return f"{KEYWORDS.get(field['name'], field['name'])}: {kind}"


def _function_type(result: str, parameters: str) -> str:
    """Return the type of a pointer to a function, which may be NULL."""
    taken = ", ".join(_pointed(p.strip()) for p in parameters.split(",") if p.strip() != "void")
    returned = "" if result.strip() == "void" else f" -> {_type(result)}"
    return f'Option<unsafe extern "C" fn({taken}){returned}>'


def _pointed(parameter: str) -> str:
    """Return a parameter of a function; an array is the address of its first element."""
    name, _, kind = _declared(parameter).partition(": ")
    element = re.match(r"\[(.*); \w+ as usize\]$", kind)
    return f"{name}: *mut {element[1]}" if element else f"{name}: {kind}"


def _type(text: str) -> str:
    """Return a type of C, such as ``const infeng_epilogue* const*``, in Rust."""
    base, *stars = [part.strip() for part in text.replace("struct ", "").split("*")]
    is_const = "const" in base.split()
    name = base.replace("const", "").strip()
    found = SCALARS.get(name, name)
    if not re.fullmatch(r"\w+", found):
        raise ValueError(f"abi.h: unknown type: {text}")
    for star in stars:
        found = f"*{'const' if is_const else 'mut'} {found}"
        is_const = star == "const"
    return found
