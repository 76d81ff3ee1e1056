"""Verbs of `infeng bench`: each module has configure(parser) and run(arguments)."""
