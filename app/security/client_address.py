"""Which client an address stands for."""

from ipaddress import IPv6Network


def client_of(address: str) -> str:
    """The address; of IPv6 its /64, all of which one client has."""
    if ":" not in address:
        return address
    try:
        return str(IPv6Network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
