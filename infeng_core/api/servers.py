"""Names for commands, chats and servers."""

from infeng_core.api.lazy import Names

_NAMES = Names(
    __name__,
    {
        "infeng_core.cli": ("emit",),
        "infeng_core.cli.generation": (
            "add_model_options",
            "add_sampling_options",
            "model_options",
            "sampling_params",
            "without_words",
        ),
        "infeng_core.cli.lora": (
            "adapters_of",
            "add_lora_options",
            "as_text",
            "loras",
            "parse_adapter",
            "parse_lora",
        ),
        "infeng_core.cli.parser": (
            "Parser",
            "add_model",
        ),
        "infeng_core.cli.processors": (
            "processors_of",
            "request_fields",
        ),
        "infeng_core.formats.side_files": ("side_files",),
        "infeng_core.log": (
            "hear_others",
            "is_json",
        ),
        "infeng_core.machine.slices": ("shorten_slice",),
        "infeng_core.requests.bad_words": ("bad_words",),
        "infeng_core.requests.parameters": ("SAMPLING",),
        "infeng_core.requests.sampler": ("draw_seed",),
        "infeng_core.settings.schema": ("Size",),
        "infeng_core.telemetry.startup_times": ("StartupTimes",),
    },
)

__all__ = _NAMES.all()
__getattr__ = _NAMES.imported
__dir__ = _NAMES.all
homes = _NAMES.homes
