"""Mail for the environment `email_search`: reads mail files, prepares inboxes and questions, and takes uploads."""
