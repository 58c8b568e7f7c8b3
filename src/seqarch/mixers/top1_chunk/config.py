"""Attention to the own chunk and the best earlier one. *Our definition*: `seqarch.ops.top1_chunk`."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from seqarch.mixers.base import CACHE_BYTES, STATE_BYTES, Count, MixerConfig, head_width


class Config(MixerConfig):
    """Attributes:
    n_heads, head_dim: the width of q, k, v is n_heads * head_dim.
    chunk_size: keys per chunk.
    own_chunk, router, router_grad, summary, inner, selection, granularity, tau_r, tau: the switches of
        `seqarch.ops.top1_chunk.options.Options`, which explains them.
    summary_keys: what the router compares: q and k after the rotation, or before it.
    position: position information.
    rope_theta: base of the rotation.
    """

    n_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    chunk_size: int = Field(128, gt=0)
    own_chunk: Literal["always", "candidate", "never"] = "always"
    router: Literal["approx", "exact"] = "approx"
    router_grad: Literal["gate", "scaled", "dense", "none"] = "gate"
    summary: Literal["mean", "max", "learned"] = "mean"
    summary_keys: Literal["post_rope", "pre_rope"] = "post_rope"
    inner: Literal["softmax", "top1"] = "softmax"
    selection: Literal["one_chunk", "one_element_per_chunk"] = "one_chunk"
    granularity: Literal["query_head", "query_block", "query_shared"] = "query_head"
    tau_r: float = Field(1.0, gt=0)
    tau: float = Field(1.0, gt=0)
    position: Literal["rope", "none", "alibi", "learned"] = "rope"
    rope_theta: float = Field(10000.0, gt=0)

    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"n_heads": 4, "head_dim": 32, "hidden": 344},
        "110m": {"n_heads": 12, "head_dim": 64, "hidden": 2048},
        "1.3b": {"n_heads": 16, "head_dim": 128, "hidden": 5632},
    }

    @model_validator(mode="after")
    def _switches_fit(self) -> "Config":
        if self.position == "rope" and self.head_dim % 2:
            raise ValueError(f"rope turns pairs: expected an even head_dim, got {self.head_dim}")
        if self.router == "exact" and self.granularity == "query_block":
            raise ValueError("query_block averages scores that are linear in the query: use router: approx")
        if self.summary_keys == "pre_rope" and self.position != "rope":
            raise ValueError(f"summary_keys: pre_rope needs position: rope, given: {self.position}")
        return self

    @classmethod
    def default_sizes(cls, d_model: int) -> dict[str, Any]:
        width = min(head_width(d_model), d_model)
        return {"n_heads": max(1, d_model // width), "head_dim": width}

    @property
    def width(self) -> int:
        """Channels of q, of k and of v."""
        return self.n_heads * self.head_dim

    @property
    def learned_positions(self) -> bool:
        return self.position == "learned"

    def mixer_params(self) -> Count:
        table = self.n_heads * self.chunk_size if self.summary == "learned" else 0
        return Count(matrices=4 * self.d_model * self.width, vectors=table)

    def op_flops(self, T: int) -> float:
        """Router scores, then scores and sums over the keys of the attended chunks, for chunks that fill
        T.
        """
        C = min(self.chunk_size, T)
        own, chosen = (C + 1) / 2, C * (T - C) / T  # keys per query: own chunk (causal), chosen chunk
        scored = (T / C - 1) / 2 if self.router == "approx" else (T - C) / 2
        if self.own_chunk != "always":
            own *= C / T  # queries of the first chunk alone; a candidate that wins costs less than counted
        if self.selection == "one_element_per_chunk":
            past, read = (T - C) / 2, (T / C - 1) / 2  # every key is scored, one a chunk is read
            return 2 * self.width * (past + read) + 4 * self.width * own
        return 2 * self.width * scored + 4 * self.width * (own + chosen)

    def mixer_state_bytes(self, T: int) -> int:
        router = 1 if self.summary_keys == "pre_rope" else 0
        cache = CACHE_BYTES * self.width * (2 + router) * T
        if self.router == "approx":
            cache += CACHE_BYTES * self.width * T // self.chunk_size + STATE_BYTES * self.width
        return cache + (STATE_BYTES * self.width if self.granularity == "query_block" else 0)
