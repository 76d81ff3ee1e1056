"""The settings of an engine: manifests, their schema, the origin of each value."""
