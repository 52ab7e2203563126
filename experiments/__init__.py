"""Spec, plan, study folder, analysis and report: pure Python, no Ray, no torch, no MLflow.

A report can be rebuilt from a study's folder alone. Of `training` only `config` and
`registry` are imported, which load no torch.
"""
