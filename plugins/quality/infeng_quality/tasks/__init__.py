"""Tasks: GSM8K, HumanEval, MBPP."""
