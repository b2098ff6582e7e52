"""Alerts to people and tools: store, REST, event stream, webhooks.

This package must not know statistics: it shows and delivers what the detector said.
"""
