"""The command line: every command, its options, and what it prints.

Imports all other rooms. Nothing imports it.
"""
