"""``foreshock demo``: a simulated fleet breaks on schedule, and foreshock has to say so."""
