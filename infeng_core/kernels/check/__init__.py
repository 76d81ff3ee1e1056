"""Each kernel runs in a child process and is compared with the reference before the engine uses it."""
