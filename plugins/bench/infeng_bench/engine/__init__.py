"""An engine in this process under measurement."""
