"""Weight formats whose linears read other activations than their own: wider groups, or rotated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infeng_core.api.formats import BUILTIN, FormatChoice, FormatLookup, QuantFormat, builtin_format, variable_formats
from infeng_core.api.formats import format_misfit as misfit
from infeng_core.api.formats import format_over as over


def choice_over(
    choice: FormatChoice, group: int | None, *, is_rotated: bool | None, lookup: FormatLookup
) -> FormatChoice:
    """Return ``choice`` with other activations for formats with integer sub-scales, except for embeddings.

    None keeps a format's own setting. Raises UsageError if no format has sub-scales.
    """
    formats = all_over((choice.base, *choice.patterns.values()), group, is_rotated=is_rotated, lookup=lookup)
    patterns = {name: format if name == "embed" else formats[format] for name, format in choice.patterns.items()}
    return replace(choice, base=formats[choice.base], patterns=patterns)


def fitting(name: str, k: int, format: QuantFormat) -> QuantFormat:
    """Return ``format``, or the plain format of the same bytes if the tensor does not fit it."""
    return BUILTIN[format.stored] if misfit(name, k, format) else format


def all_over(
    names: Sequence[str], group: int | None, *, is_rotated: bool | None, lookup: FormatLookup = builtin_format
) -> dict[str, str]:
    """Return the formats ``names`` over other activations, by their names; formats without integer sub-scales stay.

    None keeps a format's own setting. Raises UsageError if a change was asked for and all would stay.
    """
    formats = {name: lookup(name) for name in names}

    def changed(name: str) -> str:
        found = formats[name]
        if found.stored not in variable_formats(group or found.group):
            return name
        turned = found.is_rotated if is_rotated is None else is_rotated
        return over(found, group or found.group, is_rotated=turned).name

    is_asked = (group or 64) != 64 or is_rotated
    if is_asked and not any(format.stored in variable_formats(group or 64) for format in formats.values()):
        over(formats[names[0]], group or 64, is_rotated=bool(is_rotated))  # its error lists the formats that could
    return {name: changed(name) for name in names}
