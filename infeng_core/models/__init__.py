"""Model families: the keys of config.json, the names of tensors, and the ops of a forward pass."""
