"""What a running study shows: its state folded from events, the live table, the log, Prometheus metrics.

Imports groups (events and the pool's snapshot), `experiments.plan`, `experiments.analysis.measures` and
`training.records`; neither Ray Tune nor MLflow.
"""
