"""Ministral: Mistral, with windows in the layers that ``layer_types`` names.

``models/ministral/modeling_ministral.py`` of transformers.
"""

from infeng_core.models.decoder import graph
from infeng_core.models.mistral import terms, weights

__all__ = ["ARCHITECTURES", "FAMILY", "graph", "terms", "weights"]

FAMILY = "ministral"
ARCHITECTURES = ("MinistralForCausalLM",)
