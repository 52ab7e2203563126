"""The summary as sentences.

Imports plan and measures.
"""
