"""What both Top-1 ops refuse, before anything is computed."""

from torch import Tensor

from seqarch.errors import SeqarchError


class Top1InputError(SeqarchError):
    """The inputs or the options of a Top-1 op do not fit together."""


def check_inputs(op: str, q: Tensor, k: Tensor, v: Tensor, segment_ids: Tensor | None) -> None:
    """q, k [B, T, H, K] and v [B, T, H, V] of one floating dtype on one device, T >= 1; segment_ids int [B,
    T].
    """
    if q.dim() != 4 or k.shape != q.shape or v.dim() != 4 or v.shape[:3] != q.shape[:3]:
        raise Top1InputError(
            f"{op}: expected q, k [B, T, H, K] and v [B, T, H, V], got "
            f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )
    if 0 in q.shape or 0 in v.shape:
        raise Top1InputError(
            f"{op}: an empty dimension in q {tuple(q.shape)} or v {tuple(v.shape)}: skip empty batches"
        )
    if not q.is_floating_point() or not q.dtype == k.dtype == v.dtype:
        raise Top1InputError(
            f"{op}: expected one floating dtype, got q {q.dtype}, k {k.dtype}, v {v.dtype}: cast first"
        )
    if not q.device == k.device == v.device:
        raise Top1InputError(
            f"{op}: q, k, v lie on {q.device}, {k.device}, {v.device}: move them to one device"
        )
    if segment_ids is not None and (segment_ids.shape != q.shape[:2] or segment_ids.is_floating_point()):
        raise Top1InputError(
            f"{op}: expected integer segment_ids {tuple(q.shape[:2])}, "
            f"got {segment_ids.dtype} {tuple(segment_ids.shape)}"
        )


def check_choice(op: str, name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise Top1InputError(f"{op}: {name}={value!r} is not one of {', '.join(allowed)}")


def check_positive(op: str, name: str, value: float) -> None:
    if not value > 0:
        raise Top1InputError(f"{op}: {name} must be positive, got {value}")
