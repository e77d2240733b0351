"""What ``ratchet demo`` runs: the Python standard library, one job per file, with a worker killed on the way."""
