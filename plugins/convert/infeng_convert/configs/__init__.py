"""Reading of a model's config.json."""
