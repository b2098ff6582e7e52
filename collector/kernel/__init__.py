"""The kernel log as a source of events: Xid and SXid lines, and GPUs that fell off the bus."""
