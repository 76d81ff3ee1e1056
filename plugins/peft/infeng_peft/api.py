"""The names that plugins may import from this wheel; everything else may change without notice.

``adapters`` in docs/adding-a-plugin.md says what each name is for.
"""

from infeng_peft.activated import check_activated
from infeng_peft.artifact import describe, write_artifact
from infeng_peft.conversion import AdapterConversion, convert_adapter
from infeng_peft.packing import pack
from infeng_peft.reading import WeightsReader, weights_of
from infeng_peft.survey import AdapterSurvey, survey_adapter
from infeng_peft.weights import AdapterWeights, Delta

__all__ = [
    "AdapterConversion",
    "AdapterSurvey",
    "AdapterWeights",
    "Delta",
    "WeightsReader",
    "check_activated",
    "convert_adapter",
    "describe",
    "pack",
    "survey_adapter",
    "weights_of",
    "write_artifact",
]
