"""How the alert store came to its present shape, one file per step.

Steps are written out and never edited after a release: ``api/tables.py`` may move on, a store
in the field may not.
"""
