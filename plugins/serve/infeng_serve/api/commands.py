"""What wheels need whose commands take the options of `infeng serve`; it may change with each version."""

from infeng_serve.command import Serve, keys_of

__all__ = ["Serve", "keys_of"]
