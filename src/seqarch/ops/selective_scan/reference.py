"""The selective scan of Mamba-1 (Gu and Dao 2023, arXiv 2312.00752, section 3.2) in plain PyTorch.

    h_t = exp(Δ_t A) ∘ h_{t-1} + (Δ_t u_t) B_tᵀ        y_t = h_t C_t        h [D, S]

Sizes: B batch, T time, D channels, S states per channel, C positions per chunk, G chunks per block.

Blocks follow each other; inside a block every loop runs over the C positions of a chunk, all G chunks at
once:

1. local   run each chunk from a zero state: what it adds to the state at its end;
2. carry   walk over the G chunks: the state at the start of each (saved for the backward pass);
3. emit    run each chunk from its true start state and read y.

The backward pass is the same walk in reverse, with ḡ_t = dL/dh_t:

    ḡ_t = C_t dy_tᵀ + a_{t+1} ∘ ḡ_{t+1}      a_t = exp(Δ_t A)      w_t = ḡ_t ∘ a_t ∘ h_{t-1} = dL/d(Δ_t A)
    dA = Σ_t w_t Δ_t     dΔ_t = Σ_s w_ts A_s + dx_t u_t     dx_t = Σ_s ḡ_ts B_ts     dB_t = ḡ_t x_t
    dC_t = h_t dy_t

Nothing of size T·D·S is ever held: a block's working set is bounded (`BLOCK_ELEMENTS`), and one start state a
chunk is saved. Internally the state is [S, D]: the long axis last, so that every elementwise step is
vectorised.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seqarch.ops.common import uncompiled

CHUNK_SIZE = 16
# Elements of one position of all chunks of a block: 0.25 MB in float32, what a core keeps in its cache.
BLOCK_ELEMENTS = 1 << 16
MIN_CHUNKS = 4


def selective_scan_recurrent(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    initial_state: Tensor | None = None,
    starts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The recurrence, one step at a time: for decoding and as an oracle. Shapes as in `selective_scan`."""
    h = u.new_zeros(u.shape[0], *A.shape) if initial_state is None else initial_state
    outputs = []
    for t in range(u.shape[1]):
        decay = torch.exp(delta[:, t, :, None] * A)
        if starts is not None:
            decay = decay * ~starts[:, t, None, None]
        h = decay * h + (delta[:, t] * u[:, t])[:, :, None] * B[:, t, None, :]
        outputs.append(torch.einsum("bds,bs->bd", h, C[:, t]))
    return torch.stack(outputs, 1), h


class _Block(NamedTuple):
    """One block of time, position in the chunk first: [C, B, G, …]."""

    x_CBG1D: Tensor
    delta_CBG1D: Tensor
    B_CBGS1: Tensor
    C_CBG1S: Tensor
    starts_CBG11: Tensor | None

    def decays(self, A_SD: Tensor, out_CBGSD: Tensor) -> tuple[Tensor, ...]:
        """a_i = exp(Δ_i A), 0 where a document starts, one [B, G, S, D] a position."""
        torch.mul(self.delta_CBG1D, A_SD, out=out_CBGSD).exp_()
        if self.starts_CBG11 is not None:
            out_CBGSD.masked_fill_(self.starts_CBG11, 0)
        return out_CBGSD.unbind(0)


