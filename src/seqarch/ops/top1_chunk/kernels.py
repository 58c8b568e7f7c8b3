"""Triton kernels of the attention over own and chosen chunk; the formulas are those of `grouped.py`.

q [B, L, H, K] holds the last L of the grid's N C places; k, v [B, N C, H, .]; any strides but 1 for channels.
Rows of per-query numbers are [B, H, L]. A tile of queries lies in one chunk (local stream), or shares one
chosen chunk (chosen
stream: `order` lists the queries of a head by chunk). Each (query, head) occurs once in each stream, so all
writes are unique and nothing is atomic. Offsets are int64; fp32 products are "ieee".
"""

import triton
import triton.language as tl


@triton.jit
def load_rows(ptr, base, rows, stride, ok, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """[M, BLOCK] of rows of WIDTH channels; zeros where not ok."""
    dims = tl.arange(0, BLOCK)
    mask = ok[:, None] & (dims[None, :] < WIDTH)
    return tl.load(ptr + base + rows.to(tl.int64)[:, None] * stride + dims[None, :], mask=mask, other=0.0)


@triton.jit
def _attend(q, k, v, s_mask, m, total, acc, scale):
    """One more tile of keys in an online softmax: running maximum, sum, weighted values."""
    s = tl.where(s_mask, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
    m_new = tl.maximum(m, tl.max(s, 1))
    safe = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.exp(s - safe[:, None])
    shrink = tl.exp(m - safe)
    acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return m_new, total * shrink + tl.sum(p, 1), acc


@triton.jit
def local_forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, H, L, past, scale,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """o [B, L, H, V] float32, lse [B, H, L] of the own chunk, causal. `past`: places before the first
    query.
    """
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    begin = tl.program_id(1) * BLOCK_M
    rows = begin + tl.arange(0, BLOCK_M)
    every = rows < L  # all true: L is a multiple of C, and C of BLOCK_M
    q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, every, K, BLOCK_K)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    for start in range(begin // C * C, begin + BLOCK_M, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        ok = keys < L
        k = load_rows(k_ptr, b * k_b + h * k_h, past + keys, k_t, ok, K, BLOCK_K)
        v = load_rows(v_ptr, b * v_b + h * v_h, past + keys, v_t, ok, V, BLOCK_V)
        m, total, acc = _attend(q, k, v, keys[None, :] <= rows[:, None], m, total, acc, scale)
    dims = tl.arange(0, BLOCK_V)
    r64 = rows.to(tl.int64)
    o_at = o_ptr + ((b * L + r64) * H + h)[:, None] * V + dims[None, :]
    tl.store(o_at, acc / total[:, None], mask=every[:, None] & (dims[None, :] < V))
    tl.store(lse_ptr + bh * L + r64, m + tl.log(total), mask=every)


@triton.jit
def chosen_forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, order_ptr, offsets_ptr, tile_chunk_ptr, tile_start_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, H, L, N, n_tiles, scale,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALWAYS: tl.constexpr,
):  # fmt: skip
    """A tile of the queries that chose one chunk: merged into o and lse (ALWAYS) or put in their place."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    chunk = tl.load(tile_chunk_ptr + bh * n_tiles + tl.program_id(1))
    if chunk < N:
        begin = tl.load(tile_start_ptr + bh * n_tiles + tl.program_id(1))
        end = tl.load(offsets_ptr + bh * (N + 1) + chunk + 1)
        slots = begin + tl.arange(0, BLOCK_M)
        ok = slots < end
        rows = tl.load(order_ptr + bh * L + slots, mask=ok, other=0)
        q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, ok, K, BLOCK_K)
        m = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
        for start in range(0, C, BLOCK_N):
            keys = chunk * C + start + tl.arange(0, BLOCK_N)
            whole = keys < N * C  # all true
            k = load_rows(k_ptr, b * k_b + h * k_h, keys, k_t, whole, K, BLOCK_K)
            v = load_rows(v_ptr, b * v_b + h * v_h, keys, v_t, whole, V, BLOCK_V)
            m, total, acc = _attend(q, k, v, whole[None, :], m, total, acc, scale)
        dims = tl.arange(0, BLOCK_V)
        r64 = rows.to(tl.int64)
        o_at = o_ptr + ((b * L + r64) * H + h)[:, None] * V + dims[None, :]
        o_ok = ok[:, None] & (dims[None, :] < V)
        lse = m + tl.log(total)
        o = acc / total[:, None]
        if ALWAYS:
            own_lse = tl.load(lse_ptr + bh * L + r64, mask=ok, other=0.0)
            share = 1.0 / (1.0 + tl.exp(own_lse - lse))  # of the chosen chunk
            o = share[:, None] * o + (1.0 - share)[:, None] * tl.load(o_at, mask=o_ok, other=0.0)
            top = tl.maximum(own_lse, lse)
            lse = top + tl.log(tl.exp(own_lse - top) + tl.exp(lse - top))
        tl.store(o_at, o, mask=o_ok)
        tl.store(lse_ptr + bh * L + r64, lse, mask=ok)


@triton.jit
def _tile_gradients(q, k, v, do, lse, delta, mask, scale):
    """p^T and dS^T [N keys, M queries] of one tile."""
    s = tl.dot(k, tl.trans(q), input_precision="ieee") * scale
    p = tl.where(mask, tl.exp(s - lse[None, :]), 0.0)
    return p, p * (tl.dot(v, tl.trans(do), input_precision="ieee") - delta[None, :])


@triton.jit
def backward_keys(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, chosen_ptr, order_ptr, offsets_ptr, dk_ptr, dv_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, do_b, do_t, do_h, H, L, N, past, scale,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALWAYS: tl.constexpr,
):  # fmt: skip
    """dk, dv [B, N C, H, .] of one tile of keys: from the queries of its own chunk, then from those that
    chose it.
    """
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    first_key = tl.program_id(1) * BLOCK_N
    keys = first_key + tl.arange(0, BLOCK_N)
    chunk = first_key // C
    ok_keys = keys < N * C  # all true
    k = load_rows(k_ptr, b * k_b + h * k_h, keys, k_t, ok_keys, K, BLOCK_K)
    v = load_rows(v_ptr, b * v_b + h * v_h, keys, v_t, ok_keys, V, BLOCK_V)
    dk = tl.zeros([BLOCK_N, BLOCK_K], tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)
    if chunk * C >= past:
        begin = (first_key - past) // BLOCK_M * BLOCK_M
        for start in range(begin, (chunk + 1) * C - past, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            ok = rows < L
            q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, ok, K, BLOCK_K)
            do = load_rows(do_ptr, b * do_b + h * do_h, rows, do_t, ok, V, BLOCK_V)
            lse = tl.load(lse_ptr + bh * L + rows, mask=ok, other=0.0)
            delta = tl.load(delta_ptr + bh * L + rows, mask=ok, other=0.0)
            mask = (keys[:, None] <= past + rows[None, :]) & ok[None, :]
            if not ALWAYS:
                mask = mask & (tl.load(chosen_ptr + bh * L + rows, mask=ok, other=0) < 0)[None, :]
            p, ds = _tile_gradients(q, k, v, do, lse, delta, mask, scale)
            dv += tl.dot(p.to(do.dtype), do, input_precision="ieee")
            dk += tl.dot(ds.to(q.dtype), q, input_precision="ieee")
    begin = tl.load(offsets_ptr + bh * (N + 1) + chunk)
    end = tl.load(offsets_ptr + bh * (N + 1) + chunk + 1)
    for start in range(begin, end, BLOCK_M):
        slots = start + tl.arange(0, BLOCK_M)
        ok = slots < end
        rows = tl.load(order_ptr + bh * L + slots, mask=ok, other=0)
        q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, ok, K, BLOCK_K)
        do = load_rows(do_ptr, b * do_b + h * do_h, rows, do_t, ok, V, BLOCK_V)
        lse = tl.load(lse_ptr + bh * L + rows, mask=ok, other=0.0)
        delta = tl.load(delta_ptr + bh * L + rows, mask=ok, other=0.0)
        p, ds = _tile_gradients(q, k, v, do, lse, delta, ok_keys[:, None] & ok[None, :], scale)
        dv += tl.dot(p.to(do.dtype), do, input_precision="ieee")
        dk += tl.dot(ds.to(q.dtype), q, input_precision="ieee")
    dk *= scale
    flat = ((b * N * C + keys.to(tl.int64)) * H + h)[:, None]
    dim_k, dim_v = tl.arange(0, BLOCK_K)[None, :], tl.arange(0, BLOCK_V)[None, :]
    tl.store(dk_ptr + flat * K + dim_k, dk.to(dk_ptr.dtype.element_ty), mask=ok_keys[:, None] & (dim_k < K))
    tl.store(dv_ptr + flat * V + dim_v, dv.to(dv_ptr.dtype.element_ty), mask=ok_keys[:, None] & (dim_v < V))


@triton.jit
def _query_gradient(q, k, v, do, lse, delta, mask, scale):
    """dS k of one tile of keys, and the rows' sums of p dO V^T."""
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    p = tl.where(mask, tl.exp(s - lse[:, None]), 0.0)
    weighted = p * tl.dot(do, tl.trans(v), input_precision="ieee")
    ds = weighted - p * delta[:, None]
    return tl.dot(ds.to(k.dtype), k, input_precision="ieee"), tl.sum(weighted, 1)


@triton.jit
def local_backward_queries(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, chosen_ptr, dq_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, do_b, do_t, do_h, H, L, past, scale,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ALWAYS: tl.constexpr,
):  # fmt: skip
    """dq [B, L, H, K] float32, the own chunk's part."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    begin = tl.program_id(1) * BLOCK_M
    rows = begin + tl.arange(0, BLOCK_M)
    every = rows < L
    q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, every, K, BLOCK_K)
    do = load_rows(do_ptr, b * do_b + h * do_h, rows, do_t, every, V, BLOCK_V)
    lse = tl.load(lse_ptr + bh * L + rows, mask=every, other=0.0)
    delta = tl.load(delta_ptr + bh * L + rows, mask=every, other=0.0)
    local = every
    if not ALWAYS:
        local = tl.load(chosen_ptr + bh * L + rows, mask=every, other=0) < 0
    dq = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
    for start in range(begin // C * C, begin + BLOCK_M, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        ok = keys < L
        k = load_rows(k_ptr, b * k_b + h * k_h, past + keys, k_t, ok, K, BLOCK_K)
        v = load_rows(v_ptr, b * v_b + h * v_h, past + keys, v_t, ok, V, BLOCK_V)
        mask = (keys[None, :] <= rows[:, None]) & local[:, None]
        gradient, _ = _query_gradient(q, k, v, do, lse, delta, mask, scale)
        dq += gradient
    dims = tl.arange(0, BLOCK_K)[None, :]
    dq_at = dq_ptr + ((b * L + rows.to(tl.int64)) * H + h)[:, None] * K + dims
    tl.store(dq_at, dq * scale, mask=every[:, None] & (dims < K))


@triton.jit
def chosen_backward_queries(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, part_ptr,
    order_ptr, offsets_ptr, tile_chunk_ptr, tile_start_ptr,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, do_b, do_t, do_h, H, L, N, n_tiles, scale,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Adds the chosen chunk's part to dq, and gives part [B, H, L] = dO . (the chosen chunk's part of o)."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    chunk = tl.load(tile_chunk_ptr + bh * n_tiles + tl.program_id(1))
    if chunk < N:
        begin = tl.load(tile_start_ptr + bh * n_tiles + tl.program_id(1))
        end = tl.load(offsets_ptr + bh * (N + 1) + chunk + 1)
        slots = begin + tl.arange(0, BLOCK_M)
        ok = slots < end
        rows = tl.load(order_ptr + bh * L + slots, mask=ok, other=0)
        q = load_rows(q_ptr, b * q_b + h * q_h, rows, q_t, ok, K, BLOCK_K)
        do = load_rows(do_ptr, b * do_b + h * do_h, rows, do_t, ok, V, BLOCK_V)
        lse = tl.load(lse_ptr + bh * L + rows, mask=ok, other=0.0)
        delta = tl.load(delta_ptr + bh * L + rows, mask=ok, other=0.0)
        dq = tl.zeros([BLOCK_M, BLOCK_K], tl.float32)
        part = tl.zeros([BLOCK_M], tl.float32)
        for start in range(0, C, BLOCK_N):
            keys = chunk * C + start + tl.arange(0, BLOCK_N)
            whole = keys < N * C  # all true
            k = load_rows(k_ptr, b * k_b + h * k_h, keys, k_t, whole, K, BLOCK_K)
            v = load_rows(v_ptr, b * v_b + h * v_h, keys, v_t, whole, V, BLOCK_V)
            gradient, weighted = _query_gradient(q, k, v, do, lse, delta, whole[None, :] & ok[:, None], scale)
            dq += gradient
            part += weighted
        dims = tl.arange(0, BLOCK_K)[None, :]
        dq_at = dq_ptr + ((b * L + rows.to(tl.int64)) * H + h)[:, None] * K + dims
        dq_ok = ok[:, None] & (dims < K)
        tl.store(dq_at, dq * scale + tl.load(dq_at, mask=dq_ok, other=0.0), mask=dq_ok)
        tl.store(part_ptr + bh * L + rows, part, mask=ok)
