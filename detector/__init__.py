"""Samples into alerts: the engine, its detectors, the cohort tier.

This package must not know HTTP or any Kafka client. Its core (everything but ``service`` and
``snapshots``) opens no socket, reads no clock and does not log.
"""
