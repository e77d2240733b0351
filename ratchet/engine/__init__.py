"""The running node: from claim to settlement."""
