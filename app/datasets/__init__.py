"""Data that the email agent learns from: inboxes and sets of questions, prepared once, in versions."""
