"""The detection benchmark: a labelled fleet, faults and look-alikes, and the rivals beside.

It measures the detector and knows nothing of how it works: the generator draws its own physics
from ranges of public recordings, and the scores come from alerts alone.
"""
