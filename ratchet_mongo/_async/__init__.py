"""The store in its async form, from which the sync form is generated."""
