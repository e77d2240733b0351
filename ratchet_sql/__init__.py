"""Stores on SQL databases: SQLite, embedded by default."""
