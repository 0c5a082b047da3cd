"""AdminService: what the scheduler knows, as messages that read well."""
