"""Records of a study: the journal's recorder, and the thread that brings the journal to MLflow.

Imports base, cluster, storage, groups (events, records, failures), `experiments` and `training`; never sweep. MLflow is
called here; `commands/bench` writes its one run by the client that `open_experiment` gives.
"""
