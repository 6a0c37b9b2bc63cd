"""How a client asks an engine whether it still works on a request: the request's header, and the path to ask at."""

HEADER = "x-learnloop-request"
"""Names a request, by an id that the client chose."""
PATH = "/v1/preview/requests"
"""Followed by the id."""
