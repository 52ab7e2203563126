"""Imports base, groups, `experiments/{spec,plan,analysis}`."""
