"""planonce runtime."""
