"""Tasks that a model answers: GSM8K, HumanEval, MBPP."""
