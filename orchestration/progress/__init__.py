"""What a running study shows: its state folded from events, the live table, the log.

Imports groups (events), `experiments.plan`, `experiments.analysis.measures` and
`training.records`; neither Ray Tune nor MLflow.
"""
