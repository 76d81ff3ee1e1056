"""Names for measuring and checking kernels: native objects, problems, the machine."""

from infeng_core.api.lazy import Names

_NAMES = Names(
    __name__,
    {
        "infeng_core._native": ("Kernel", "KvCache", "Library", "Pool", "Problem", "Program"),
        "infeng_core.backends.native.executable": ("plan",),
        "infeng_core.backends.native.outline": ("Outline", "shape_and_formats"),
        "infeng_core.kernels.check.case": ("OneOp",),
        "infeng_core.kernels.check.lora": ("A_FORMATS", "RandomAdapters", "a_form"),
        "infeng_core.kernels.choice": ("Selector",),
        "infeng_core.kernels.libraries": ("REFERENCE",),
        "infeng_core.kernels.problems": ("describe", "row_ranges"),
        "infeng_core.machine.cpu": ("Cpu", "NEEDS", "closure", "detect"),
        "infeng_core.machine.system": ("machine", "memory"),
        "infeng_core.telemetry.process": ("Footprint", "footprint", "peak_rss"),
    },
)

__all__ = _NAMES.all()
__getattr__ = _NAMES.imported
__dir__ = _NAMES.all
homes = _NAMES.homes
