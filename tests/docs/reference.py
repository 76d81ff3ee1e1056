"""Writes docs/plugin-reference.md from the docstrings of hooks and types; a test compares the page with them.

PYTHONPATH=tests python -m docs.reference
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from docs.reference_examples import EXAMPLES, OF_HOOKS
from infeng_convert.interfaces import hooks as of_conversion

from infeng_core.plug import hookspecs
from infeng_core.plug.hookspecs import HOOKS, Hook

PAGE = Path(__file__).parents[2] / "docs" / "plugin-reference.md"
APIS = (
    "infeng_core.api",
    *(f"infeng_core.api.{name}" for name in ("engines", "formats", "adapters", "kernels", "servers", "inspection")),
    "infeng_convert.api",
)
SECTIONS = {
    "Steps and requests": ("Batch", "Segment", "AdapterRows", "Limits", "RunningRequest", "Served", "DraftedRequest"),
    "Backends": ("Executable", "StreamedWeights", "DeviceSampling", "Draws", "AsynchronousRuns"),
    "Logit processors": ("Vocabulary", "Adjustment"),
    "Model families": ("Graph", "Value", "Layout", "TensorSpec", "VectorSpec", "Part", "ModelConfig"),
}
"""The types that parts of plugins get and return; where the interface of a hook is a type, it is below the hook."""
HEAD = """\
# Plugin reference

The hooks of plugins, the interfaces of what they return, and the types that these get and give. This page is made from
the docstrings of the code (`PYTHONPATH=tests python -m docs.reference`); [adding-a-plugin.md](adding-a-plugin.md)
explains how the parts fit together.

Shapes are in parentheses, outermost dimension first. Times are seconds unless a name says otherwise, positions and
lengths are tokens. A function marked with `hookimpl` implements a hook; it may take `settings`, the plugin's own. Every
example is run by a test.
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD, "## Hooks\n"]
    parts += [_hook(hook) for hook in (*HOOKS, *_hooks_of(of_conversion))]
    for title, names in SECTIONS.items():
        parts += [f"## {title}\n", *(_type(_found(name)) for name in names)]
    parts += ["## Ops of a graph\n", *(_type(op) for op in _ops())]
    return "\n".join(parts).rstrip() + "\n"


def _hooks_of(module: Any) -> list[Hook[Any]]:
    return [found for found in vars(module).values() if isinstance(found, Hook)]


def _module_of(hook: Hook[Any]) -> Any:
    """Return the module that declares a hook."""
    return of_conversion if hook in _hooks_of(of_conversion) else hookspecs


def _found(name: str) -> type:
    """Return a type that plugins may import."""
    module = next(api for api in APIS if name in importlib.import_module(api).__all__)
    found: type = getattr(importlib.import_module(module), name)
    return found


def _ops() -> list[type]:
    """Return the ops and steps of graphs."""
    from infeng_core.models import ops

    return [*ops.Op.__args__, *ops.Step.__args__]


def _hook(hook: Hook[Any]) -> str:
    face = hook.face()
    given = {
        "parts": f"dict[str, {face.__name__}]",
        "factories": f"dict[str, Callable[..., {face.__name__}]]",
        "list": f"list[{face.__name__}]",
    }[hook.gives]
    lines = [f"### `{hook.name}`\n", f"```python\ndef {hook.name}(settings: Mapping[str, Any]) -> {given}: ...\n```\n"]
    said = " ".join(filter(None, (_about_hook(hook), _about_factory(hook))))
    lines.append(f"{said}\n")
    raised = [error.__name__ for error in hook.raises]
    if raised:
        lines.append(f"Besides the project's errors its parts may raise {', '.join(f'`{name}`' for name in raised)}.\n")
    lines.append(f"Example: [{OF_HOOKS[hook.kind]}]({OF_HOOKS[hook.kind]})\n")
    return "\n".join(lines) + "\n" + _type(face, level=4)


def _about_hook(hook: Hook[Any]) -> str:
    """Return the docstring after the hook's own line."""
    module = _module_of(hook)
    return next(
        (text for name, text in _after(ast.parse(inspect.getsource(module)).body) if getattr(module, name) is hook), ""
    )


