"""GGUF files by name: ``org/name:Q4_K_M``, ``org/name:file.gguf``, or of a revision ``org/name@revision:Q4_K_M``.

The syntax is that of llama.cpp (``-hf``) and vLLM. A file's quantization is taken from its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from glob import escape
from pathlib import Path, PurePosixPath

from infeng_convert.api import hub_fetch, hub_listing

from infeng_core.api import ModelError, UsageError
from infeng_core.api.formats import HUB_NAME, Located
from infeng_gguf.file import SPLIT

NAME = re.compile(rf"(?P<repository>{HUB_NAME.pattern}):(?P<file>\w[\w.+ /-]*)", re.ASCII)
TYPE = re.compile(r"(?:UD-)?(?:(?:IQ|TQ|Q)\d\w*|MXFP4\w*|BF16|F16|F32)$", re.IGNORECASE)
MAX_LISTED = 20


class GgufLocator:
    """The locator of GGUF files of the hub."""

    def locate(self, reference: str, kind: Located) -> Path | None:
        """Return the local path of a named file; raises ModelError, or UsageError for a missing path."""
        if kind != "model":
            return None
        if is_name(reference):
            return fetch_gguf(reference)
        if reference.endswith(".gguf"):
            why = "it is no regular file" if Path(reference).exists() else "no such file"
            raise UsageError(f"{reference}", why, "check the path of the GGUF file")
        return None

    def refuse(self, reference: str, files: Sequence[str]) -> None:
        """Raise ModelError if a repository without safetensors has GGUF files, of which the user must name one."""
        models = _models(files)
        if models:
            raise ModelError(reference, "holds GGUF files", _remedy(reference, models))


def is_name(reference: str) -> bool:
    """Return whether ``reference`` is a hub name with a GGUF file or a quantization."""
    return NAME.fullmatch(reference) is not None


def fetch_gguf(reference: str) -> Path:
    """Return the local path of a GGUF file of the hub, the first of a split one, downloaded if not in the cache.

    No other file of the repository is fetched. Raises ModelError.
    """
    match = NAME.fullmatch(reference)
    if match is None:
        raise ModelError(reference, "is not the name of a GGUF file", "write org/name:Q4_K_M or org/name:file.gguf")
    commit, names = hub_listing(match["repository"])
    files = _chosen(reference, match["repository"], match["file"], _models(names))
    try:
        directory = hub_fetch(commit, [escape(file) for file in files])  # the branch may have moved since the listing
    except ModelError as error:
        raise ModelError(error.what.replace(commit, reference), error.why, error.remedy) from None
    return directory / files[0]


def _models(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the files of each GGUF model of a repository, by its name without split numbers."""
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        path = PurePosixPath(name)
        if path.suffix != ".gguf" or path.is_absolute() or ".." in path.parts or path.name.startswith("mmproj"):
            continue
        split = SPLIT.fullmatch(path.name)
        whole = path if split is None else path.with_name(f"{split['stem']}.gguf")
        found.setdefault(str(whole), []).append(name)
    return found


def _chosen(reference: str, repository: str, wanted: str, models: dict[str, list[str]]) -> list[str]:
    if not models:
        remedy = "name a repository that has some, or leave the part behind the colon out"
        raise ModelError(reference, "holds no GGUF files", remedy)
    for whole, files in models.items():
        if wanted in (whole, *files):
            return files
    mark = re.compile(rf"(?:^|[-._/]){re.escape(wanted)}(?=[-./])", re.IGNORECASE)
    found = {whole: files for whole, files in models.items() if mark.search(whole)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise ModelError(reference, "fits several files", f"name one: {_listed(repository, found)}")
    raise ModelError(reference, f"has no GGUF file {wanted!r}", _remedy(repository, models))


def _remedy(repository: str, models: dict[str, list[str]]) -> str:
    """Return a remedy with the available names: quantizations if they are unique, else file names."""
    types = [found[0] if (found := TYPE.search(whole.removesuffix(".gguf"))) else None for whole in models]
    names = [type if type and types.count(type) == 1 else whole for type, whole in zip(types, models, strict=True)]
    return f"name one: {_listed(repository, names)}"


def _listed(repository: str, names: Iterable[str]) -> str:
    all_names: Sequence[str] = list(names)
    more = f" and {len(all_names) - MAX_LISTED} more" if len(all_names) > MAX_LISTED else ""
    return ", ".join(f"{repository}:{name}" for name in all_names[:MAX_LISTED]) + more
