"""Ministral: Mistral, with windows in the layers that ``layer_types`` names.

``models/ministral/modeling_ministral.py`` of transformers.
"""

from infeng_convert.configs.families.mistral import DEFAULTS, terms

__all__ = ["DEFAULTS", "terms"]
