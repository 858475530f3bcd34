"""The dialects, and what passes use to read, build, print and locate their operations."""
