"""What this machine is: processor features, topology, memory."""
