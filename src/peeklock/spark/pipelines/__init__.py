"""Pipelines on Spark: capture, replay, dead-letter triage and the flow report."""
