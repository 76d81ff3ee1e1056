"""Names for commands, chats and servers."""

from infeng_core.cli import emit
from infeng_core.cli.generation import (
    add_model_options,
    add_sampling_options,
    model_options,
    sampling_params,
)
from infeng_core.cli.lora import adapters_of, add_lora_options, as_text, loras, parse_adapter, parse_lora
from infeng_core.cli.parser import Parser, add_model
from infeng_core.cli.processors import option_groups, processors_of, request_fields
from infeng_core.formats.side_files import side_files
from infeng_core.log import is_json
from infeng_core.requests.checks import MOST_BAD_CHARACTERS, MOST_BAD_WORDS
from infeng_core.requests.parameters import SAMPLING
from infeng_core.requests.sampler import draw_seed
from infeng_core.settings.schema import Size
from infeng_core.telemetry.startup_times import StartupTimes

__all__ = [
    "MOST_BAD_CHARACTERS", "MOST_BAD_WORDS", "SAMPLING", "Parser", "Size", "StartupTimes", "adapters_of",
    "add_lora_options", "add_model", "add_model_options", "add_sampling_options", "as_text", "draw_seed", "emit",
    "is_json", "loras", "model_options", "option_groups", "parse_adapter", "parse_lora", "processors_of",
    "request_fields", "sampling_params", "side_files",
]  # fmt: skip
