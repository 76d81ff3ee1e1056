"""Hugging Face directories whose weights others have quantized: GPTQ, AWQ, compressed-tensors, AutoRound, FP8."""
