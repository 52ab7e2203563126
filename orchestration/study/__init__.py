"""One study from spec to report: opened, made ready, run, resumed.

Imports all other rooms of orchestration but commands, `experiments` and `training`.
"""
