"""Where the coordinator's log is kept. No Ray: the embedded runner uses it as well."""
