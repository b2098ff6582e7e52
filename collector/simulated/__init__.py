"""A fleet that exists only in numbers: a physical model of GPU nodes with labelled faults."""
