"""Data sets: reading and fetching them; each kind has its file."""

from smadmm.data.libsvm import Dataset, as_signs, half_split, load_libsvm

__all__ = ["Dataset", "as_signs", "half_split", "load_libsvm"]
