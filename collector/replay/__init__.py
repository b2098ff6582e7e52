"""Recorded telemetry as a source of samples: nvidia-smi CSV, foreshock JSONL and mapped tables."""
