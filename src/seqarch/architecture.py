"""From a line of configuration to a resolved model: plain JSON with every option of every block explicit. No
torch.

An *architecture* is one mixer in every block, or a pattern of other entries:

    transformer: {mixer: attention}
    window-64:   {mixer: attention, window: 64}
    hybrid:      {pattern: [mamba2, mamba2, transformer]}     # repeated to the model's depth
    griffin:     {pattern: [rg-lru, rg-lru, local], layers: 12}

Sizes that are not given match the transformer's non-embedding parameters: by the channel mixer's width where
blocks have one, else by the number of blocks.
"""

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from seqarch.errors import ConfigError
from seqarch.mixers import registry
from seqarch.mixers.base import PLACE, SCALES, MixerConfig, reference_block_params
from seqarch.schema import Spec, explain

Entries = Mapping[str, Mapping[str, Any]]
S = TypeVar("S", bound=Spec)


class ArchitectureError(ConfigError):
    """An architecture's entry can't be resolved."""


class ModelSpec(Spec):
    """The sizes all architectures of an experiment share: a named scale, or width and depth.

    Attributes:
        scale: nano (64 wide, 3 blocks), tiny (128, 4), 110m (768, 12), 1.3b (2048, 24).
        d_model, n_layers: width and the transformer's number of blocks; in place of a scale.
        tie_embeddings: one matrix for embedding and output, in all architectures or in none.
    """

    scale: Literal["nano", "tiny", "110m", "1.3b"] | None = None
    d_model: int | None = Field(None, ge=8)
    n_layers: int | None = Field(None, ge=1)
    tie_embeddings: bool = True

    @model_validator(mode="after")
    def _scale_or_sizes(self) -> "ModelSpec":
        explicit = (self.d_model is not None, self.n_layers is not None)
        if (self.scale is None) != all(explicit) or (self.scale is not None and any(explicit)):
            raise ValueError("give either scale, or d_model and n_layers")
        return self

    @property
    def shape(self) -> tuple[int, int]:
        """(d_model, the transformer's n_layers)."""
        if self.scale is not None:
            return SCALES[self.scale]
        assert self.d_model is not None
        assert self.n_layers is not None
        return self.d_model, self.n_layers


def resolve(
    name: str,
    entries: Entries,
    model_spec: ModelSpec | Mapping[str, Any],
    vocab_size: int,
    sequence_length: int,
) -> dict[str, Any]:
    """The resolved model of entry `name`.

    Args:
        entries: all architectures of the experiment; a pattern names entries here.
        model_spec: the sizes (a ModelSpec, or its fields).
        vocab_size: entries of the tokenizer.
        sequence_length: of training; the size of learned position tables.

    Returns: {"d_model", "vocab_size", "tie_embeddings", "max_length", "layers": [{"mixer", "config"}, ...]}.

    Raises ArchitectureError for unknown entries, mixers and switches, with what was meant.
    """
    spec = model_spec if isinstance(model_spec, ModelSpec) else _parse(ModelSpec, dict(model_spec), "model")
    cycle, depth = _cycle(name, entries)
    d_model, n_layers = spec.shape
    place = {"d_model": d_model, "max_length": sequence_length}
    blocks = [_block(entry, entries[entry], spec, place) for entry in cycle]
    if depth is None:
        depth = _depth(
            blocks, [_plain(entry, entries[entry], spec, place) for entry in cycle], n_layers, d_model
        )
    seen: Counter[str] = Counter()
    layers = []
    for layer in range(depth):
        mixer, config = blocks[layer % len(blocks)]
        placed = config.model_copy(update={"layer": layer, "n_layers": depth, "ordinal": seen[mixer]})
        layers.append({"mixer": mixer, "config": placed.model_dump(mode="json")})
        seen[mixer] += 1
    return {
        "d_model": d_model,
        "vocab_size": vocab_size,
        "tie_embeddings": spec.tie_embeddings,
        "max_length": sequence_length,
        "layers": layers,
    }


def _cycle(name: str, entries: Entries) -> tuple[list[str], int | None]:
    """The entries that follow each other, and the depth if it is given."""
    if name not in entries:
        raise ArchitectureError(f"no architecture {name!r}{_hint(name, entries)}")
    entry = dict(entries[name])
    if ("mixer" in entry) == ("pattern" in entry):
        raise ArchitectureError(
            f"architectures.{name}: expected either `mixer` or `pattern`, got {sorted(entry)}"
        )
    depth = entry.get("layers")
    if depth is not None and (not isinstance(depth, int) or depth < 1):
        raise ArchitectureError(
            f"architectures.{name}.layers: expected a positive whole number, got {depth!r}"
        )
    if "mixer" in entry:
        return [name], depth
    pattern = entry.pop("pattern")
    entry.pop("layers", None)
    if entry:
        raise ArchitectureError(
            f"architectures.{name}: unknown keys beside pattern: {sorted(entry)}; known: layers"
        )
    if not isinstance(pattern, Sequence) or isinstance(pattern, str) or not pattern:
        raise ArchitectureError(f"architectures.{name}.pattern: expected a list of entries, got {pattern!r}")
    for part in pattern:
        if part not in entries:
            raise ArchitectureError(
                f"architectures.{name}.pattern: no architecture {part!r}{_hint(part, entries)}"
            )
        if "mixer" not in entries[part]:
            raise ArchitectureError(
                f"architectures.{name}.pattern: {part!r} is itself a pattern; name its parts"
            )
    return list(pattern), depth


