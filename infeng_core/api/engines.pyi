"""Names for parts of an engine: backends, schedulers, prefix stores, observers."""

from infeng_core._native import NUMERICS
from infeng_core.backends.interface import (
    AsynchronousRuns,
    Backend,
    BlockAccess,
    BoundOp,
    DeviceSampling,
    Executable,
    HiddenStates,
    InterruptedStepError,
    Measurable,
    Measured,
    NotFiniteError,
    StreamedWeights,
    device_of,
)
from infeng_core.backends.native.executable import NativeBackend
from infeng_core.backends.native.split import Split
from infeng_core.backends.saved_prefixes import PrefixEntry, PrefixStore
from infeng_core.batch import (
    BLOCK_TOKENS,
    NOT_FINITE,
    AdapterHandle,
    AdapterRows,
    Batch,
    Draws,
    Limits,
    RunningRequest,
    Segment,
)
from infeng_core.formats.adapters.packed import LoraPart, LoraTensor, PackedAdapter
from infeng_core.scheduling.blocks import BlockPool
from infeng_core.scheduling.cost import CostModel
from infeng_core.scheduling.drafts import DraftedRequest, Drafter
from infeng_core.scheduling.fcfs import FirstCome
from infeng_core.scheduling.limits import limits_of, windows_of
from infeng_core.scheduling.policy import Policy, Served
from infeng_core.scheduling.prefix import PrefixTree
from infeng_core.scheduling.prefix_cache import PrefixCache
from infeng_core.scheduling.scheduler import Scheduler
from infeng_core.scheduling.schedulers import Schedulers
from infeng_core.scheduling.step_budget import rows_of_prompt
from infeng_core.scheduling.tables import Needs
from infeng_core.telemetry.observers import Observer, Stage, StepReport

__all__ = [
    "BLOCK_TOKENS", "NOT_FINITE", "NUMERICS", "AdapterHandle", "AdapterRows", "AsynchronousRuns", "Backend", "Batch",
    "BlockAccess", "BlockPool", "BoundOp", "CostModel", "DeviceSampling", "DraftedRequest", "Drafter", "Draws",
    "Executable", "FirstCome", "HiddenStates", "InterruptedStepError", "Limits", "LoraPart", "LoraTensor", "Measurable",
    "Measured", "NativeBackend", "Needs", "NotFiniteError", "Observer", "PackedAdapter", "Policy", "PrefixCache",
    "PrefixEntry", "PrefixStore", "PrefixTree", "RunningRequest", "Scheduler", "Schedulers", "Segment", "Served",
    "Split", "Stage", "StepReport", "StreamedWeights", "device_of", "limits_of", "rows_of_prompt",
    "windows_of",
]  # fmt: skip
