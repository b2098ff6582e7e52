"""Who may do what: keys, scopes, sealed secrets, the audit log, what is shown to whom."""
