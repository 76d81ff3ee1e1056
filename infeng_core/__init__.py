"""INF-ENG: a CPU-native LLM inference engine that serves many LoRA adapters in one batch."""

__version__ = "0.1.0"
