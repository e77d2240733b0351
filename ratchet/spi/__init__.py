"""What can be replaced: Protocols only. An implementation imports from here and from `ratchet.domain`."""
