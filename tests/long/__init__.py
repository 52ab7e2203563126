"""Tests with clusters, processes and signals of their own; they take some ten minutes."""
