"""What is written down: the journal's recorder, and the thread that brings the journal to MLflow.

Imports base, cluster, storage, groups (events, records, failures) and `experiments`; never sweep.
The only room with MLflow.
"""
