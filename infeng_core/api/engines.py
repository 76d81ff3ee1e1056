"""Names for parts of an engine: backends, schedulers, prefix stores, observers."""

from infeng_core.api.lazy import Names

_NAMES = Names(
    __name__,
    {
        "infeng_core.backends.interface": (
            "Backend",
            "BlockAccess",
            "BoundOp",
            "Executable",
            "HiddenStates",
            "InterruptedStepError",
            "Measurable",
            "Measured",
            "NotFiniteError",
            "OpNames",
        ),
        "infeng_core.backends.saved_prefixes": ("PrefixEntry", "PrefixStore"),
        "infeng_core.batch": (
            "AdapterHandle",
            "BLOCK_TOKENS",
            "Batch",
            "Limits",
            "NOT_FINITE",
            "RunningRequest",
            "Segment",
        ),
        "infeng_core.formats.adapters.packed": ("LoraPart", "LoraTensor", "PackedAdapter"),
        "infeng_core.formats.adapters.stacked": ("unpack_stacked",),
        "infeng_core.scheduling.blocks": ("BlockPool",),
        "infeng_core.scheduling.cost": ("CostModel",),
        "infeng_core.scheduling.drafts": ("Drafter",),
        "infeng_core.scheduling.fcfs": ("FirstCome",),
        "infeng_core.scheduling.limits": ("limits_of", "windows_of"),
        "infeng_core.scheduling.policy": ("Policy", "Served"),
        "infeng_core.scheduling.prefix": ("PrefixTree",),
        "infeng_core.scheduling.prefix_cache": ("PrefixCache",),
        "infeng_core.scheduling.scheduler": ("Scheduler",),
        "infeng_core.scheduling.schedulers": ("Schedulers",),
        "infeng_core.scheduling.step_budget": ("rows_of_prompt",),
        "infeng_core.scheduling.tables": ("Needs",),
        "infeng_core.telemetry.observers": ("Observer", "Stage", "StepReport"),
    },
)

__all__ = _NAMES.all()
__getattr__ = _NAMES.imported
__dir__ = _NAMES.all
homes = _NAMES.homes
