"""Adapters in PEFT's format: adapter_config.json and adapter_model.safetensors, checked against the base.

PEFT prefixes names with ``base_model.model.`` and omits the adapter's own name (``peft/utils/save_and_load.py``,
``get_peft_model_state_dict``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

from infeng_core.api import AdapterError
from infeng_core.api.adapters import Snapshot, TargetModule, TargetModules, read_settled, target_modules
from infeng_core.api.formats import ModelConfig, show
from infeng_peft.activated import check_activated
from infeng_peft.config import CONFIG_FILE, INVOCATION, TRAINED, PeftConfig, read_peft_config
from infeng_peft.names import Names
from infeng_peft.parameters import Floats, Parameter, parameters
from infeng_peft.tensor_file import TensorFile
from infeng_peft.weights import AdapterWeights, Delta, TrainedRows

WEIGHTS_FILE = "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt")
PREFIX = "base_model.model."
TO_SAFETENSORS = "load it with PEFT and save it again: model.save_pretrained(DIR, safe_serialization=True)"

EXPERTS = re.compile(r"\.experts\.|\.(in|out)put_linear\.")
MAX_PLACES = 1 << 24
"""The most trained tokens times tokens of the vocabulary, which are a factor of the rows in memory: 64 MiB in f32."""

ROWS = "token_adapter.trainable_tokens_delta"  # of trained tokens; PEFT replaces rows by them and adds nothing
ONE_EXPERT = re.compile(r"\.experts\.\d+\.")  # separate modules, up to transformers 4


def is_peft(directory: Path) -> bool:
    """Return whether a directory holds, or should hold, a PEFT adapter."""
    return any((directory / name).exists() for name in (CONFIG_FILE, WEIGHTS_FILE, *PICKLES))


def read_peft(directory: Path, base: ModelConfig) -> AdapterWeights:
    """Read an adapter and check that it fits ``base``; raises AdapterError naming file, tensor, reason and remedy."""
    path = directory / WEIGHTS_FILE

    def read(files: Snapshot) -> AdapterWeights:
        config = read_peft_config(directory, files)
        if not path.exists():
            _refuse_pickle(directory)
        return _Reader(directory, config, files, base).read()

    return read_settled(directory, read)


def _refuse_pickle(directory: Path) -> NoReturn:
    for name in PICKLES:
        if (directory / name).exists():
            why = "PyTorch pickle files can run code and are not read"
            raise AdapterError(f"{directory / name}", why, TO_SAFETENSORS)
    raise AdapterError(
        f"{directory}", f"has no {WEIGHTS_FILE}", f"give a complete adapter; a pickled one: {TO_SAFETENSORS}"
    )


class _Reader:
    """Determines the expected tensors, compares them with the file, then reads."""

    def __init__(self, directory: Path, config: PeftConfig, files: Snapshot, base: ModelConfig) -> None:
        self.directory = directory
        self.path = directory / WEIGHTS_FILE
        self.config = config
        self.files = files
        self.header = files.header(self.path)
        self.base = base
        self.sites: TargetModules = target_modules(base)
        self.names = Names(self.header.tensors, PREFIX, base.family)
        self.used: set[str] = set()

    def read(self) -> AdapterWeights:
        self.has_modules = any(map(ONE_EXPERT.search, self.header.tensors))
        targets = [site for site in self.sites.matrices.values() if self._is_target(site)]
        targets = self._with_tied(targets)
        check_activated(self.config.invocation, targets, self.base, partial(self.config.fields.fail, INVOCATION))
        saved = self._saved_modules()
        trained = self._trained_modules([site.module for site in targets], saved)
        known = parameters(self.sites) if self.config.target_parameters else {}
        stacks = [one for one in known.values() if self._targets_parameter(one.name)]
        if any(one.is_turned for one in stacks):
            why = f"names {show(stacks[0].name)}, whose matrices are stored turned: adapters of those are not read"
            self.config.fields.fail("target_parameters", why, "train on modules of attention")
        if not targets and not saved and not stacks:
            self.config.fields.fail(
                "target_modules", f"is {show(self.config.target_modules.given)}, which fits no module"
            )
        plans = {site.module: self._expect_delta(site) for site in targets}
        found = {one.name: self._expect_parameter(one) for one in stacks}
        saved_names = {module: self._expect_saved(module, shape) for module, shape in saved.items()}
        biases = self._expect_biases()
        rows = {module: self._expect_trained(module, *found) for module, found in trained.items()}
        below = self._expect_base_weights(targets) | self._expect_bases_below(trained)
        self._refuse_unknown()
        file = TensorFile(self.files, self.path, self.header)
        return AdapterWeights(
            source=self.directory,
            base_name=self.config.base_name,
            deltas={
                delta.site.module: delta for one in stacks for delta in self._of_experts(file, one, *found[one.name])
            }
            | {
                module: Delta(
                    self.sites.matrices[module],
                    scaling=self.config.scaling_of(self._outside(self.sites.matrices[module].target)),
                    **{key: self._floats(file, module, key, name) for key, name in plan.items()},  # type: ignore[arg-type]
                )
                for module, plan in plans.items()
            },
            biases={module: file.floats(name) for module, name in biases.items()},
            saved={module: file.floats(name) for module, name in saved_names.items()},
            base_weights={module: file.floats(name) for module, name in below.items()},
            invocation=self.config.invocation,
            trained={module: TrainedRows(trained[module][0], file.floats(name)) for module, name in rows.items()},
        )

    def _targets_parameter(self, name: str) -> bool:
        return self.config.is_target_parameter(self._outside(name))

    def _expect_parameter(self, one: Parameter) -> tuple[str, str, bool]:
        """Return the names of the tensors of experts' matrices, and whether A covers their inputs; raises."""
        rank = self.config.rank_of(self._outside(one.name))
        shapes: dict[str, tuple[int, ...]] = {}
        module = self._outside(one.name).rpartition(".")[0]
        for place in (module, f"{module}.base_layer"):  # of two parameters the second wraps the first
            names = [f"{PREFIX}{place}.lora_{side}.weight" for side in "AB"]
            infos = [self.header.tensors.get(name) for name in names]
            if any(info is None or name in self.used for info, name in zip(infos, names, strict=True)):
                continue
            a, b = (info.shape for info in infos if info is not None)
            try:
                is_straight = one.is_straight(a, b, rank, self.config.peft_version)
            except ValueError as error:
                remedy = f"add peft_version to {CONFIG_FILE}: that of the PEFT which saved it"
                raise AdapterError(f"{self.path}", f"tensor {names[0]}: {error}", remedy) from None
            if is_straight is not None:
                self.used.update(names)
                return names[0], names[1], is_straight
            shapes |= {names[0]: a, names[1]: b}
        if shapes:
            said = ", ".join(f"{name} is {shape}" for name, shape in shapes.items())
            why = f"tensor {said}: {len(one.sites)} experts of {one.rows} x {one.k} at rank {rank} have other shapes"
            raise AdapterError(f"{self.path}", why, self._remedy())
        why = f"tensor {PREFIX}{module}.lora_A.weight is missing, although {CONFIG_FILE} calls for {one.name}"
        raise AdapterError(f"{self.path}", why, "the adapter is incomplete: save or download it again")

    def _of_experts(self, file: TensorFile, one: Parameter, a: str, b: str, is_straight: bool) -> Iterator[Delta]:
        scaling = self.config.scaling_of(self._outside(one.name))
        for site, down, up in one.factors(file.floats(a), file.floats(b), is_straight=is_straight):
            yield Delta(site, down, up, scaling, magnitude=None, bias=None)

    def _floats(self, file: TensorFile, module: str, key: str, name: str | None) -> Floats | None:
        """Return a tensor of a module; of tensors by output, only the rows at its site."""
        site = self.sites.matrices[module]
        found = None if name is None else file.floats(name)
        return found if found is None or key == "a" or not site.part.of else found[site.rows]

    def _outside(self, name: str) -> str:
        """Return the name of a module or a tensor in the file and its configuration."""
        return self.names.outside(name)

    def _is_target(self, site: TargetModule) -> bool:
        if site.is_expert and not (self.has_modules and not site.part.of):
            return False  # the files would name parameters instead
        if site.kind == "linear" and not site.is_expert and self._targets_parameter(f"{site.target}.weight"):
            return True  # its tensors are the module's
        return self.config.is_target(self._outside(site.target), plain=site.kind == "linear")

    def _saved_modules(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the modules that ``modules_to_save`` names; raises for one that cannot be replaced."""
        shapes: dict[str, tuple[int, ...]] = {module: (size,) for module, (_, size) in self.sites.norms.items()}
        for site in self.sites.matrices.values():
            if site.kind != "linear":
                shapes[site.module] = (site.part.rows, site.k)
        for module in sorted(self.sites.modules()):
            if self.config.saves(self._outside(module)) and module not in shapes:
                why = f"names {module}; only embeddings, head and norms without a bias can be replaced"
                self.config.fields.fail("modules_to_save", why, "train such modules by LoRA instead")
        saved = {module: shape for module, shape in shapes.items() if self.config.saves(self._outside(module))}
        ends = [site.module for site in self._tied_ends()]
        return saved | {module: shapes[module] for module in ends if any(end in saved for end in ends)}

    def _trained_modules(
        self, targets: Collection[str], saved: Collection[str]
    ) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return the tokens of each module of which PEFT trains single rows, and the module that the file names.

        Over a tied embedding the head has the same rows; PEFT saves them once, with the embedding.
        """
        ends = {site.kind: site.module for site in self.sites.matrices.values() if site.kind != "linear"}
        embedding, head = ends["embedding"], ends["head"]
        found: dict[str, tuple[tuple[int, ...], str]] = {}
        for name, tokens in self.config.trained_tokens.items():
            module = next((end for end in (embedding, head) if self._outside(end).endswith(name)), None)
            module = module if name else embedding
            if module is None or module in found:
                self.config.fields.fail(TRAINED, f"names {show(name)}: rows of embedding and head can be trained, once")
            found[module] = tokens, module
        if self.base.tie_embeddings and embedding in found:
            tokens, _ = found[embedding]
            if found.get(head, (tokens,))[0] == tokens:
                found[head] = tokens, embedding
            elif self.config.ensure_weight_tying:
                why = "has other tokens for the head than for the embedding together with ensure_weight_tying"
                self.config.fields.fail(TRAINED, why, "give both the same tokens")
        for module, (tokens, _) in found.items():
            if max(tokens) >= self.base.vocab:
                why = f"has token {max(tokens)}, the base has {self.base.vocab} tokens"
                self.config.fields.fail(TRAINED, why, "load it over the model that it was trained on")
            if len(tokens) * self.base.vocab > MAX_PLACES:
                why = f"has {len(tokens)} tokens: {MAX_PLACES // self.base.vocab} may be trained of {self.base.vocab}"
                self.config.fields.fail(TRAINED, why, 'train so many with modules_to_save=["embed_tokens"]')
            if module in targets or module in saved:
                why = (
                    f"trains rows of {module}, which the adapter also {'changes' if module in targets else 'replaces'}"
                )
                self.config.fields.fail(TRAINED, f"{why}: PEFT does not define both", "train one of the two")
        return found

    def _expect_trained(self, module: str, tokens: tuple[int, ...], stored: str) -> str:
        """Return the name of the tensor of a module's trained rows; a tied head may have a copy of the embedding's."""
        if module != stored and PREFIX + self._outside(f"{module}.{ROWS}") in self.header.tensors:
            self._expect(f"{module}.{ROWS}", (len(tokens), self.sites.matrices[module].k))
        return self._expect(f"{stored}.{ROWS}", (len(tokens), self.sites.matrices[module].k))

    def _expect_bases_below(self, trained: Mapping[str, object]) -> dict[str, str]:
        """Return the names of the whole matrices that PEFT saved below trained rows, as for a resized vocabulary."""
        found: dict[str, str] = {}
        for module in trained:
            site = self.sites.matrices[module]
            name = f"{module}.token_adapter.base_layer.weight"
            if PREFIX + self._outside(name) in self.header.tensors:
                found[module] = self._expect(name, (site.part.rows, site.k))
        return found

    def _tied_ends(self) -> list[TargetModule]:
        """Return embedding and head if ``ensure_weight_tying`` trains them together, else []."""
        if not (self.config.ensure_weight_tying and self.base.tie_embeddings):
            return []
        return [site for site in self.sites.matrices.values() if site.kind != "linear"]

    def _with_tied(self, targets: list[TargetModule]) -> list[TargetModule]:
        """Return the targets with the other end of a tied one, for which PEFT saves tensors as well."""
        ends = self._tied_ends()
        return (
            [*targets, *(site for site in ends if site not in targets)] if any(e in targets for e in ends) else targets
        )

    def _expect_saved(self, module: str, shape: tuple[int, ...]) -> str:
        """Return the name of a saved module's tensor; of two tied modules, the one that the file holds."""
        ends = [site.module for site in self._tied_ends()]
        if module in ends and PREFIX + self._outside(f"{module}.weight") not in self.header.tensors:
            module = next(end for end in ends if end != module)
        return self._expect(f"{module}.weight", shape)

    def _expect_delta(self, site: TargetModule) -> dict[str, str | None]:
        """Return the names of one module's tensors by field of Delta."""
        rank, rows, module = self.config.rank_of(self._outside(site.target)), site.part.source_rows, site.target
        found: dict[str, str | None] = {"magnitude": None, "bias": None}
        if site.kind == "embedding":
            # PEFT transposes the embedding: A is (rank, vocab), B is (hidden, rank), and so is the magnitude.
            found["a"] = self._expect(f"{module}.lora_embedding_A", (rank, rows))
            found["b"] = self._expect(f"{module}.lora_embedding_B", (site.k, rank))
            rows = site.k
        else:
            found["a"] = self._expect(f"{module}.lora_A.weight", (rank, site.k))
            found["b"] = self._expect(f"{module}.lora_B.weight", (rows, rank))
            if self.config.lora_bias:
                found["bias"] = self._expect(f"{module}.lora_B.bias", (rows,))
        if self.config.use_dora:
            found["magnitude"] = self._expect(f"{module}.lora_magnitude_vector", (rows,))
        return found

    def _expect_biases(self) -> dict[str, str]:
        """Return the names of changed biases; PEFT saves a target's bias below ``base_layer``, any other in its own
        module."""
        found: dict[str, str] = {}
        if self.config.bias == "none":
            return found
        for module in self.sites.biased & self.sites.matrices.keys():
            for name in (f"{module}.base_layer.bias", f"{module}.bias"):
                if PREFIX + self._outside(name) in self.header.tensors:
                    found[module] = self._expect(name, (self.sites.matrices[module].part.rows,))
        return found

    def _expect_base_weights(self, targets: list[TargetModule]) -> dict[str, str]:
        """Return the names of the embeddings and the head that PEFT saves together with an embedding's LoRA."""
        found: dict[str, str] = {}
        for site in targets:
            name = f"{site.module}.base_layer.weight"
            if site.kind != "linear" and PREFIX + self._outside(name) in self.header.tensors:
                found[site.module] = self._expect(name, (site.part.rows, site.k))
        return found

    def _expect(self, name: str, shape: tuple[int, ...]) -> str:
        """Return the full name of a tensor that must exist with this shape."""
        name = PREFIX + self._outside(name)
        info = self.header.tensors.get(name)
        if info is None:
            why = f"tensor {name} is missing, although {CONFIG_FILE} calls for it"
            raise AdapterError(f"{self.path}", why, "the adapter is incomplete: save or download it again")
        if info.shape != shape:
            raise AdapterError(f"{self.path}", f"tensor {name} is {info.shape}, {shape} is expected", self._remedy())
        self.used.add(name)
        return name

    def _remedy(self) -> str:
        made_for = f"it was made for {show(self.config.base_name)}: " if self.config.base_name else ""
        return f"{made_for}load it over the model that it was trained on, with the {CONFIG_FILE} that belongs to it"

    def _refuse_unknown(self) -> None:
        unknown = [name for name in self.header.tensors if name not in self.used]
        if not unknown:
            return
        shown = unknown[0] if unknown[0].isprintable() and len(unknown[0]) <= 200 else show(unknown[0])
        others = f" (nor have {len(unknown) - 1} others)" if len(unknown) > 1 else ""
        module = unknown[0].removeprefix(PREFIX).partition(".lora_")[0]
        reason = "has no place in this base"
        if not unknown[0].startswith(PREFIX):
            reason = f"does not begin with {PREFIX}, as PEFT's names do"
        elif module in self.sites.matrices:
            reason = f"is not called for by {CONFIG_FILE}"
        elif self.base.experts and EXPERTS.search(unknown[0]):
            reason = f"changes experts in a way that is not run, or that {CONFIG_FILE} does not call for"
        raise AdapterError(f"{self.path}", f"tensor {shown} {reason}{others}", self._remedy())