class SelectiveScan(torch.autograd.Function):
    """(u, delta, A, B, C, initial_state, starts, chunk_size) -> (y, final state)."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        initial_state: Tensor | None,
        starts: Tensor | None,
        chunk_size: int,
    ) -> tuple[Tensor, Tensor]:
        A_SD = A.t().contiguous()
        blocks = _Blocks(u, delta, B, C, starts, A.shape[1], chunk_size)
        state = (
            u.new_zeros(u.shape[0], *A_SD.shape) if initial_state is None else initial_state.mT.contiguous()
        )
        workspace = blocks.workspace()
        chunk_starts, outputs = [], []
        for n in range(blocks.count):
            block = blocks.get(n)
            a = block.decays(A_SD, workspace)
            start, state = _carry(_local_end_state(a, block), _product(a), state)
            chunk_starts.append(start)
            outputs.append(_emit(a, block, start))
        ctx.save_for_backward(u, delta, A, B, C, starts, *chunk_starts)
        ctx.chunk_size, ctx.has_initial_state = chunk_size, initial_state is not None
        return blocks.join(outputs), state.mT.contiguous()

    @staticmethod
    def backward(ctx: Any, dy: Tensor, d_final: Tensor) -> tuple[Tensor | None, ...]:
        u, delta, A, B, C, starts, *chunk_starts = ctx.saved_tensors
        A_SD = A.t().contiguous()
        blocks = _Blocks(u, delta, B, C, starts, A.shape[1], ctx.chunk_size)
        dy_blocks = blocks.split(dy)
        d_state = d_final.mT.contiguous()
        d_block = _BlockGradients(blocks, A_SD)
        grads = []
        for n in reversed(range(blocks.count)):
            *parts, d_state = d_block(blocks.get(n), dy_blocks[n].unsqueeze(-2), chunk_starts[n], d_state)
            grads.append(parts)
        dx, d_delta, dB, dC = (blocks.join(list(g)) for g in zip(*reversed(grads), strict=True))
        d_delta.addcmul_(dx, u)
        d_initial = d_state.mT.contiguous() if ctx.has_initial_state else None
        return dx.mul_(delta), d_delta, d_block.dA().t(), dB, dC, d_initial, None, None


@uncompiled
def selective_scan_chunked(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    initial_state: Tensor | None,
    starts: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """y [B, T, D] and the final state [B, D, S]. Shapes as in `selective_scan`."""
    return SelectiveScan.apply(u, delta, A, B, C, initial_state, starts, chunk_size)


class _Blocks:
    """Cuts time into blocks of G chunks of C positions; the end is padded with Δ = 0, which changes no
    state.
    """

    def __init__(
        self,
        u: Tensor,
        delta: Tensor,
        B: Tensor,
        C: Tensor,
        starts: Tensor | None,
        n_states: int,
        chunk_size: int,
    ) -> None:
        self.batch, self.length, channels = u.shape
        self.chunk_size = min(chunk_size, self.length)
        n_chunks = -(-self.length // self.chunk_size)
        fitting = BLOCK_ELEMENTS // (self.batch * channels * n_states)
        self.chunks = min(n_chunks, max(MIN_CHUNKS, fitting))
        self.count = -(-n_chunks // self.chunks)
        self.state_shape = (self.batch, self.chunks, n_states, channels)
        self.delta = self.split(delta)
        self.x = self.split(delta * u)
        self.B, self.C = self.split(B), self.split(C)
        self.starts = None if starts is None else self.split(starts.unsqueeze(-1))

    def workspace(self) -> Tensor:
        """Memory for one state at every position of a block: [C, B, G, S, D]."""
        return self.x[0].new_empty(self.chunk_size, *self.state_shape)

    def split(self, z_BTX: Tensor) -> list[Tensor]:
        """[B, T, X] -> one [C, B, G, X] a block."""
        length = self.count * self.chunks * self.chunk_size
        z = F.pad(z_BTX, (0, 0, 0, length - self.length))
        z = z.reshape(self.batch, self.count, self.chunks, self.chunk_size, -1)
        return list(z.permute(1, 3, 0, 2, 4).contiguous().unbind(0))

    def join(self, blocks_CBGX: list[Tensor]) -> Tensor:
        """The inverse of `split`."""
        z = torch.stack(blocks_CBGX, 1).permute(2, 1, 3, 0, 4)  # [B, count, G, C, X]
        return z.reshape(self.batch, -1, z.shape[-1])[:, : self.length]

    def get(self, n: int) -> _Block:
        return _Block(
            x_CBG1D=self.x[n].unsqueeze(-2),
            delta_CBG1D=self.delta[n].unsqueeze(-2),
            B_CBGS1=self.B[n].unsqueeze(-1),
            C_CBG1S=self.C[n].unsqueeze(-2),
            starts_CBG11=None if self.starts is None else self.starts[n].unsqueeze(-1),
        )


def _local_end_state(a: tuple[Tensor, ...], block: _Block) -> Tensor:
    """The state [B, G, S, D] at the end of each chunk when it starts from zero."""
    h = block.x_CBG1D[0] * block.B_CBGS1[0]
    for a_i, x_i, B_i in zip(a[1:], block.x_CBG1D[1:], block.B_CBGS1[1:], strict=True):
        h.mul_(a_i).addcmul_(x_i, B_i)
    return h


def _product(a: tuple[Tensor, ...]) -> Tensor:
    """The decay over a whole chunk [B, G, S, D]."""
    decay = a[0].clone()
    for a_i in a[1:]:
        decay.mul_(a_i)
    return decay


def _carry(ends: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """State [B, S, D] before the block -> (state at each chunk's start [B, G, S, D], state after the
    block).
    """
    starts = torch.empty_like(ends)
    for n in range(ends.shape[1]):
        starts[:, n] = state
        state = torch.addcmul(ends[:, n], decay[:, n], state)
    return starts, state


def _emit(a: tuple[Tensor, ...], block: _Block, start: Tensor) -> Tensor:
    """y [C, B, G, D] from each chunk's start state."""
    y = torch.empty_like(block.x_CBG1D)
    h = start.clone()
    for i, a_i in enumerate(a):
        h.mul_(a_i).addcmul_(block.x_CBG1D[i], block.B_CBGS1[i])
        torch.matmul(block.C_CBG1S[i], h, out=y[i])
    return y.squeeze(-2)


