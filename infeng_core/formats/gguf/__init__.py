"""GGUF files: what llama.cpp and its tools write, read strictly and written."""
