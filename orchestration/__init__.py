"""The entry."""
