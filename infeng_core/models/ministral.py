"""Ministral: Mistral, with windows in the layers that ``layer_types`` names.

``models/ministral/modeling_ministral.py`` of transformers.
"""

from infeng_core.models.decoder import graph
from infeng_core.models.mistral import DEFAULTS, terms, weights

__all__ = ["ARCHITECTURES", "DEFAULTS", "FAMILY", "graph", "terms", "weights"]

FAMILY = "ministral"
ARCHITECTURES = ("MinistralForCausalLM",)
