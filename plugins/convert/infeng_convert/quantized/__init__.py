"""Hugging Face directories with quantized weights: GPTQ, AWQ, compressed-tensors, AutoRound, FP8."""
