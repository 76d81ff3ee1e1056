"""The choice of a kernel for each problem, and the reason for it.

Kernels rank by: forced > manifest order > superset of features > priority > name. The result does not depend on the
order in which plugins are found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from infeng_core import _native
from infeng_core.errors import KernelError, unknown_key_remedy
from infeng_core.kernels import problems
from infeng_core.kernels.checks import Judge
from infeng_core.kernels.libraries import (
    REFERENCE,
    LibraryState,
    library_states,
    missing_wheels,
    plain_kernel,
    rank,
)
from infeng_core.kernels.lock import Lock
from infeng_core.log import get_logger, warn_once
from infeng_core.machine.cpu import Cpu, closure
from infeng_core.plug import wheels
from infeng_core.plug.manager import Plugins
from infeng_core.plug.reason import DECLINES, NOBODY, READY, Reason, unmet
from infeng_core.plug.wheels import kernels_remedy
from infeng_core.settings.config import EngineConfig

log = get_logger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A kernel that was considered; of a library that was never mapped, only the name in ``kernel`` is known."""

    library: str
    kernel: str
    reason: Reason
    native: _native.Kernel | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Decision:
    """The kernel chosen for a problem, and the outcome of every candidate, best first."""

    problem: _native.Problem
    chosen: Candidate | None
    candidates: tuple[Candidate, ...]

    def trusts(self, kernel: _native.Kernel) -> bool:
        """Return whether ``kernel`` was chosen, or lost only to a better one."""
        fit = [(c.library, c.kernel) for c in self.candidates if c.reason.code in ("chosen", "outranked")]
        return (kernel.library, kernel.name) in fit


