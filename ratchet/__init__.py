"""Ratchet: a persistent job scheduler on the database you already have."""

__version__ = "0.1.0"
