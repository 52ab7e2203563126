"""Everything that touches Ray or MLflow: cluster, worker groups, sweep, tracking, study and commands.

The rooms, from the bottom: base, cluster, storage, groups, sweep, tracking, progress, study, commands. A room
imports rooms below it, `training` and `experiments`; `tests/test_architecture.py` holds the table. Ray unpickles
functions from these modules in processes that must start fast, so torch and mlflow are imported where they are used,
and so is ray outside `groups.ray_train`.
"""
