"""A request on the engine's two sides: text to ids and parameters before the model, sampling and text after it."""
