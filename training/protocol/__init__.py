"""The forms in which models and their clients speak: names, JSON, OpenAI's Responses API."""
