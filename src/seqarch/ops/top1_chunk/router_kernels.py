"""Triton kernels of the router; the formulas are those of `routing.py`.

Per-query numbers are [B, R, L], `first` is int32 [B, N]. A tile of queries lies in one chunk n, whose
candidates are the chunks first[n] <= c < n. Scores are streamed: nothing of size T x T/C is stored. No
atomics.
"""

import triton
import triton.language as tl

from seqarch.ops.top1_chunk.kernels import load_rows


@triton.jit
def _carry(r, chunk, m, best, total, taken, forced, FORCED: tl.constexpr):
    """One more candidate a row, r [M]: best score and its (earlier) chunk, sum of exponentials, forced one's
    score.
    """
    better = r > m
    best = tl.where(better, chunk, best)
    m_new = tl.where(better, r, m)
    total = total * tl.exp(m - m_new) + tl.exp(r - m_new)
    if FORCED:
        taken = tl.where(forced == chunk, r, taken)
    return m_new, best, total, taken


@triton.jit
def _finish(
    own_ptr, chosen_ptr, lse_ptr, rp_ptr, at, n, m, best, total, taken, forced,
    FORCED: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """The own chunk's score as last candidate (OWN); chosen, lse and rp of a tile of queries."""
    if OWN:
        own = tl.load(own_ptr + at)
        better = own > m
        best = tl.where(better, n, best)
        m_new = tl.where(better, own, m)
        total = total * tl.exp(m - m_new) + tl.exp(own - m_new)
        if FORCED:
            taken = tl.where(forced == n, own, taken)
        m = m_new
    none = total == 0.0
    lse = tl.where(none, 0.0, m + tl.log(tl.where(none, 1.0, total)))
    if FORCED:
        best = tl.where(forced < 0, best, forced)
        taken = tl.where(forced < 0, m, taken)
    else:
        taken = m
    tl.store(chosen_ptr + at, tl.where(none, -1, best))
    tl.store(lse_ptr + at, lse)
    tl.store(rp_ptr + at, tl.where(none, 1.0, tl.exp(taken - lse)))


@triton.jit
def approx_forward(
    q_ptr, s_ptr, own_ptr, first_ptr, forced_ptr, chosen_ptr, lse_ptr, rp_ptr,
    q_b, q_t, q_h, s_b, s_n, s_h, R, L, N, n_past, scale,
    C: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FORCED: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """q [B, L, R, K] against summaries s [B, N, R, K]."""
    br = tl.program_id(0).to(tl.int64)
    b, h = br // R, br % R
    begin = tl.program_id(1) * BLOCK_M
    rows = begin + tl.arange(0, BLOCK_M)
    n = n_past + begin // C
    first = tl.load(first_ptr + b * N + n)
    every = rows < L
    q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, every, K, BLOCK_K)
    at = br * L + rows.to(tl.int64)
    forced = tl.load(forced_ptr + at) if FORCED else rows
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    best = tl.full([BLOCK_M], 0, tl.int32)
    total = tl.zeros([BLOCK_M], tl.float32)
    taken = tl.full([BLOCK_M], float("-inf"), tl.float32)
    for start in range(first // BLOCK_N * BLOCK_N, n, BLOCK_N):
        chunks = start + tl.arange(0, BLOCK_N)
        candidate = (chunks >= first) & (chunks < n)
        s = load_rows(s_ptr, b * s_b + h * s_h, chunks, s_n, candidate, K, BLOCK_K)
        r = tl.dot(q, tl.trans(s), input_precision="ieee") * scale
        r = tl.where(candidate[None, :], r, float("-inf"))
        m_tile, column = tl.max(r, 1, return_indices=True, return_indices_tie_break_left=True)
        better = m_tile > m  # strictly: the earlier chunk wins a tie
        best = tl.where(better, start + column, best)
        m_new = tl.where(better, m_tile, m)
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        total = total * tl.exp(m - safe) + tl.sum(tl.exp(r - safe[:, None]), 1)
        if FORCED:
            taken = tl.maximum(
                taken, tl.max(tl.where(chunks[None, :] == forced[:, None], r, float("-inf")), 1)
            )
        m = m_new
    _finish(own_ptr, chosen_ptr, lse_ptr, rp_ptr, at, n, m, best, total, taken, forced, FORCED, OWN)


@triton.jit
def approx_backward_queries(
    q_ptr, s_ptr, first_ptr, chosen_ptr, lse_ptr, t_ptr, dq_ptr,
    q_b, q_t, q_h, s_b, s_n, s_h, R, L, N, n_past, scale,
    C: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq [B, L, R, K] = scale sum_c dr_c s_c with dr_c = t ([c = c*] - rp_c)."""
    br = tl.program_id(0).to(tl.int64)
    b, h = br // R, br % R
    begin = tl.program_id(1) * BLOCK_M
    rows = begin + tl.arange(0, BLOCK_M)
    n = n_past + begin // C
    first = tl.load(first_ptr + b * N + n)
    every = rows < L
    q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, every, K, BLOCK_K)
    at = br * L + rows.to(tl.int64)
    chosen, lse, t = tl.load(chosen_ptr + at), tl.load(lse_ptr + at), tl.load(t_ptr + at)
    dq = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
    for start in range(first // BLOCK_N * BLOCK_N, n, BLOCK_N):
        chunks = start + tl.arange(0, BLOCK_N)
        candidate = (chunks >= first) & (chunks < n)
        s = load_rows(s_ptr, b * s_b + h * s_h, chunks, s_n, candidate, K, BLOCK_K)
        r = tl.dot(q, tl.trans(s), input_precision="ieee") * scale
        rp = tl.where(candidate[None, :], tl.exp(r - lse[:, None]), 0.0)
        dr = t[:, None] * ((chunks[None, :] == chosen[:, None]).to(tl.float32) - rp)
        dq += tl.dot(dr.to(s.dtype), s, input_precision="ieee")
    dims = tl.arange(0, BLOCK_K)[None, :]
    dq_at = dq_ptr + ((b * L + rows.to(tl.int64)) * R + h)[:, None] * K + dims
    tl.store(dq_at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=every[:, None] & (dims < K))


@triton.jit
def approx_backward_summaries(
    q_ptr, s_ptr, first_ptr, chosen_ptr, lse_ptr, t_ptr, ds_ptr,
    q_b, q_t, q_h, s_b, s_n, s_h, R, L, N, n_past, scale,
    C: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """ds [B, N, R, K] of a tile of chunks, over all later queries."""
    br = tl.program_id(0).to(tl.int64)
    b, h = br // R, br % R
    first_chunk = tl.program_id(1) * BLOCK_N
    chunks = first_chunk + tl.arange(0, BLOCK_N)
    ok = chunks < N
    s = load_rows(s_ptr, b * s_b + h * s_h, chunks, s_n, ok, K, BLOCK_K)
    ds = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(tl.maximum(first_chunk + 1 - n_past, 0) * C, L, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        n = n_past + start // C
        first = tl.load(first_ptr + b * N + n)
        candidate = (chunks >= first) & (chunks < n)
        q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, rows < L, K, BLOCK_K)
        at = br * L + rows.to(tl.int64)
        chosen, lse, t = tl.load(chosen_ptr + at), tl.load(lse_ptr + at), tl.load(t_ptr + at)
        r = tl.dot(s, tl.trans(q), input_precision="ieee") * scale
        rp = tl.where(candidate[:, None], tl.exp(r - lse[None, :]), 0.0)
        hit = (chunks[:, None] == chosen[None, :]) & candidate[:, None]
        dr = t[None, :] * (hit.to(tl.float32) - rp)
        ds += tl.dot(dr.to(q.dtype), q, input_precision="ieee")
    dims = tl.arange(0, BLOCK_K)[None, :]
    ds_at = ds_ptr + ((b * N + chunks.to(tl.int64)) * R + h)[:, None] * K + dims
    tl.store(ds_at, (ds * scale).to(ds_ptr.dtype.element_ty), mask=ok[:, None] & (dims < K))


@triton.jit
def _mass(
    q, k_ptr, k_base, k_t, chunk, scale,
    C: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """log sum exp of the scores of one whole chunk, [M]."""
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, C, BLOCK_N):
        keys = chunk * C + start + tl.arange(0, BLOCK_N)
        k = load_rows(k_ptr, k_base, keys, k_t, keys >= 0, K, BLOCK_K)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        m_new = tl.maximum(m, tl.max(s, 1))
        total = total * tl.exp(m - m_new) + tl.sum(tl.exp(s - m_new[:, None]), 1)
        m = m_new
    return m + tl.log(total)


@triton.jit
def exact_forward(
    q_ptr, k_ptr, own_ptr, first_ptr, forced_ptr, chosen_ptr, lse_ptr, rp_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, H, L, N, n_past, scale, inv_tau_r,
    C: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FORCED: tl.constexpr, OWN: tl.constexpr,
):  # fmt: skip
    """q [B, L, H, K] against every key k [B, N C, H, K] of the candidate chunks."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    begin = tl.program_id(1) * BLOCK_M
    rows = begin + tl.arange(0, BLOCK_M)
    n = n_past + begin // C
    q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, rows < L, K, BLOCK_K)
    at = bh * L + rows.to(tl.int64)
    forced = tl.load(forced_ptr + at) if FORCED else rows
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    best = tl.full([BLOCK_M], 0, tl.int32)
    total = tl.zeros([BLOCK_M], tl.float32)
    taken = tl.full([BLOCK_M], float("-inf"), tl.float32)
    for chunk in range(tl.load(first_ptr + b * N + n), n):
        r = _mass(q, k_ptr, b * k_b + h * k_h, k_t, chunk, scale, C, K, BLOCK_K, BLOCK_M, BLOCK_N) * inv_tau_r
        m, best, total, taken = _carry(r, chunk, m, best, total, taken, forced, FORCED)
    _finish(own_ptr, chosen_ptr, lse_ptr, rp_ptr, at, n, m, best, total, taken, forced, FORCED, OWN)


@triton.jit
def exact_backward_queries(
    q_ptr, k_ptr, first_ptr, chosen_ptr, lse_ptr, t_ptr, dq_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, H, L, N, n_past, scale, inv_tau_r,
    C: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dq [B, L, H, K]: dS_ij = dr_c / tau_r exp(s_ij - mass_c) for the keys j of chunk c."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    begin = tl.program_id(1) * BLOCK_M
    rows = begin + tl.arange(0, BLOCK_M)
    n = n_past + begin // C
    every = rows < L
    q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, every, K, BLOCK_K)
    at = bh * L + rows.to(tl.int64)
    chosen, lse, t = tl.load(chosen_ptr + at), tl.load(lse_ptr + at), tl.load(t_ptr + at)
    base = b * k_b + h * k_h
    dq = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
    for chunk in range(tl.load(first_ptr + b * N + n), n):
        mass = _mass(q, k_ptr, base, k_t, chunk, scale, C, K, BLOCK_K, BLOCK_M, BLOCK_N)
        dr = t * ((chosen == chunk).to(tl.float32) - tl.exp(mass * inv_tau_r - lse))
        for start in range(0, C, BLOCK_N):
            keys = chunk * C + start + tl.arange(0, BLOCK_N)
            k = load_rows(k_ptr, base, keys, k_t, keys >= 0, K, BLOCK_K)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            ds = dr[:, None] * tl.exp(s - mass[:, None])
            dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    dims = tl.arange(0, BLOCK_K)[None, :]
    dq_at = dq_ptr + ((b * L + rows.to(tl.int64)) * H + h)[:, None] * K + dims
    tl.store(dq_at, (dq * scale * inv_tau_r).to(dq_ptr.dtype.element_ty), mask=every[:, None] & (dims < K))


@triton.jit
def exact_backward_keys(
    q_ptr, k_ptr, first_ptr, chosen_ptr, lse_ptr, t_ptr, dk_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, H, L, N, n_past, scale, inv_tau_r,
    C: tl.constexpr, K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dk [B, N C, H, K] of a tile of keys, over all later queries; each needs the whole chunk's mass
    again.
    """
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    first_key = tl.program_id(1) * BLOCK_N
    keys = first_key + tl.arange(0, BLOCK_N)
    chunk = first_key // C
    base = b * k_b + h * k_h
    ok = keys < N * C  # all true
    k = load_rows(k_ptr, base, keys, k_t, ok, K, BLOCK_K)
    dk = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    for start in range(tl.maximum(chunk + 1 - n_past, 0) * C, L, BLOCK_M):
        if tl.load(first_ptr + b * N + n_past + start // C) <= chunk:
            rows = start + tl.arange(0, BLOCK_M)
            q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, rows < L, K, BLOCK_K)
            at = bh * L + rows.to(tl.int64)
            chosen, lse, t = tl.load(chosen_ptr + at), tl.load(lse_ptr + at), tl.load(t_ptr + at)
            mass = _mass(q, k_ptr, base, k_t, chunk, scale, C, K, BLOCK_K, BLOCK_M, BLOCK_N)
            dr = t * ((chosen == chunk).to(tl.float32) - tl.exp(mass * inv_tau_r - lse))
            s = tl.dot(k, tl.trans(q), input_precision="ieee") * scale
            ds = dr[None, :] * tl.exp(s - mass[None, :])
            dk += tl.dot(ds.to(q.dtype), q, input_precision="ieee")
    dims = tl.arange(0, BLOCK_K)[None, :]
    dk_at = dk_ptr + ((b * N * C + keys.to(tl.int64)) * H + h)[:, None] * K + dims
    tl.store(dk_at, (dk * scale * inv_tau_r).to(dk_ptr.dtype.element_ty), mask=ok[:, None] & (dims < K))
