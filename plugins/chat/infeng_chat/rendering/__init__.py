"""Messages to the text and ids of a prompt."""
