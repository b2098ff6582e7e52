"""What foreshock is compared with: simple detectors that people run, each tuned alike."""
