"""Tables as the steps make them: a demo of five architectures, two settings, three seeds."""

import numpy as np
import pandas as pd
import pytest

from seqarch.analysis.equal_loss import equal_loss
from seqarch.analysis.spec import StatisticsSpec, StudySpec

ARCHITECTURES = {
    "transformer": ("attention",),
    "window-32": ("attention",),
    "retnet": ("retnet",),
    "gla": ("gla",),
    "mamba2": ("mamba2",),
}
DOMAINS = {
    "encyclopedia": "id",
    "news": "id",
    "scripture": "ood",
    "manual": "ood",
    "mathematics": "ood",
    "code": "ood",
}
SETTINGS = ("limited", "mixed")
SEEDS = (0, 1, 2)
STEPS = (98, 195, 293)
LEVEL = {"scripture": 0.2, "manual": 0.35, "mathematics": 0.6, "code": 0.9}
PACE = {"transformer": 0.0, "window-32": -0.05, "retnet": -0.12, "gla": -0.2, "mamba2": -0.3}
COST = {"transformer": 0.0, "window-32": 0.06, "retnet": 0.02, "gla": 0.0, "mamba2": 0.09}


def _documents():
    generator = np.random.default_rng(0)
    rows = []
    effects = {domain: generator.normal(0, 0.15, 24) for domain in DOMAINS}
    for setting in SETTINGS:
        for arch in ARCHITECTURES:
            for seed in SEEDS:
                noise = generator.normal(0, 0.015)
                for k, step in enumerate(STEPS):
                    x = 5.4 - 0.45 * k + PACE[arch] + noise
                    for domain, role in DOMAINS.items():
                        y = x + generator.normal(0, 0.004)
                        if role == "ood":
                            shift = (
                                LEVEL[domain] + COST[arch] if setting == "limited" else LEVEL[domain] * 0.3
                            )
                            y += shift + generator.normal(0, 0.01)
                        for i, effect in enumerate(effects[domain]):
                            rows.append(
                                (setting, arch, seed, step, domain, role, f"{domain}-{i}", y + effect)
                            )
    names = ["setting", "arch", "seed", "step", "domain", "role", "doc_id", "y"]
    docs = pd.DataFrame(rows, columns=names)
    return docs.assign(
        experiment="demo",
        length=128,
        phase="annealed",
        doc_sha256=docs["doc_id"],
        n_tokens=900,
        nll_nats=900 * docs["y"],
        window_mode="disjoint",
        stride=128,
        boundary_mode="document",
        prefix_token=0,
        tokenizer_sha256="t",
        dtype="float32",
        eval_set_sha256=docs["domain"],
    )


def _losses(docs):
    key = ["setting", "arch", "seed", "step", "phase", "length", "domain", "role"]
    rows = docs.groupby(key, as_index=False)["y"].mean().rename(columns={"y": "nats_per_token"})
    macros = rows.groupby([*key[:6], "role"], as_index=False)["nats_per_token"].mean()
    macros["domain"] = macros["role"].map({"id": "macro_id", "ood": "macro_ood"})
    return pd.concat([rows, macros], ignore_index=True).assign(low_n=True)


def _training():
    rows = []
    generator = np.random.default_rng(1)
    for setting in SETTINGS:
        for arch in ARCHITECTURES:
            for seed in SEEDS:
                for step in range(1, 264):
                    loss = 4.9 + PACE[arch] + 2 * np.exp(-step / 60) + generator.normal(0, 0.06)
                    validation = loss - 0.02 if step % 49 == 0 or step in (78, 156, 234) else np.nan
                    rows.append((setting, arch, seed, "trunk", step, loss, validation))
                for start, end in ((78, 98), (156, 195), (234, 293)):
                    for step in range(start + 1, end + 1):
                        loss = 4.75 + PACE[arch] + 2 * np.exp(-step / 60) + generator.normal(0, 0.03)
                        validation = loss if step == end else np.nan
                        rows.append((setting, arch, seed, f"annealed-{end:08d}", step, loss, validation))
    names = ["setting", "arch", "seed", "branch", "step", "loss", "validation_loss"]
    frame = pd.DataFrame(rows, columns=names)
    return frame.assign(experiment="demo", tokens=frame["step"] * 1024)


def _positions():
    generator = np.random.default_rng(2)
    rows = []
    for setting in SETTINGS:
        for arch in ARCHITECTURES:
            for seed in SEEDS:
                for domain, role in DOMAINS.items():
                    for low in range(0, 256, 16):
                        loss = 5.5 + PACE[arch] + LEVEL.get(domain, 0) - 0.3 * np.log1p(low / 16)
                        if low >= 128 and arch == "transformer":
                            loss += 0.01 * (low - 128)
                        loss += generator.normal(0, 0.03)
                        rows.append((setting, arch, seed, domain, role, low, low + 16, loss))
    names = ["setting", "arch", "seed", "domain", "role", "bucket_lo", "bucket_hi", "nats_per_token"]
    frame = pd.DataFrame(rows, columns=names)
    return frame.assign(step=293, phase="annealed", length=256, train_length=128, n_docs=7)


