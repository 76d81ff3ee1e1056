"""The machine: processor features, topology, memory."""
