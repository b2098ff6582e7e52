"""Alertmanager's API v2 over this store: what its tools ask for, and what others push in."""
