"""Errors of the figures."""

from seqarch.errors import SeqarchError


class FigureError(SeqarchError):
    """A figure has nothing to draw, or lacks a table."""
