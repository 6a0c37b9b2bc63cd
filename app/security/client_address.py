"""Maps addresses to clients, for limits per client."""

from ipaddress import IPv6Network


def client_of(address: str) -> str:
    """Return the address, or for IPv6 its /64 network, which one client typically owns as a whole."""
    if ":" not in address:
        return address
    try:
        return str(IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
