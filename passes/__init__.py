"""planonce."""
