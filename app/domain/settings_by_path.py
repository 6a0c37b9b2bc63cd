"""The settings of a run by their dotted paths, such as `model.base_model`."""

from collections.abc import Mapping

from learnloop_service.environment.json_type import Json


def by_path(settings: Mapping[str, Json]) -> dict[str, Json]:
    """Return the values in the document that are not objects, by their paths."""
    values: dict[str, Json] = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            values |= {f"{name}.{path}": nested for path, nested in by_path(value).items()}
        else:
            values[name] = value
    return values
