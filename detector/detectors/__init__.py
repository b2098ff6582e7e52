"""One file, one detector. ``detector.registry.available()`` lists this folder."""
