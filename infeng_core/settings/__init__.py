"""What an engine is assembled from: manifests, their schema, where each value came from."""