def _about_factory(hook: Hook[Any]) -> str:
    """Return what a hook of factories calls them with."""
    if hook.gives != "factories":
        return ""
    module = _module_of(hook)
    name = "".join(word.capitalize() for word in hook.singular.replace("scheduler", "policy").split())
    texts = dict(_after(ast.parse(inspect.getsource(module)).body))
    return texts.get(f"{name}Factory", "")


def _after(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the names that are assigned in a body, with the docstring that follows each."""
    for statement, following in pairwise(body):
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        target = (
            statement.target
            if isinstance(statement, ast.AnnAssign)
            else statement.targets[0]
            if isinstance(statement, ast.Assign)
            else None
        )
        if is_text and isinstance(target, ast.Name):
            yield target.id, _words(following.value.value)  # type: ignore[attr-defined]


def _type(found: type, level: int = 3) -> str:
    source = textwrap.dedent(inspect.getsource(found))
    [node] = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef)]
    lines = [f"{'#' * level} `{found.__name__}`\n"]
    importable = [api for api in APIS if getattr(importlib.import_module(api), found.__name__, None) is found]
    text = inspect.cleandoc(found.__dict__.get("__doc__") or "")
    lines += [f"From `{importable[0]}`. {_prose(text)}\n" if importable else f"{_prose(text)}\n"]
    if fields := list(_fields(node, source)):
        lines += ["| field | type | |", "|---|---|---|"]
        lines += [f"| `{name}` | `{kind}` | {_cell(about)} |" for name, kind, about in fields]
        lines.append("")
    if methods := list(_methods(node)):
        lines += ["| method | |", "|---|---|"]
        lines += [f"| `{signature}` | {_cell(about)} |" for signature, about in methods]
        lines.append("")
    if code := EXAMPLES.get(found.__name__):
        lines.append(f"```python\n{code.strip()}\n```\n")
    return "\n".join(lines)


def _fields(node: ast.ClassDef, source: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and description of each field: the docstring after it, or the comment beside it."""
    texts, comments = dict(_after(node.body)), _comments(source)
    for one in node.body:
        if not isinstance(one, ast.AnnAssign) or not isinstance(one.target, ast.Name) or one.target.id[0] == "_":
            continue
        kind = ast.unparse(one.annotation).replace("|", "\\|")
        default = "" if one.value is None else f" = {ast.unparse(one.value)}".replace("|", "\\|")
        name = one.target.id
        beside = _beside(comments, one)
        yield name, kind + default, texts.get(name) or beside


def _beside(comments: dict[int, tuple[str, bool]], one: ast.AnnAssign) -> str:
    """Return the comment that ends a field's line, and those on lines of their own below."""
    line = one.end_lineno or one.lineno
    found = [comments[line][0]] if line in comments else []
    while found and line + 1 in comments and comments[line + 1][1]:
        line += 1
        found.append(comments[line][0])
    return " ".join(found)


def _comments(source: str) -> dict[int, tuple[str, bool]]:
    """Return comments by their lines, each with whether it has the line to itself."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: (token.string.lstrip("# "), token.line.lstrip().startswith("#"))
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def _methods(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for one in node.body:
        if not isinstance(one, ast.FunctionDef) or one.name.startswith("_"):
            continue
        decorators = {getattr(each, "id", "") for each in one.decorator_list}
        result = f" -> {ast.unparse(one.returns)}" if one.returns is not None else ""
        taken = ast.unparse(one.args).removeprefix("self").removeprefix(", ")
        signature = (
            f"{one.name}{result.replace(' -> ', ': ')}" if "property" in decorators else f"{one.name}({taken}){result}"
        )
        yield signature.replace("|", "\\|"), _words(ast.get_docstring(one) or "")


def _prose(text: str) -> str:
    """Return a docstring in Markdown: code in double backticks becomes code, an indented block stays one."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        is_code = bool(lines) and all(line.startswith("    ") for line in lines)
        paragraphs.append(f"```\n{textwrap.dedent(paragraph)}\n```" if is_code else _words(paragraph))
    return "\n\n".join(paragraphs)


def _words(text: str) -> str:
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
