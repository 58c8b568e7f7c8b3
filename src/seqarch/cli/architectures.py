"""`python -m seqarch.cli.architectures --scale 110m`: width, depth, parameters, FLOPs and state of all
architectures.
"""

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from seqarch.architecture import describe, resolve
from seqarch.errors import SeqarchError
from seqarch.mixers import registry
from seqarch.mixers.base import SCALES

COLUMNS = (
    "architecture",
    "d_model",
    "blocks",
    "parameters",
    "non_embedding",
    "deviation",
    "flops_per_token",
    "state_bytes",
    "state_bytes_long",
)
# the Mamba-2 + attention hybrid: head counts (width 1.5 d) and the places of its attention blocks, by scale
HYBRID = {
    "nano": (3, 32, 5, (2,)),
    "tiny": (6, 32, 7, (3,)),
    "110m": (18, 64, 23, (8, 16)),
    "1.3b": (24, 128, 48, (8, 17, 26, 35, 44)),
}
PARTS = {"local", "mamba-attention"}  # entries that patterns name, no architectures of their own


def standard_architectures(scale: str | None) -> dict[str, dict[str, Any]]:
    """An entry for each mixer with its defaults, and the published hybrids, in the configuration's language.

    - `transformer` is the mixer attention; `local` and `mamba-attention` are parts of patterns.
    - `griffin`: two recurrent blocks, one of local attention (arXiv 2402.19427).
    - `m2a`: Mamba-2 with an attention block in about every tenth place (after the `mamba2attn` of
        2407.08112).
    """
    entries: dict[str, dict[str, Any]] = {"transformer": {"mixer": "attention"}}
    entries |= {name: {"mixer": name} for name in registry.names() if name != "attention"}
    if "rglru" in entries:
        entries["local"] = {"mixer": "attention", "window": 1024}
        entries["griffin"] = {"pattern": ["rglru", "rglru", "local"]}
    if scale in HYBRID:
        n_heads, head_dim, depth, places = HYBRID[scale]
        pattern = ["mamba-attention" if layer in places else "mamba2" for layer in range(depth)]
        entries["mamba-attention"] = mamba_attention(n_heads, head_dim)
        entries["m2a"] = {"pattern": pattern, "layers": depth}
    return entries


def mamba_attention(n_heads: int, head_dim: int) -> dict[str, Any]:
    """The attention block of a Mamba hybrid: convolution on q, k, v, half of each head turns, no MLP."""
    sizes = {"n_heads": n_heads, "head_dim": head_dim}
    return {"mixer": "attention", **sizes, "conv": True, "rope_fraction": 0.5, "mlp": False}


def rows(scale: str, vocab_size: int, length: int, long: int) -> list[dict[str, Any]]:
    """One row an architecture, with the columns `COLUMNS`; the deviation is from the transformer's
    parameters.
    """
    entries = standard_architectures(scale)
    table = []
    for name in sorted(set(entries) - PARTS, key=lambda name: (name != "transformer", name)):
        resolved = resolve(name, entries, {"scale": scale}, vocab_size, length)
        counted = describe(resolved, length)
        kinds = Counter(layer["mixer"] for layer in resolved["layers"])
        table.append(
            {
                "architecture": name,
                "d_model": resolved["d_model"],
                "blocks": " + ".join(f"{count} {kind}" for kind, count in kinds.items()),
                "parameters": counted["num_params"],
                "non_embedding": counted["num_params_non_embedding"],
                "flops_per_token": int(counted["flops_per_token"]),
                "state_bytes": counted["state_bytes"],
                "state_bytes_long": describe(resolved, long)["state_bytes"],
            }
        )
    for row in table:
        row["deviation"] = round(row["non_embedding"] / table[0]["non_embedding"] - 1, 4)
    return table


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m seqarch.cli.architectures", description=__doc__)
    parser.add_argument("--scale", choices=list(SCALES), default="110m")
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--length", type=int, default=2048, help="sequence length of FLOPs and state")
    parser.add_argument("--long", type=int, default=100_000, help="a second length, for the state")
    parser.add_argument("--format", choices=["table", "csv", "json"], default="table")
    args = parser.parse_args(argv)
    try:
        table = rows(args.scale, args.vocab_size, args.length, args.long)
    except SeqarchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if args.format == "json":
        print(json.dumps(table, indent=1))
    elif args.format == "csv":
        writer = csv.DictWriter(sys.stdout, COLUMNS)
        writer.writeheader()
        writer.writerows(table)
    else:
        _print_table(table, args.length, args.long)
    return 0


def _print_table(table: list[dict[str, Any]], length: int, long: int) -> None:
    from rich.console import Console
    from rich.table import Table

    view = Table(
        title=f"forward FLOPs per token and decoding state at T = {length:,} and {long:,}, one sequence"
    )
    for column in (
        "architecture",
        "d",
        "blocks",
        "params M",
        "non-emb. M",
        "dev. %",
        "GFLOPs",
        "state MB",
        "state MB",
    ):
        view.add_column(column, justify="left" if column in ("architecture", "blocks") else "right")
    for row in table:
        view.add_row(
            row["architecture"],
            str(row["d_model"]),
            row["blocks"],
            f"{row['parameters'] / 1e6:.2f}",
            f"{row['non_embedding'] / 1e6:.2f}",
            f"{100 * row['deviation']:+.1f}",
            f"{row['flops_per_token'] / 1e9:.4f}",
            f"{row['state_bytes'] / 1e6:.3f}",
            f"{row['state_bytes_long'] / 1e6:.3f}",
        )
    Console(width=None if sys.stdout.isatty() else 140).print(view)


if __name__ == "__main__":
    raise SystemExit(main())
