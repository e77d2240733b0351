"""The store in its sync form, generated from the async one."""
