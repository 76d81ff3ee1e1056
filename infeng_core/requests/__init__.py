"""Both ends of a request: text to ids and parameters before the model, sampling and text after it."""