def _hint(name: Any, entries: Entries) -> str:
    close = difflib.get_close_matches(str(name), list(entries), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(entries)}"


def _block(
    entry: str, options: Mapping[str, Any], spec: ModelSpec, place: dict[str, Any]
) -> tuple[str, MixerConfig]:
    """A block as configured. Its channel mixer's width is the one that the block without switches would get,
    so that an ablation which removes parameters shows as such."""
    switches = {key: value for key, value in options.items() if key not in ("mixer", "layers")}
    for key in PLACE:
        if key in switches:
            raise ArchitectureError(
                f"architectures.{entry}.{key}: is set by the model section, not by an architecture"
            )
    mixer, plain = _plain(entry, options, spec, place)
    where = f"architectures.{entry}"
    config = _parse(type(plain), plain.model_dump() | switches, where)
    return mixer, config.model_copy(update={"hidden": 0}) if config.channel_mixer == "none" else config


def _plain(
    entry: str, options: Mapping[str, Any], spec: ModelSpec, place: dict[str, Any]
) -> tuple[str, MixerConfig]:
    """The block with the mixer's default switches, at the size that matches the transformer."""
    cls = registry.config_class(options["mixer"])
    sizes = cls.sizes_for(place["d_model"], spec.scale)
    sizes.pop("layers", None)
    config = _parse(cls, place | sizes, f"architectures.{entry}")
    if config.channel_mixer != "none" and "hidden" not in sizes:
        config = config.with_hidden_for(reference_block_params(place["d_model"]))
    return options["mixer"], config


def _depth(
    blocks: list[tuple[str, MixerConfig]], plain: list[tuple[str, MixerConfig]], n_layers: int, d_model: int
) -> int:
    """How many blocks. The transformer's number if every block has a channel mixer (whose width does the
    matching); else the number whose parameters come closest to the transformer's, by the configured blocks in
    a pattern and by the block without switches for a single mixer (so that an ablation keeps its depth)."""
    if all(config.channel_mixer != "none" for _, config in blocks):
        return n_layers
    counted = [config.num_params() for _, config in (blocks if len(blocks) > 1 else plain)]
    if len(blocks) == 1 and plain[0][1].channel_mixer != blocks[0][1].channel_mixer:
        counted = [blocks[0][1].num_params()]
    target = n_layers * reference_block_params(d_model)
    total, depth = 0, 0
    while total + counted[depth % len(counted)] / 2 <= target or depth == 0:
        total += counted[depth % len(counted)]
        depth += 1
    return depth


def _parse(cls: type[S], values: dict[str, Any], where: str) -> S:
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise ArchitectureError(explain(error, where)) from None


def layer_configs(resolved: Mapping[str, Any]) -> tuple[list[str], list[MixerConfig]]:
    """Mixer names and validated configurations of a resolved model's blocks."""
    names = [layer["mixer"] for layer in resolved["layers"]]
    configs = [
        _parse(registry.config_class(layer["mixer"]), layer["config"], f"layers.{i}")
        for i, layer in enumerate(resolved["layers"])
    ]
    return names, configs


def mixer_names(resolved: Mapping[str, Any]) -> list[str]:
    """Sorted names of the mixers in a resolved model."""
    return sorted({layer["mixer"] for layer in resolved["layers"]})


def mixers_of_step(spec: Any) -> list[str]:
    """The mixers of a step whose specification has a resolved model.

    Raises ArchitectureError for one without.
    """
    try:
        return mixer_names(spec["model"])
    except (KeyError, TypeError) as error:
        raise ArchitectureError(
            "spec.model: expected a resolved model, a mapping with a list of layers, each with its mixer"
        ) from error


def describe(resolved: Mapping[str, Any], T: int) -> dict[str, int | float]:
    """num_params, num_params_non_embedding, flops_per_token (forward, sequences of length T, head included)
    and state_bytes (decoding one sequence, after T tokens)."""
    _, configs = layer_configs(resolved)
    d, vocab = resolved["d_model"], resolved["vocab_size"]
    inner = sum(config.num_params() for config in configs) + configs[-1].norm_params()
    inner += configs[0].norm_params() if configs[0].embedding_norm else 0
    tables = d * vocab * (1 if resolved["tie_embeddings"] else 2)
    tables += d * resolved["max_length"] if any(config.learned_positions for config in configs) else 0
    return {
        "num_params": inner + tables,
        "num_params_non_embedding": inner,
        "flops_per_token": 2 * d * vocab + sum(config.flops_per_token(T) for config in configs),
        "state_bytes": sum(config.state_bytes(T) for config in configs),
    }
