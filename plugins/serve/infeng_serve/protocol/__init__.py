"""The wire protocol, without I/O: converts JSON to requests of the engine, and its events to frames and bodies."""
