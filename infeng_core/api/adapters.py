"""Names for readers of adapter files and for wheels that pack adapters ahead of time."""

from infeng_core.api.lazy import Names

_NAMES = Names(
    __name__,
    {
        "infeng_core.formats.adapters.artifact": (
            "Artifact",
            "read_artifact",
            "write_artifact",
        ),
        "infeng_core.formats.adapters.bounds": ("MAX_RANK",),
        "infeng_core.formats.adapters.load": ("find_adapter",),
        "infeng_core.formats.adapters.packed": ("AdapterDtype",),
        "infeng_core.formats.adapters.range_check": ("check_range",),
        "infeng_core.formats.adapters.readers": ("AdapterReader",),
        "infeng_core.formats.adapters.snapshot": (
            "Snapshot",
            "as_adapter_error",
            "read_settled",
        ),
        "infeng_core.formats.adapters.survey": (
            "AdapterSurvey",
            "survey_adapter",
        ),
        "infeng_core.formats.adapters.target_modules": (
            "TargetModule",
            "TargetModules",
            "target_modules",
        ),
        "infeng_core.formats.adapters.weights": (
            "AdapterWeights",
            "Delta",
        ),
        "infeng_core.formats.safetensors": (
            "Header",
            "read_header",
        ),
        "infeng_core.models.multimodal": (
            "outside",
            "prefixes",
        ),
    },
    {
        "ARTIFACT_FILE": ("infeng_core.formats.adapters.artifact", "FILE"),
        "describe_artifact": ("infeng_core.formats.adapters.artifact", "describe"),
        "load_model": ("infeng_core.formats.loader", "load"),
        "pack_adapter": ("infeng_core.formats.adapters.packing", "pack"),
        "recognizing_adapter": ("infeng_core.formats.adapters.readers", "recognizing"),
    },
)

__all__ = _NAMES.all()
__getattr__ = _NAMES.imported
__dir__ = _NAMES.all
homes = _NAMES.homes
