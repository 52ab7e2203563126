"""Imports base, cluster (ports), storage, groups (events, record, failures), `experiments`."""
