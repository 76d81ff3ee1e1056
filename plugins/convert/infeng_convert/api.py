"""The names that plugins may import from this wheel; everything else may change without notice.

``conversion`` in docs/adding-a-plugin.md says what each name is for.
"""

from infeng_core.api.lazy import Names

_NAMES = Names(
    __name__,
    {
        "infeng_convert.activations": ("fitting",),
        "infeng_convert.atomic": (
            "locked",
            "replacing",
            "require_ours",
        ),
        "infeng_convert.cached": ("cached_model",),
        "infeng_convert.cli.options": (
            "add_conversion_options",
            "say_converted",
        ),
        "infeng_convert.conversion": (
            "convert",
            "pack_checkpoint",
        ),
        "infeng_convert.huggingface": ("read_config",),
        "infeng_convert.identity": ("conversion_key",),
        "infeng_convert.interfaces.calibrators": (
            "CalibrationSample",
            "Calibrator",
            "CalibratorFactory",
            "Losses",
            "Statistics",
            "Text",
        ),
        "infeng_convert.interfaces.hooks": (
            "CALIBRATORS",
            "MODEL_READERS",
            "MODEL_WRITERS",
            "QUANTIZERS",
            "SOURCES",
        ),
        "infeng_convert.interfaces.quantizers": (
            "Kept",
            "Moments",
            "QuantTarget",
            "Quantized",
            "Quantizer",
            "Seen",
            "WithMinima",
        ),
        "infeng_convert.interfaces.readers": (
            "Checkpoint",
            "Description",
            "ModelFiles",
            "ModelReader",
            "ModelSource",
            "ReaderLookup",
        ),
        "infeng_convert.interfaces.sources": ("Source",),
        "infeng_convert.interfaces.writers": (
            "Export",
            "ExportPlan",
            "ModelWriter",
        ),
        "infeng_convert.kept_integers": (
            "MXFP4_VALUES",
            "NEAREST",
            "halved",
            "require_unturned",
        ),
        "infeng_convert.packing": (
            "gather_vector",
            "pack_tensor",
        ),
        "infeng_convert.profiles": (
            "is_inner",
            "weights_of",
        ),
        "infeng_convert.providers": ("reader_of",),
        "infeng_convert.quantizers": (
            "Nearest",
            "QuantizerChoice",
            "quantizer_of",
        ),
        "infeng_convert.sentencepiece_vocab": (
            "BYTE",
            "BYTE_PIECE",
            "CONTROL",
            "NORMAL",
            "SPACE",
            "SentencePieceVocab",
            "UNKNOWN",
            "UNUSED",
            "USER_DEFINED",
        ),
        "infeng_convert.sources": ("find",),
        "infeng_convert.splitting": (
            "LLAMA3_SPLITTING",
            "QWEN2_SPLITTING",
            "Splitting",
        ),
    },
    {
        "hub_fetch": ("infeng_convert.hub", "fetch"),
        "hub_listing": ("infeng_convert.hub", "listing"),
    },
)

__all__ = _NAMES.all()
__getattr__ = _NAMES.imported
__dir__ = _NAMES.all
homes = _NAMES.homes
