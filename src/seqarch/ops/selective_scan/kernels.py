# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of the selective scan, forward and backward. Formulas: `reference.py`.

A program owns BD channels of one sequence and walks over tiles of BT steps, the state [BD, S] in registers;
inside a tile the recurrence is an associative scan over time. The forward saves the state before each
tile, the backward walks the tiles in reverse and computes the states inside them again. No atomics:
gradients that several programs share (dA over sequences; dB, dC over channels) are written apart and
summed afterwards, so that two runs agree to the bit. Steps beyond T count as Δ = 0, which changes no state.
"""

import triton
import triton.language as tl


@triton.jit
def _compose(decay_1, x_1, decay_2, x_2):
    """h -> decay_2 (decay_1 h + x_1) + x_2."""
    return decay_1 * decay_2, decay_2 * x_1 + x_2


@triton.jit
def _tile_bd(ptr, row, steps, channels, D: tl.constexpr, mask):
    """[BT, BD] of [B, T, D], whose row starts at `row`."""
    offsets = row * D + steps[:, None] * D + channels[None, :]
    return tl.load(ptr + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _tile_bs(ptr, row, steps, states, S: tl.constexpr, mask):
    """[BT, BS] of [B, T, S]."""
    offsets = row * S + steps[:, None] * S + states[None, :]
    return tl.load(ptr + offsets, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def selective_scan_forward(
    u_ptr,
    delta_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    keep_ptr,
    initial_ptr,
    y_ptr,
    tiles_ptr,
    final_ptr,
    T,
    D: tl.constexpr,
    S: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
    BS: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    HAS_KEEP: tl.constexpr,
):
    """Grid (B * ceil(D / BD)). tiles [B, ceil(T / BT), D, S]: the state before each tile, float32."""
    blocks: tl.constexpr = (D + BD - 1) // BD
    program = tl.program_id(0).to(tl.int64)
    sequence, block = program // blocks, program % blocks
    channels = block * BD + tl.arange(0, BD)
    states = tl.arange(0, BS)
    row = sequence * T
    n_tiles = tl.cdiv(T, BT)
    matrix = channels[:, None] * S + states[None, :]
    in_matrix = (channels[:, None] < D) & (states[None, :] < S)
    A = tl.load(A_ptr + matrix, mask=in_matrix, other=0.0).to(tl.float32)
    h = tl.zeros([BD, BS], tl.float32)
    if HAS_INITIAL:
        h = tl.load(initial_ptr + sequence * D * S + matrix, mask=in_matrix, other=0.0).to(tl.float32)
    last = tl.arange(0, BT)[:, None, None] == BT - 1

    for tile in range(n_tiles):
        tl.store(tiles_ptr + (sequence * n_tiles + tile) * D * S + matrix, h, mask=in_matrix)
        steps = tile * BT + tl.arange(0, BT).to(tl.int64)
        in_bd = (steps[:, None] < T) & (channels[None, :] < D)
        in_bs = (steps[:, None] < T) & (states[None, :] < S)
        u = _tile_bd(u_ptr, row, steps, channels, D, in_bd)
        delta = _tile_bd(delta_ptr, row, steps, channels, D, in_bd)
        B = _tile_bs(B_ptr, row, steps, states, S, in_bs)
        C = _tile_bs(C_ptr, row, steps, states, S, in_bs)
        decay = tl.exp(delta[:, :, None] * A[None, :, :])
        if HAS_KEEP:
            keep = tl.load(keep_ptr + row + steps, mask=steps < T, other=1.0)
            decay = decay * keep[:, None, None]
        x = (delta * u)[:, :, None] * B[:, None, :]
        decay, x = tl.associative_scan((decay, x), 0, _compose)
        inside = x + decay * h[None, :, :]
        y = tl.sum(inside * C[:, None, :], 2)
        offsets = row * D + steps[:, None] * D + channels[None, :]
        tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=in_bd)
        h = tl.sum(tl.where(last, inside, 0.0), 0)
    tl.store(final_ptr + sequence * D * S + matrix, h, mask=in_matrix)


@triton.jit
def selective_scan_backward(
    u_ptr,
    delta_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    keep_ptr,
    tiles_ptr,
    dy_ptr,
    d_final_ptr,
    du_ptr,
    d_delta_ptr,
    dA_ptr,
    dB_ptr,
    dC_ptr,
    d_initial_ptr,
    T,
    D: tl.constexpr,
    S: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
    BS: tl.constexpr,
    HAS_KEEP: tl.constexpr,
):
    """Grid as the forward. dA [B, D, S], dB and dC [blocks, B, T, S], all float32, to be summed over dim
    0.
    """
    blocks: tl.constexpr = (D + BD - 1) // BD
    program = tl.program_id(0).to(tl.int64)
    sequence, block = program // blocks, program % blocks
    sequences = tl.num_programs(0).to(tl.int64) // blocks
    channels = block * BD + tl.arange(0, BD)
    states = tl.arange(0, BS)
    row = sequence * T
    n_tiles = tl.cdiv(T, BT)
    matrix = channels[:, None] * S + states[None, :]
    in_matrix = (channels[:, None] < D) & (states[None, :] < S)
    A = tl.load(A_ptr + matrix, mask=in_matrix, other=0.0).to(tl.float32)
    dA = tl.zeros([BD, BS], tl.float32)
    # gradient of the state after the tile, before the next step's decay
    carry = tl.load(d_final_ptr + sequence * D * S + matrix, mask=in_matrix, other=0.0).to(tl.float32)
    first = tl.arange(0, BT)[:, None, None] == 0
    last = tl.arange(0, BT)[:, None, None] == BT - 1

    for back in range(n_tiles):
        tile = n_tiles - 1 - back
        start = tl.load(tiles_ptr + (sequence * n_tiles + tile) * D * S + matrix, mask=in_matrix, other=0.0)
        steps = tile * BT + tl.arange(0, BT).to(tl.int64)
        in_bd = (steps[:, None] < T) & (channels[None, :] < D)
        in_bs = (steps[:, None] < T) & (states[None, :] < S)
        u = _tile_bd(u_ptr, row, steps, channels, D, in_bd)
        delta = _tile_bd(delta_ptr, row, steps, channels, D, in_bd)
        dy = _tile_bd(dy_ptr, row, steps, channels, D, in_bd)
        B = _tile_bs(B_ptr, row, steps, states, S, in_bs)
        C = _tile_bs(C_ptr, row, steps, states, S, in_bs)
        decay = tl.exp(delta[:, :, None] * A[None, :, :])
        # the decays one step later; the carry already stands behind the tile's last step
        within = (tl.arange(0, BT) < BT - 1) & (steps + 1 < T)
        later = _tile_bd(delta_ptr, row, steps + 1, channels, D, within[:, None] & (channels[None, :] < D))
        decay_later = tl.exp(later[:, :, None] * A[None, :, :])
        if HAS_KEEP:
            keep = tl.load(keep_ptr + row + steps, mask=steps < T, other=1.0)
            keep_later = tl.load(keep_ptr + row + steps + 1, mask=within, other=1.0)
            decay = decay * keep[:, None, None]
            decay_later = decay_later * keep_later[:, None, None]
        x = (delta * u)[:, :, None] * B[:, None, :]
        run, h = tl.associative_scan((decay, x), 0, _compose)
        h = h + run * start[None, :, :]

        # g_t = C_t dy_t + a_{t+1} g_{t+1}, from the tile's end
        ask = dy[:, :, None] * C[:, None, :] + tl.where(last, carry[None, :, :], 0.0)
        _, g = tl.associative_scan((decay_later, ask), 0, _compose, reverse=True)
        w = g * (h - x)  # g ∘ a ∘ h_{t-1}: h_t - x_t is the decayed state
        if HAS_KEEP:
            w = w * keep[:, None, None]
        dx = tl.sum(g * B[:, None, :], 2)
        d_delta = tl.sum(w * A[None, :, :], 2) + dx * u
        dA += tl.sum(w * delta[:, :, None], 0)
        offsets = row * D + steps[:, None] * D + channels[None, :]
        tl.store(du_ptr + offsets, (dx * delta).to(du_ptr.dtype.element_ty), mask=in_bd)
        tl.store(d_delta_ptr + offsets, d_delta.to(d_delta_ptr.dtype.element_ty), mask=in_bd)
        partial = ((block * sequences + sequence) * T + steps[:, None]) * S + states[None, :]
        tl.store(dB_ptr + partial, tl.sum(g * (delta * u)[:, :, None], 1), mask=in_bs)
        tl.store(dC_ptr + partial, tl.sum(h * dy[:, :, None], 1), mask=in_bs)
        carry = tl.sum(tl.where(first, g * decay, 0.0), 0)
    tl.store(dA_ptr + sequence * D * S + matrix, dA, mask=in_matrix)
    tl.store(d_initial_ptr + sequence * D * S + matrix, carry, mask=in_matrix)
