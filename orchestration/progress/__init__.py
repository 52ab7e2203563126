"""Imports `analysis/measures` and `plan`; no Ray, no MLflow."""
