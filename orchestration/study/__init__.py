"""One study from spec to report: opened, made ready, run, resumed.

Imports all other rooms but commands.
"""
