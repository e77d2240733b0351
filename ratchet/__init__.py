"""Ratchet: a persistent job scheduler with fenced claims."""

__version__ = "0.1.0"
