"""One node into samples: NVML, a simulated fleet, recorded telemetry.

This package must not know statistics, thresholds or alerts. It publishes what it read, with the
reason beside every value that it could not read.
"""
