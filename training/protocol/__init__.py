"""Formats shared by model servers and their clients: names, JSON, OpenAI's Responses API."""
