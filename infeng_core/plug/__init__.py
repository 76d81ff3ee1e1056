"""Everything that can differ: its hooks, what is installed, and what each plugin owes."""