class _BlockGradients:
    """The backward pass of one block after another, in one workspace; sums dA on the way."""

    def __init__(self, blocks: _Blocks, A_SD: Tensor) -> None:
        self.A_SD = A_SD
        self.decays, self.states = blocks.workspace(), blocks.workspace()
        self.dA_BGSD = A_SD.new_zeros(blocks.state_shape)

    def dA(self) -> Tensor:
        return self.dA_BGSD.sum((0, 1))

    def __call__(
        self, block: _Block, dy_CBG1D: Tensor, start: Tensor, d_state: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Gradients (dx, dΔ without its part through x, dB, dC, d state before the block)."""
        a = block.decays(self.A_SD, self.decays)
        self._recompute_states(a, block, start)
        g, d_state = self._carry_back(a, block, dy_CBG1D, start, d_state)
        dx, d_delta = torch.empty_like(block.x_CBG1D), torch.empty_like(block.delta_CBG1D)
        dB, dC = torch.empty_like(block.B_CBGS1), torch.empty_like(block.B_CBGS1)
        w = torch.empty_like(g)
        for i in reversed(range(len(a))):
            dy_i, B_i, C_i = dy_CBG1D[i], block.B_CBGS1[i], block.C_CBG1S[i]
            torch.matmul(self.states[i], dy_i.mT, out=dC[i])
            g.addcmul_(C_i.mT, dy_i)  # ḡ_i
            torch.matmul(B_i.mT, g, out=dx[i])
            torch.matmul(g, block.x_CBG1D[i].mT, out=dB[i])
            g.mul_(a[i])
            torch.mul(g, self.states[i - 1] if i else start, out=w)
            self.dA_BGSD.addcmul_(w, block.delta_CBG1D[i])
            torch.sum(w.mul_(self.A_SD), -2, keepdim=True, out=d_delta[i])
        return dx.squeeze(-2), d_delta.squeeze(-2), dB.squeeze(-1), dC.squeeze(-1), d_state

    def _recompute_states(self, a: tuple[Tensor, ...], block: _Block, start: Tensor) -> None:
        previous = start
        for i, a_i in enumerate(a):
            torch.mul(a_i, previous, out=self.states[i]).addcmul_(block.x_CBG1D[i], block.B_CBGS1[i])
            previous = self.states[i]

    @staticmethod
    def _carry_back(
        a: tuple[Tensor, ...], block: _Block, dy_CBG1D: Tensor, start: Tensor, d_state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradient of the state after the block -> (of the state after each chunk, of the state before the
        block).
        """
        local = torch.zeros_like(start)  # what the chunk's own outputs ask of the state before it
        for i in reversed(range(len(a))):
            local.addcmul_(block.C_CBG1S[i].mT, dy_CBG1D[i]).mul_(a[i])
        decay = _product(a)
        d_ends = torch.empty_like(start)
        for n in reversed(range(start.shape[1])):
            d_ends[:, n] = d_state
            d_state = torch.addcmul(local[:, n], decay[:, n], d_state)
        return d_ends, d_state
