"""The cohort tier: one ten-second window per GPU, peers of a job across nodes, river models.

river costs 10 to 100 µs a call, so it never sees a sample: it sees one row of at most five
features per cohort and window.
"""
