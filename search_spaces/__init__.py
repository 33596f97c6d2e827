"""Search spaces and tasks, one module a campaign."""
