"""Routes of the server in the forms of other servers: Anthropic, Ollama, llama.cpp, rerankers."""

__version__ = "0.1.0"
