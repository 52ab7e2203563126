"""Stages 1, 2, 8 and 9: the study spec, its plan, the analysis of its trials, and the report.

Everything here is pure: no Ray, no torch, no MLflow. A report can be rebuilt from a study's folder alone.
"""
