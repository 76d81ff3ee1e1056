"""What goes over the wire, without any I/O: JSON to requests of the engine, its events to frames and bodies."""
