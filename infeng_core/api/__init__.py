"""The names that every plugin, benchmark and server may import: errors, hooks, the engine, requests, settings, files.

The modules beside this one hold further names: ``adapters`` (readers of adapter files, packed adapters), ``engines``
(backends, schedulers, prefix stores, observers), ``formats`` (readers, writers, quantizers, the graph of a model),
``kernels`` (native objects, problems, cases, the choice of kernels) and ``servers`` (the command line and serving).
Everything else of ``infeng_core`` may change without notice.

``API_VERSION`` is the version of these modules and of the hooks. A plugin.yaml states the version that its plugin was
written for (``api: 1``); a newer one than the engine's is refused. From the first release on names are added within a
version, and the removal or a change of meaning of a name raises it.
"""

from infeng_core.api.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
