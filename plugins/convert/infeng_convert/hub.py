"""Models by name: ``org/name`` or ``org/name@revision``, through huggingface_hub and its own cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from infeng_convert.huggingface import INDEX, SINGLE, read_config, read_index
from infeng_core.api import ModelError
from infeng_core.api.formats import (
    CHAT_TEMPLATES,
    CONFIG_FILES,
    CONVERTED_TEMPLATES,
    MANIFEST,
    TOKENIZER_FILES,
    Located,
    NoWeightsError,
    is_name,
    is_native,
)
from infeng_core.api.formats import HUB_NAME as NAME

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "infeng_adapter.safetensors")
"""The files of an adapter that are downloaded: as PEFT saves it, or converted."""

FILE_SUFFIXES = (".bin", ".safetensors")
"""Suffixes of paths to missing files: a hub name ends otherwise."""


class Hub:
    """The locator of ``org/name`` and ``org/name@revision``."""

    def locate(self, reference: str, kind: Located) -> Path | None:
        """Return the local directory of a hub name; raises ModelError."""
        if not is_name(reference) or (kind == "model" and Path(reference).suffix in FILE_SUFFIXES):
            return None
        if kind == "adapter":
            return fetch(reference, ADAPTER_FILES, "adapter")
        if kind == "model":
            return fetch_model(reference)
        directory = fetch_config(reference)
        if not is_native(directory) and not (directory / "config.json").is_file():
            _require_weights(reference)
        return directory

    def refuse(self, reference: str, files: Sequence[str]) -> None:
        """Raise nothing: the hub has no names for files other than safetensors."""


BUILTIN = {"hub": Hub()}
"""The locators of this wheel by name."""


def fetch_model(reference: str) -> Path:
    """Return the local directory of a hub model, downloading the files that a run needs and the hub's cache lacks.

    The configuration comes first, so that an unsupported model is refused before its weights are downloaded. Raises
    ModelError, NoWeightsError for a repository without usable weights.
    """
    directory = fetch_config(reference)
    if not is_native(directory) and not (directory / "config.json").is_file():
        _require_weights(reference)
    if is_native(directory):
        weights = ["weights-*.safetensors"]
    else:
        read_config(directory)
        weights = sorted(set(read_index(directory).values())) if (directory / INDEX).exists() else [SINGLE]
    commit = f"{reference.partition('@')[0]}@{directory.name}"  # a branch may move in between
    try:
        directory = fetch(
            commit, [*weights, *CONFIG_FILES, *TOKENIZER_FILES, CHAT_TEMPLATES, CONVERTED_TEMPLATES, MANIFEST, INDEX]
        )
    except ModelError as error:
        raise ModelError(error.what.replace(commit, reference), error.why, error.remedy) from None
    if not is_native(directory) and not (directory / INDEX).is_file() and not (directory / SINGLE).is_file():
        _require_weights(reference)
    return directory


def _require_weights(reference: str) -> None:
    """Raise NoWeightsError for a repository without usable weights."""
    remedy = f"name a repository with {SINGLE}, or with {INDEX}"
    raise NoWeightsError(reference, f"holds no {SINGLE} and no {INDEX}", remedy, listing(reference)[1])


def fetch_config(reference: str) -> Path:
    """Return the local directory of a hub model that has at least the configuration; raises ModelError."""
    return fetch(reference, [*CONFIG_FILES, MANIFEST, INDEX])


def listing(reference: str) -> tuple[str, list[str]]:
    """Return ``org/name@commit`` and the paths of all files of a hub repository; raises ModelError.

    If the hub cannot be reached, the paths are those in its local cache.
    """
    repo, revision = _parsed(reference)
    from huggingface_hub import HfApi, errors, snapshot_download

    with _explained(reference, repo, revision, "model"):
        try:
            info = HfApi().model_info(repo, revision=revision)
            return f"{repo}@{info.sha}", [file.rfilename for file in info.siblings or []]
        except (errors.HFValidationError, errors.RevisionNotFoundError):
            raise
        except Exception as error:  # from the network library in use
            unreached = error if isinstance(error, OSError) else OSError(str(error))
        try:
            cached = snapshot_download(repo, revision=revision, local_files_only=True, allow_patterns=[])
        except errors.LocalEntryNotFoundError:
            raise unreached from None
        directory = Path(cached)
        found = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
        return f"{repo}@{directory.name}", sorted(found)


def fetch(reference: str, files: Sequence[str], kind: str = "model") -> Path:
    """Return the local directory of a hub repository, downloading the ``files`` that the hub's cache lacks.

    huggingface_hub honours HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. Raises ModelError with a remedy if the model does
    not exist, is not public, or cannot be reached.
    """
    repo, revision = _parsed(reference)
    from huggingface_hub import snapshot_download

    with _explained(reference, repo, revision, kind):
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(files)))


def _parsed(reference: str) -> tuple[str, str | None]:
    match = NAME.fullmatch(reference)
    if match is None:
        raise ModelError(reference, "is not a hub name", "write org/name or org/name@revision")
    return match["repo"], match["revision"]


@contextlib.contextmanager
def _explained(reference: str, repo: str, revision: str | None, kind: str) -> Iterator[None]:
    """Turn the errors of huggingface_hub into a ModelError with a remedy."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.HFValidationError:
        raise ModelError(reference[:200], "is a name that the hub does not allow", "write org/name") from None
    except errors.GatedRepoError:
        remedy = f"accept its terms on the hub's page of {repo}, then set HF_TOKEN or run: hf auth login"
        raise ModelError(reference, "access is restricted", remedy) from None
    except errors.RevisionNotFoundError:
        raise ModelError(reference, f"has no revision {revision}", "check the branch, tag or commit") from None
    except errors.RepositoryNotFoundError:
        remedy = "check the name; for a private model set HF_TOKEN or run: hf auth login"
        raise ModelError(reference, f"is neither a local directory nor a public {kind} of the hub", remedy) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HfHubHTTPError, OSError) as error:
        if constants.HF_HUB_OFFLINE:
            why = "is not in the local hub cache and HF_HUB_OFFLINE is set"
            remedy = "unset HF_HUB_OFFLINE to download it, or give a local directory"
        else:
            why = f"cannot be downloaded ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
            remedy = (
                f"check the network and try again, or download it elsewhere (hf download {repo}) and give the directory"
            )
        raise ModelError(reference, why, remedy) from None
    except ValueError as error:
        remedy = f"remove the folder models--{repo.replace('/', '--')} from it, and download the model again"
        raise ModelError(reference, f"is damaged in the hub's cache ({error})", remedy) from None
