"""Model families: what a config.json means, how tensors are named, and which ops make a forward pass."""
