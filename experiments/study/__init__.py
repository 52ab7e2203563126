"""A study's folder and its journal.

Imports spec and plan.
"""
