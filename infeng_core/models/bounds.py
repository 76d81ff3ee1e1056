"""The bounds of a model's sizes.

They lie far above any real model: a larger size means a broken file, and products of two stay within 64 bits.
"""

MAX_WIDTH = 1 << 20
MAX_LAYERS = 4096
MAX_HEADS = 1 << 14
MAX_HEAD_DIM = 4096
MAX_VOCAB = 1 << 24
MAX_POSITIONS = 1 << 28
MAX_EXPERTS = 4096
MAX_CHOSEN = 64
MAX_ALL_EXPERTS = 1 << 16  # of all layers: the layout has parts for each expert

ROPE_FACTOR = (1.0, 1e6)
ROPE_THETA = (1e-3, 1e15)
