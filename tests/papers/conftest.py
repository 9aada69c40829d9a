"""Recipes in temporary files, and a stand-in for training that takes no time."""

from tests.tables.conftest import small, training, write

__all__ = ["small", "training", "write"]
