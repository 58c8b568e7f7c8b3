"""Triton kernels of Top-1 element selection; the formulas are those of `reference.py`.

Layout [B, T, H, D] with any strides but 1 for channels. A program has one head's tile of queries (forward,
dQ) or of keys (dK, dV); no atomics, so that equal inputs give equal bits. Offsets are int64. fp32 products
are "ieee": TF32 would change which key is best.
"""

import triton
import triton.language as tl


@triton.jit
def _scores(q, k, rows, keys, lo, hi, slope, scale, OFFSET_BY_ALIBI: tl.constexpr, offset):
    """s [M, N] of a tile; -inf where a key is not visible."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if OFFSET_BY_ALIBI:
        s -= slope * (rows[:, None] + offset - keys[None, :]).to(tl.float32)
    visible = (keys[None, :] >= lo[:, None]) & (keys[None, :] <= hi[:, None])
    return tl.where(visible, s, float("-inf"))


@triton.jit
def forward(
    q_ptr, k_ptr, v_ptr, lo_ptr, hi_ptr, slope_ptr, forced_ptr,
    o_ptr, soft_ptr, index_ptr, lse_ptr, p_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    H, T, S, offset, scale, inv_tau,
    K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ALIBI: tl.constexpr, FORCED: tl.constexpr, SOFT: tl.constexpr,
):  # fmt: skip
    """o, soft [B, T, H, V], index, lse (of s / tau), p (of the chosen key) [B, T, H]."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = rows < T
    dk, dv = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    r64 = rows.to(tl.int64)
    q = tl.load(
        q_ptr + b * q_b + h * q_h + r64[:, None] * q_t + dk[None, :],
        mask=row_ok[:, None] & (dk[None, :] < K), other=0.0,
    )  # fmt: skip
    lo = tl.load(lo_ptr + b * T + rows, mask=row_ok, other=0)
    hi = tl.load(hi_ptr + b * T + rows, mask=row_ok, other=0)  # rows past the end see key 0: no empty softmax
    slope = tl.load(slope_ptr + h) if ALIBI else 0.0
    forced = tl.load(forced_ptr + (b * T + r64) * H + h, mask=row_ok, other=0) if FORCED else rows
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)  # best score so far
    best = tl.full([BLOCK_M], 0, tl.int32)
    taken = tl.full([BLOCK_M], float("-inf"), tl.float32)  # score of the chosen key
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    begin = tl.min(tl.where(row_ok, lo, S), 0) // BLOCK_N * BLOCK_N
    for start in range(begin, tl.max(hi, 0) + 1, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        key_ok = keys < S
        n64 = keys.to(tl.int64)
        k = tl.load(
            k_ptr + b * k_b + h * k_h + n64[:, None] * k_t + dk[None, :],
            mask=key_ok[:, None] & (dk[None, :] < K), other=0.0,
        )  # fmt: skip
        s = _scores(q, k, rows, keys, lo, hi, slope, scale, ALIBI, offset)
        m_tile, at = tl.max(s, 1, return_indices=True, return_indices_tie_break_left=True)
        better = m_tile > m  # strictly: between tiles the earlier key wins a tie
        best = tl.where(better, start + at, best)
        m_new = tl.where(better, m_tile, m)
        if FORCED:
            taken = tl.maximum(taken, tl.max(tl.where(keys[None, :] == forced[:, None], s, float("-inf")), 1))
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        shrink = tl.exp((m - safe) * inv_tau)
        p = tl.exp((s - safe[:, None]) * inv_tau)
        total = total * shrink + tl.sum(p, 1)
        if SOFT:
            v = tl.load(
                v_ptr + b * v_b + h * v_h + n64[:, None] * v_t + dv[None, :],
                mask=key_ok[:, None] & (dv[None, :] < V), other=0.0,
            )  # fmt: skip
            acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    lse = m * inv_tau + tl.log(total)
    if FORCED:
        best = forced.to(tl.int32)
    else:
        taken = m
    hard = tl.load(
        v_ptr + b * v_b + h * v_h + best.to(tl.int64)[:, None] * v_t + dv[None, :],
        mask=row_ok[:, None] & (dv[None, :] < V), other=0.0,
    )  # fmt: skip
    bad = total != total  # NaN in, NaN out
    hard = tl.where(bad[:, None], float("nan"), hard.to(tl.float32))
    flat = (b * T + r64) * H + h
    out = flat[:, None] * V + dv[None, :]
    ok = row_ok[:, None] & (dv[None, :] < V)
    tl.store(o_ptr + out, hard.to(o_ptr.dtype.element_ty), mask=ok)
    if SOFT:
        tl.store(soft_ptr + out, (acc / total[:, None]).to(soft_ptr.dtype.element_ty), mask=ok)
    tl.store(index_ptr + flat, best, mask=row_ok)
    tl.store(lse_ptr + flat, lse, mask=row_ok)
    tl.store(p_ptr + flat, tl.exp(taken * inv_tau - lse), mask=row_ok)


@triton.jit
def backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, lo_ptr, hi_ptr, slope_ptr, index_ptr, lse_ptr, delta_ptr, g_ptr, dk_ptr,
    dv_ptr, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, do_b, do_t, do_h,
    H, T, S, offset, scale, inv_tau,
    K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ALIBI: tl.constexpr, DENSE: tl.constexpr, SCORES: tl.constexpr, SOFT_VALUES: tl.constexpr,
):  # fmt: skip
    """dk [B, S, H, K], dv [B, S, H, V]: one tile of keys, all queries that may see it.

    DENSE: g_ij = dO_i . v_j (st = softmax); else g_i at the chosen key alone. SCORES: whether scores have a
        gradient.
    """
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    first_key = tl.program_id(1) * BLOCK_N
    keys = first_key + tl.arange(0, BLOCK_N)
    key_ok = keys < S
    dim_k, dim_v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    n64 = keys.to(tl.int64)
    k_mask, v_mask = key_ok[:, None] & (dim_k[None, :] < K), key_ok[:, None] & (dim_v[None, :] < V)
    k = tl.load(k_ptr + b * k_b + h * k_h + n64[:, None] * k_t + dim_k[None, :], mask=k_mask, other=0.0)
    v = tl.load(v_ptr + b * v_b + h * v_h + n64[:, None] * v_t + dim_v[None, :], mask=v_mask, other=0.0)
    slope = tl.load(slope_ptr + h) if ALIBI else 0.0
    dk = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)
    begin = tl.maximum(first_key - offset, 0) // BLOCK_M * BLOCK_M  # the first query that sees the tile
    for start in range(begin, T, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        row_ok = rows < T
        r64 = rows.to(tl.int64)
        flat = (b * T + r64) * H + h
        lo = tl.load(lo_ptr + b * T + rows, mask=row_ok, other=0)
        hi = tl.load(hi_ptr + b * T + rows, mask=row_ok, other=-1)
        index = tl.load(index_ptr + flat, mask=row_ok, other=-1)
        do = tl.load(
            do_ptr + b * do_b + h * do_h + r64[:, None] * do_t + dim_v[None, :],
            mask=row_ok[:, None] & (dim_v[None, :] < V), other=0.0,
        )  # fmt: skip
        hit = keys[:, None] == index[None, :]  # [N, M]
        p = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
        if SCORES or SOFT_VALUES:
            q = tl.load(
                q_ptr + b * q_b + h * q_h + r64[:, None] * q_t + dim_k[None, :],
                mask=row_ok[:, None] & (dim_k[None, :] < K), other=0.0,
            )  # fmt: skip
            s = tl.dot(k, tl.trans(q), input_precision="ieee") * scale
            if ALIBI:
                s -= slope * (rows[None, :] + offset - keys[:, None]).to(tl.float32)
            visible = (keys[:, None] >= lo[None, :]) & (keys[:, None] <= hi[None, :])
            lse = tl.load(lse_ptr + flat, mask=row_ok, other=0.0)
            p = tl.where(visible, tl.exp(s * inv_tau - lse[None, :]), 0.0)
        weights = p if SOFT_VALUES else hit.to(tl.float32)
        dv += tl.dot(weights.to(do.dtype), do, input_precision="ieee")
        if SCORES:
            delta = tl.load(delta_ptr + flat, mask=row_ok, other=0.0)
            if DENSE:
                g = tl.dot(v, tl.trans(do), input_precision="ieee")
            else:
                g = tl.where(hit, tl.load(g_ptr + flat, mask=row_ok, other=0.0)[None, :], 0.0)
            ds = p * (g - delta[None, :])
            dk += tl.dot(ds.to(q.dtype), q, input_precision="ieee")
    dk *= scale * inv_tau
    key_flat = (b * S + n64) * H + h
    tl.store(dk_ptr + key_flat[:, None] * K + dim_k[None, :], dk.to(dk_ptr.dtype.element_ty), mask=k_mask)
    tl.store(dv_ptr + key_flat[:, None] * V + dim_v[None, :], dv.to(dv_ptr.dtype.element_ty), mask=v_mask)


@triton.jit
def backward_queries(
    q_ptr, k_ptr, v_ptr, do_ptr, lo_ptr, hi_ptr, slope_ptr, index_ptr, lse_ptr, delta_ptr, g_ptr, dq_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, do_b, do_t, do_h,
    H, T, S, offset, scale, inv_tau,
    K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ALIBI: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """dq [B, T, H, K]: one tile of queries, all keys that it sees."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = rows < T
    dim_k, dim_v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    r64 = rows.to(tl.int64)
    flat = (b * T + r64) * H + h
    q_mask = row_ok[:, None] & (dim_k[None, :] < K)
    q = tl.load(q_ptr + b * q_b + h * q_h + r64[:, None] * q_t + dim_k[None, :], mask=q_mask, other=0.0)
    do = tl.load(
        do_ptr + b * do_b + h * do_h + r64[:, None] * do_t + dim_v[None, :],
        mask=row_ok[:, None] & (dim_v[None, :] < V), other=0.0,
    )  # fmt: skip
    lo = tl.load(lo_ptr + b * T + rows, mask=row_ok, other=0)
    hi = tl.load(hi_ptr + b * T + rows, mask=row_ok, other=-1)
    index = tl.load(index_ptr + flat, mask=row_ok, other=-1)
    lse = tl.load(lse_ptr + flat, mask=row_ok, other=0.0)
    delta = tl.load(delta_ptr + flat, mask=row_ok, other=0.0)
    g_row = tl.load(g_ptr + flat, mask=row_ok, other=0.0)
    slope = tl.load(slope_ptr + h) if ALIBI else 0.0
    dq = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
    begin = tl.min(tl.where(row_ok, lo, S), 0) // BLOCK_N * BLOCK_N
    for start in range(begin, tl.max(hi, 0) + 1, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        key_ok = keys < S
        n64 = keys.to(tl.int64)
        k = tl.load(
            k_ptr + b * k_b + h * k_h + n64[:, None] * k_t + dim_k[None, :],
            mask=key_ok[:, None] & (dim_k[None, :] < K), other=0.0,
        )  # fmt: skip
        s = _scores(q, k, rows, keys, lo, hi, slope, scale, ALIBI, offset)
        p = tl.exp(s * inv_tau - lse[:, None])
        if DENSE:
            v = tl.load(
                v_ptr + b * v_b + h * v_h + n64[:, None] * v_t + dim_v[None, :],
                mask=key_ok[:, None] & (dim_v[None, :] < V), other=0.0,
            )  # fmt: skip
            g = tl.dot(do, tl.trans(v), input_precision="ieee")
        else:
            g = tl.where(keys[None, :] == index[:, None], g_row[:, None], 0.0)
        ds = p * (g - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    dq *= scale * inv_tau
    tl.store(dq_ptr + flat[:, None] * K + dim_k[None, :], dq.to(dq_ptr.dtype.element_ty), mask=q_mask)
