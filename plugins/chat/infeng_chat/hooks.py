"""What this plugin adds."""
