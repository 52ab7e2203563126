"""Imports base, cluster, `experiments/{spec,study}`, `training/checkpoint`."""
