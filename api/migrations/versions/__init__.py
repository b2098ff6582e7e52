"""The steps, in order of their revision."""
