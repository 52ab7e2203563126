"""One study from spec to report: opened, checked, run, resumed.

Imports all rooms above but commands.
"""