class Selector:
    """Chooses kernels for one engine. ``decisions`` keeps one decision per distinct problem, in order."""

    def __init__(self, plugins: Plugins, config: EngineConfig, cpu: Cpu, device: str | None = None) -> None:
        """Raises KernelError if the manifest forces a kernel that does not exist or cannot run here.

        device: the library on whose device all kernels compute; None: the host.
        """
        self.config = config
        self.cpu = cpu
        self._plugins = plugins
        self._device = device
        self.states = library_states(plugins)
        self.device = self._opened_device()
        """The device on which all kernels compute; None: the host."""
        self._by_name = {state.name: state for state in self.states}
        self._judges: dict[str, Judge | None] = {}
        self._lock = Lock.read(config.kernels.lock) if config.kernels.lock else None
        self._decisions: dict[_native.Problem, Decision] = {}
        self._kernels: dict[tuple[str, str], list[_native.Kernel]] = {}
        self._unusable: dict[tuple[str, str], Reason | None] = {}
        self._needs: dict[tuple[str, str], frozenset[str]] = {}
        self.seconds = 0.0
        """Time spent so far on choosing kernels, first-use checks included."""
        for op, target in config.kernels.force.items():
            self._require(op, target)
        if missing := missing_wheels(plugins):
            warn_once(log, "kernels for this processor are not installed", remedy=f"pip install {' '.join(missing)}")

    def of_host(self) -> Selector:
        """Return a selector of kernels that compute on the host, for the same engine."""
        return Selector(self._plugins, self.config, self.cpu)

    @property
    def decisions(self) -> list[Decision]:
        """Every decision so far."""
        return list(self._decisions.values())

    def choose(self, problem: _native.Problem) -> _native.Kernel:
        """Return the kernel for ``problem``; raises KernelError if none fits, or if ``kernels.lock`` names another."""
        decision = self.decide(problem)
        if decision.chosen is None or decision.chosen.native is None:
            raise KernelError(problems.describe(problem), "no kernel fits", self._remedy(problem, decision))
        if self._lock is not None:
            state = self._by_name[decision.chosen.library]
            self._plugins.vouch(self._plugins.plugin(state.plugin.name))
            self._lock.require(problems.fields(problem), decision.chosen.library, decision.chosen.kernel, state.sha256)
        return decision.chosen.native

    def decide(self, problem: _native.Problem) -> Decision:
        """Return the decision for ``problem``; a problem without a fitting kernel is no error."""
        if problem not in self._decisions:
            begin = perf_counter()
            decision = self._decide(problem)
            self.seconds += perf_counter() - begin
            self._decisions[problem] = decision
            chosen = decision.chosen
            fields = (
                {"library": chosen.library, "kernel": chosen.kernel, "reason": str(chosen.reason)} if chosen else {}
            )
            others = {f"{c.library}/{c.kernel}": c.reason.code for c in decision.candidates if c is not chosen}
            log.debug(
                "kernel chosen" if chosen else "no kernel", problem=problems.describe(problem), **fields, others=others
            )
        return self._decisions[problem]

    def operands(self, op: str) -> tuple[_native.Operand, ...]:
        """Return the operands of a row op; raises KernelError, which names the plugin that would bring it."""
        if op in _native.OPS or any(op in state.native.ops for state in self.states if state.native is not None):
            found = _native.row_ops().get(op)
            if found is not None:
                return found
            raise KernelError(f"op {op}", "it is no op over rows alone", f"those are {', '.join(_native.row_ops())}")
        raise KernelError(f"op {op}", *self._absent(op))

    def fits(self, kernel: _native.Kernel, problem: _native.Problem) -> bool:
        """Return whether ``kernel`` can do ``problem``, its epilogues included; a child process is asked first."""
        if not set(problem.epilogues) <= set(kernel.fuses):
            return False
        begin = perf_counter()
        reason = self._accepts(self._by_name[kernel.library], kernel, problem)
        self.seconds += perf_counter() - begin
        return self._blamed(kernel, problem, reason) is READY

    def _opened_device(self) -> _native.Device | None:
        if self._device is None:
            return None
        state = next((state for state in self.states if state.name == self._device), None)
        if state is None or state.native is None or state.native.device is None:
            why = f"its library {self._device} is not there" if state is None else str(state.reason)
            raise KernelError("the backend's device", why, "infeng doctor shows what is missing")
        if not state.native.device.name:
            raise KernelError(f"device of {self._device}", state.native.device.why, "use another backend")
        return state.native.device

    def is_refused(self, kernel: _native.Kernel) -> bool:
        """Return whether ``kernel`` has failed, perhaps after it was chosen, and must not be used."""
        check = self._by_name[kernel.library].check
        return check is not None and check.is_refused(kernel.name)

    def report(self) -> None:
        """Log in one line how many of the problems so far each library serves; the debug level lists each problem."""
        chosen = Counter(one.chosen.library for one in self._decisions.values() if one.chosen is not None)
        log.info("kernels chosen", problems=len(self._decisions), seconds=round(self.seconds, 3), **chosen)

    def close(self) -> None:
        """End the child processes that try libraries; idle ones also end by themselves."""
        for state in self.states:
            if state.check is not None:
                state.check.close()

    def _decide(self, problem: _native.Problem) -> Decision:
        target = self.config.kernels.force.get(problem.op)
        eligible: list[_native.Kernel] = []
        seen: list[Candidate] = []
        for state in self.states:
            for kernel in self._of_op(state, problem.op):
                reason = self._objection(state, kernel, problem, target)
                if reason is None:
                    eligible.append(kernel)
                else:
                    seen.append(Candidate(state.name, kernel.name, reason))
            if state.native is None:
                notes = [note.name for note in state.plugin.kernels if note.op == problem.op]
                seen += [Candidate(state.name, name, state.reason) for name in notes]
        ranked: list[Candidate] = []
        chosen: Candidate | None = None
        for kernel in self._ranked(eligible):
            reason = Reason("outranked", f"{chosen.library}/{chosen.kernel} ranks higher") if chosen else READY
            if chosen is None and self.config.kernels.verify:
                reason = self._blamed(kernel, problem, self._agrees(kernel, problem))
            if chosen is None and reason is READY:
                chosen = Candidate(kernel.library, kernel.name, self._merit(kernel, eligible, target), kernel)
                ranked.append(chosen)
            else:
                ranked.append(Candidate(kernel.library, kernel.name, reason))
        return Decision(problem, chosen, (*ranked, *seen))

    def _of_op(self, state: LibraryState, op: str) -> list[_native.Kernel]:
        """Return the kernels that a library has for an op."""
        if (state.name, op) not in self._kernels:
            kernels = state.native.kernels if state.native else ()
            self._kernels[state.name, op] = [kernel for kernel in kernels if kernel.op == op]
        return self._kernels[state.name, op]

    def _objection(
        self, state: LibraryState, kernel: _native.Kernel, problem: _native.Problem, target: str | None
    ) -> Reason | None:
        """Return why ``kernel`` cannot serve ``problem``, or None."""
        if unusable := self._objection_to_all(state, kernel):
            return unusable
        if (kernel.device.library if kernel.device else None) != self._device:
            return Reason("other_device", f"computes on {state.name if kernel.device else 'the host'}")
        if target is not None and target not in (state.name, f"{state.name}/{kernel.name}"):
            return Reason("not_forced", f"kernels.force says {target}")
        if target is None and rank(state.name, self.config) == len(self.config.kernels.order):
            return Reason("not_in_order", remedy=f"add {state.name} or * to kernels.order")
        if kernel.numerics == "approx" and self.config.kernels.numerics == "exact":
            return Reason("approximate", remedy="set kernels.numerics: fast to allow it")
        missing = sorted(set(problem.epilogues) - set(kernel.fuses))
        if missing:
            return Reason("cannot_fuse", f"cannot take {', '.join(missing)} into itself")
        beyond = sorted(set(problem.needs) - set(kernel.handles))
        if beyond:
            return Reason("cannot_handle", f"does not handle {', '.join(beyond)}")
        reason = self._blamed(kernel, problem, self._accepts(state, kernel, problem))
        return None if reason is READY else reason

    def _accepts(self, state: LibraryState, kernel: _native.Kernel, problem: _native.Problem) -> Reason:
        """Return READY if ``kernel`` accepts ``problem``, DECLINES, or the fault that its check found."""
        if state.check is None:
            return READY if kernel.accepts(problem) else DECLINES
        if state.native is not None and problem.weight not in (None, *_native.WEIGHT_FORMATS, *state.native.formats):
            return DECLINES  # a format that the library does not know, so that its check would not know its name either
        return state.check.fits(kernel, problem)

    def _agrees(self, kernel: _native.Kernel, problem: _native.Problem) -> Reason:
        """Return READY, or why ``kernel``, which accepts ``problem``, must not serve anything."""
        check = self._by_name[kernel.library].check
        if check is None:
            return READY
        if problem.op not in self._judges:
            plain = plain_kernel(problem.op, self.states, self.cpu)
            self._judges[problem.op] = None if plain is None else (plain[0].path, plain[0].sha256, plain[1])
        return check.agrees(kernel, problem, self._judges[problem.op])

    def _objection_to_all(self, state: LibraryState, kernel: _native.Kernel) -> Reason | None:
        """Return why ``kernel`` cannot serve any problem, or None."""
        key = state.name, kernel.name
        if key not in self._unusable:
            self._unusable[key] = unmet(self.cpu, None, sorted(state.features_of(kernel.name, kernel.features)))
            if "/".join(key) in self.config.kernels.disable:
                self._unusable[key] = Reason("disabled", "listed in kernels.disable")
        return self._unusable[key] if state.reason is READY else state.reason

    def _features(self, kernel: _native.Kernel) -> frozenset[str]:
        key = kernel.library, kernel.name
        if key not in self._needs:
            self._needs[key] = closure(self._by_name[kernel.library].features_of(kernel.name, kernel.features))
        return self._needs[key]

    def _ranked(self, kernels: Sequence[_native.Kernel]) -> list[_native.Kernel]:
        """Sort by manifest order; within one place, kernels whose features no other kernel's exceed come first."""
        result: list[_native.Kernel] = []
        for place in sorted({rank(kernel.library, self.config) for kernel in kernels}):
            rest = [kernel for kernel in kernels if rank(kernel.library, self.config) == place]
            while rest:
                needs = {id(kernel): self._features(kernel) for kernel in rest}
                top = [k for k in rest if not any(needs[id(k)] < needs[id(other)] for other in rest)]
                best = min(top, key=lambda kernel: (-kernel.priority, kernel.library, kernel.name))
                result.append(best)
                rest.remove(best)
        return result

    def _merit(self, kernel: _native.Kernel, eligible: Sequence[_native.Kernel], target: str | None) -> Reason:
        """Return the reason why ``kernel`` was chosen."""
        if target is not None:
            return Reason("chosen", f"kernels.force says {target}")
        if len(eligible) == 1:
            return Reason("chosen", "the only one that fits")
        place = partial(rank, config=self.config)
        rivals = [other for other in eligible if other is not kernel]
        if all(place(other.library) > place(kernel.library) for other in rivals):
            return Reason("chosen", "first in kernels.order")
        peers = [other for other in rivals if place(other.library) == place(kernel.library)]
        if all(self._features(other) < self._features(kernel) for other in peers):
            return Reason("chosen", "uses the most of this processor")
        equals = [other for other in peers if not self._features(other) < self._features(kernel)]
        if all(other.priority < kernel.priority for other in equals):
            return Reason("chosen", "has the highest priority of those that use the most of this processor")
        return Reason("chosen", "first by name, equal in kernels.order, features and priority")

    def _blamed(self, kernel: _native.Kernel, problem: _native.Problem, reason: Reason) -> Reason:
        """Return ``reason``; if the plugin is at fault, also warn, and drop the decisions that trusted the kernel."""
        if reason.is_fault:
            self._decisions = {asked: known for asked, known in self._decisions.items() if not known.trusts(kernel)}
            what = f"kernel {kernel.library}/{kernel.name}"
            plugin = self._by_name[kernel.library].plugin.name
            remedy = f"update plugin {plugin}, or add {kernel.library} to kernels.disable"
            if self.config.kernels.strict:
                raise KernelError(f"{what}, {problems.describe(problem)}", reason.text, remedy)
            warn_once(log, f"{what} is not used", plugin=plugin, code=reason.code, reason=reason.text, remedy=remedy)
        return reason

    def _require(self, op: str, target: str) -> None:
        """Check an entry of ``kernels.force`` as far as this is possible without a problem."""
        where = f"kernels.force.{op}: {target} ({self.config.provenance.get('kernels.force', 'argument')})"
        library, _, kernel = target.partition("/")
        if library not in self._by_name:
            raise KernelError(where, f"no kernel library {library}", kernels_remedy(library, self._by_name))
        state = self._by_name[library]
        if state.native is None or state.reason is not READY:
            raise KernelError(where, str(state.reason), "force another library, or none")
        offers = {k.name: k for k in state.native.kernels if k.op == op}
        if not offers:
            raise KernelError(where, f"{library} has no kernel for {op}", f"its ops: {', '.join(_ops(state.native))}")
        if kernel and kernel not in offers:
            raise KernelError(where, f"{library} has no such kernel for {op}", unknown_key_remedy(kernel, offers))
        chosen = [offers[kernel]] if kernel else list(offers.values())
        lacking = [unmet(self.cpu, None, sorted(state.features_of(k.name, k.features))) for k in chosen]
        if all(lacking) and lacking[0]:
            raise KernelError(where, lacking[0].text, "force another kernel, or none")

    def _absent(self, op: str) -> tuple[str, str]:
        """Return why no open library describes an op, and what to do."""
        offering = [plugin for plugin in self._plugins.manifests if op in plugin.names("ops")]
        if not offering:
            return NOBODY, wheels.remedy("ops", op, self._plugins.names("ops"))
        plugin = next((plugin for plugin in offering if plugin.usable), offering[0])
        of = [state for state in self.states if state.plugin is plugin.manifest]
        faults = [fault for state in of if state.native is not None for fault in state.native.faults]
        reasons = [str(state.reason) for state in of if state.native is None]
        why = f"plugin {plugin.name} ({plugin.origin}) brings it, and cannot be used for it"
        return why, "; ".join(faults or reasons) or f"its library does not describe {op}: update the plugin"

    def _remedy(self, problem: _native.Problem, decision: Decision) -> str:
        target = self.config.kernels.force.get(problem.op)
        tried = "; ".join(
            f"{c.library}/{c.kernel}: {c.reason}" for c in decision.candidates if c.reason.code != "not_forced"
        )
        if target is not None:
            return f"kernels.force says {target} ({tried or 'not available'}); force another, or none"
        if REFERENCE not in self.config.kernels.order:
            return f"add {REFERENCE} to kernels.order ({tried or 'no library has this op'})"
        return tried or "install a plugin with a kernel for it"


def _ops(library: _native.Library) -> list[str]:
    return sorted({kernel.op for kernel in library.kernels})
