"""Spec, plan, study folder, analysis and report: pure Python, no Ray, no torch, no MLflow.

A report can be rebuilt from a study's folder alone. Of `training` only its
configuration is imported, which loads no torch.
"""
