"""Errors of the analysis."""

from seqarch.errors import SeqarchError


class ComparisonError(SeqarchError):
    """Rows that must not be compared (other documents, windows, tokenizers, phases), or rows missing."""
