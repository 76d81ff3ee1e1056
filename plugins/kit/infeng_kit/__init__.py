"""``infeng plugins new`` begins a plugin, ``infeng plugins check`` checks one."""
