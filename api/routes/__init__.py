"""The HTTP surface, one file per group of addresses."""
