"""The service's one top-level package. Its four packages are links to the repository's folders of these names."""
