"""What a model writes to content, reasoning and calls, as it comes."""
