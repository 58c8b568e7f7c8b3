"""From one row a document to one curve a run: which rows may be compared, and their losses under any draw."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from seqarch.analysis.errors import ComparisonError
from seqarch.evaluation.columns import ROLE

Floats = NDArray[np.float64]
Draws = Mapping[str, NDArray]  # domain -> how often each document is drawn [B, docs]

# What has to be one and the same in everything that is compared.
PROTOCOL = ("window_mode", "stride", "boundary_mode", "prefix_token", "tokenizer_sha256", "dtype")
MACRO_OOD = "macro_ood"
PACKED = "packed"


@dataclass(frozen=True)
class Curve:
    """The checkpoints of one run, in the order of training."""

    arch: str
    seed: int
    phases: tuple[str, ...]
    nll: Mapping[str, Floats]  # domain -> nats of each document [K, docs]


@dataclass(frozen=True)
class CurveSet:
    """All curves of one setting and window: the same documents in each."""

    curves: Mapping[tuple[str, int], Curve]  # (arch, seed) ->
    n_tokens: Mapping[str, NDArray]  # domain -> [docs]
    roles: Mapping[str, str]  # domain -> id | ood
    shares: Mapping[str, float] | None = None  # of the in-domain sets in x; None: all alike

    def domains(self, role: str) -> list[str]:
        return [domain for domain, each in self.roles.items() if each == role]

    def targets(self) -> list[str]:
        """What is compared: each out-of-domain set, then their unweighted mean."""
        return [*self.domains("ood"), MACRO_OOD]

    def seeds(self, arch: str) -> list[int]:
        return sorted(seed for name, seed in self.curves if name == arch)

    def once(self) -> Draws:
        """Each document once: the estimate itself."""
        return {domain: np.ones((1, len(n)), dtype=np.int64) for domain, n in self.n_tokens.items()}

    def losses(self, curve: Curve, draws: Draws) -> tuple[Floats, Floats]:
        """Nats per token under each draw: x [B, K] = mean over in-domain sets, weighted by `shares`; y of
        each target [T, B, K]."""
        rates = {
            domain: (draws[domain] @ nll.T) / (draws[domain] @ self.n_tokens[domain])[:, None]
            for domain, nll in curve.nll.items()
        }
        inside = self.domains("id")
        weights = None if self.shares is None else [self.shares[domain] for domain in inside]
        x = np.average([rates[domain] for domain in inside], axis=0, weights=weights)
        out = [rates[domain] for domain in self.domains("ood")]
        return x, np.stack([*out, np.mean(out, axis=0)])


def curve_set(docs: pd.DataFrame, architectures: Sequence[str]) -> CurveSet:
    """The curves of `architectures` from document rows of one setting, window length and choice of phases.

    Raises ComparisonError if rows differ in protocol, documents or roles, if a run lacks a document, or if an
    architecture has no rows.
    """
    docs = docs[docs["arch"].isin(architectures)]
    missing = [arch for arch in architectures if arch not in set(docs["arch"])]
    if missing:
        raise ComparisonError(
            f"no loss rows of {', '.join(missing)}: evaluate these architectures in the same setting, window "
            "and phase as the others, or take them out of the study"
        )
    for column in PROTOCOL:
        values = docs[column].drop_duplicates().tolist()
        if len(values) > 1:
            raise ComparisonError(f"rows with different {column} cannot be compared: {values}; choose one")
    roles = _roles(docs)
    documents = {domain: _documents(docs[docs["domain"] == domain], domain) for domain in roles}
    first, *others = documents.items()
    for domain, (_, table) in others:
        if not table.index.equals(first[1][1].index):
            arch, seed, step, _ = table.index.symmetric_difference(first[1][1].index)[0]
            raise ComparisonError(
                f"{arch}, seed {seed}, step {step} has rows of only one of {first[0]}, {domain}"
            )
    points = first[1][1].index.to_frame(index=False)  # one row a checkpoint, sorted
    curves = {}
    for run in sorted(set(zip(points["arch"], points["seed"], strict=True))):
        rows = ((points["arch"] == run[0]) & (points["seed"] == run[1])).to_numpy()
        nll = {domain: table.to_numpy()[rows] for domain, (_, table) in documents.items()}
        curves[run] = Curve(*run, tuple(points["phase"][rows]), nll)
    return CurveSet(curves, {domain: n_tokens for domain, (n_tokens, _) in documents.items()}, roles)


def with_roles(docs: pd.DataFrame, roles: Mapping[str, str]) -> pd.DataFrame:
    """The rows of these domains, of documents scored one by one: the boundary mode `packed` is a secondary
    result. ComparisonError if a role in them is not the configured one (in, out)."""
    docs = docs[docs["domain"].isin(list(roles))]
    if "boundary_mode" in docs:
        docs = docs[docs["boundary_mode"] != PACKED]
    for domain, role in docs[["domain", "role"]].drop_duplicates().itertuples(index=False):
        if role != ROLE[roles[domain]]:
            raise ComparisonError(
                f"{domain}: scored with role {role!r}, configured as {roles[domain]!r}; evaluate again"
            )
    return docs


def _roles(docs: pd.DataFrame) -> dict[str, str]:
    pairs = docs[["domain", "role"]].drop_duplicates()
    twice = pairs[pairs["domain"].duplicated()]["domain"].tolist()
    if twice:
        raise ComparisonError(f"domains with two roles: {twice}; a domain has one role in an experiment")
    roles = dict(sorted(zip(pairs["domain"], pairs["role"], strict=True)))
    for role, word in (("id", "in"), ("ood", "out")):
        if role not in roles.values():
            raise ComparisonError(f"no domain with the role {word!r}: a comparison needs both roles")
    return roles


def _documents(rows: pd.DataFrame, domain: str) -> tuple[NDArray, pd.DataFrame]:
    """Tokens of each document [docs], and nats [checkpoints, docs] indexed by (arch, seed, step, phase)."""
    identity = rows[["doc_id", "doc_sha256", "n_tokens", "eval_set_sha256"]].drop_duplicates()
    if identity["doc_id"].duplicated().any() or identity["eval_set_sha256"].nunique() > 1:
        raise ComparisonError(
            f"{domain}: the runs were evaluated on different documents; score all on one evaluation set"
        )
    key = ["arch", "seed", "step", "phase"]
    rows = rows.drop_duplicates([*key, "doc_id", "nll_nats"])  # the same checkpoint listed twice is one
    if rows.duplicated([*key, "doc_id"]).any():
        raise ComparisonError(f"{domain}: one checkpoint has two different losses for one document")
    table = rows.pivot(index=key, columns="doc_id", values="nll_nats")
    if table.isna().to_numpy().any():
        run = table.index[table.isna().any(axis=1)][0]
        raise ComparisonError(
            f"{domain}: {run[0]}, seed {run[1]}, step {run[2]} lacks documents that others have"
        )
    n_tokens = identity.set_index("doc_id")["n_tokens"].reindex(table.columns).to_numpy()
    return n_tokens, table