def _corpus():
    rows = []
    for i, (domain, role) in enumerate(DOMAINS.items()):
        for split, share in (("train", 0.75), ("validation", 0.05), ("test", 0.2)):
            size = int(2_600_000 * share * (0.4 + 0.35 * i))
            quantiles = np.array([300, 900, 3000, 9000, 60000]) * (1 + i)
            row = {
                f"doc_bytes_p{p}": q for p, q in zip(("05", "25", "50", "75", "95"), quantiles, strict=True)
            }
            row |= {"domain": domain, "role": "in" if role == "id" else "out", "split": split}
            row |= {"n_docs": size // 9000, "n_bytes": size, "n_tokens": size // 3, "low_n": size < 300_000}
            rows.append(row)
    return pd.DataFrame(rows)


def _learning_rates():
    """The lowest loss lies within the grid, or at an edge of it; the transformer diverges at the highest."""
    best = {"transformer": 3e-3, "window-32": 1e-3, "retnet": 1e-2, "gla": 3e-3, "mamba2": 3e-3}
    rows = [
        (setting, arch, rate, 4.9 + PACE[arch] + 0.3 * np.log10(rate / best[arch]) ** 2, rate == best[arch])
        for setting in SETTINGS
        for arch in ARCHITECTURES
        for rate in (1e-3, 3e-3, 1e-2)
    ]
    names = ["setting", "arch", "learning_rate", "validation_loss", "chosen"]
    frame = pd.DataFrame(rows, columns=names).assign(experiment="demo", seed=0, tokens=80_000)
    frame["diverged"] = (frame["arch"] == "transformer") & (frame["learning_rate"] == 1e-2)
    frame.loc[frame["diverged"], "validation_loss"] = np.nan
    frame["at_edge"] = frame["chosen"] & (frame["learning_rate"] != 3e-3)
    return frame


def _recall():
    """MQAR and needle lines at the training length and twice it; gla has no signal, mamba2 one of three seeds
    without it."""
    generator = np.random.default_rng(3)
    rows = []
    for arch in ARCHITECTURES:
        for seed in SEEDS:
            dead = arch == "gla" or (arch == "mamba2" and seed == 2)
            common = {"arch": arch, "seed": seed, "signal": "no signal" if dead else "ok", "n": 200}
            common |= {"adjacent": 0.1 if dead else 1.0, "learning_rate": 3e-3, "position": "rope"}
            for length in (32, 64):
                state = 512 * length if arch == "transformer" else 9000
                for pairs in (2, 4, 8, 16):
                    if 4 * pairs <= length:
                        score = 0.03 if dead else np.clip(1.1 - pairs / 40 + generator.normal(0, 0.02), 0, 1)
                        cell = {"task": "mqar", "kind": "mqar", "length": length, "n_pairs": pairs}
                        cell |= {"train_length": 32, "chance": 1 / 32, "shuffled": 0.03, "state_bytes": state}
                        rows.append(common | cell | {"score": score, "n_params": 100_000})
            for length in (100, 200):
                for depth in (0.0, 50.0, 100.0):
                    score = 0.0 if dead else 1.0 if length == 100 else 0.25 + depth / 200
                    cell = {"task": "needle", "kind": "needle_lines", "length": length, "depth": depth}
                    cell |= {"train_length": 100, "chance": 1e-4, "no_needle": 0.0, "state_bytes": 9000}
                    rows.append(common | cell | {"score": score, "n_params": 100_000})
    return pd.DataFrame(rows).assign(experiment="demo", setting="recall")


def _unigram():
    rows = []
    for setting in SETTINGS:
        level = {domain: 5.95 + LEVEL.get(domain, 0) * 0.3 for domain in DOMAINS}
        for domain, value in level.items():
            rows.append((setting, domain, DOMAINS[domain], value))
        for role, macro in (("id", "macro_id"), ("ood", "macro_ood")):
            mean = np.mean([value for domain, value in level.items() if DOMAINS[domain] == role])
            rows.append((setting, macro, role, mean))
    return pd.DataFrame(rows, columns=["setting", "domain", "role", "nats_per_token"])


@pytest.fixture(scope="session")
def docs():
    return _documents()


@pytest.fixture(scope="session")
def tables(docs):
    study = {"architectures": StudySpec(reference="transformer", compare=tuple(ARCHITECTURES)[1:])}
    return {
        "losses": _losses(docs),
        "equal_loss": equal_loss(docs, study, StatisticsSpec(bootstrap=200)),
        "training": _training(),
        "positions": _positions(),
        "corpus": _corpus(),
        "unigram": _unigram(),
        "learning_rates": _learning_rates(),
        "recall": _recall(),
    }
