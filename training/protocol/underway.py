"""How a client asks an engine whether it is still working on a request: the request's header, and the path to ask."""

HEADER = "x-learnloop-request"
"""Header with an id for the request, which the client chooses."""
PATH = "/v1/preview/requests"
"""Path to ask, to which the client appends a slash and the id."""
