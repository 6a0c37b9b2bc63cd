"""Finds or creates the W&B project that traces belong to, through W&B's GraphQL API.

The package `weave` could do this, but its import takes ten seconds and patches other libraries.
"""

import httpx

from learnloop.http_settings import route
from learnloop_service.environment.base import Json

_TIMEOUT_S = 10.0

_WHO_AM_I = "query DefaultEntity { viewer { defaultEntity { name } } }"
_PROJECT = """query Project($name: String!, $entityName: String!) {
    project(name: $name, entityName: $entityName) { name }
}"""
_CREATE_PROJECT = """mutation UpsertModel($name: String!, $entity: String!) {
    upsertModel(input: { name: $name, entityName: $entity }) { model { name } }
}"""


class ProjectUnavailable(Exception):
    """The project does not exist and could not be created."""


def open_project(project: str, api_key: str, base_url: str) -> str:
    """Return ENTITY/PROJECT for a name that can lack the entity. The project is created if missing. Blocking.

    Raises ProjectUnavailable, or httpx.HTTPError if W&B is unavailable.
    """
    settings = {"auth": httpx.BasicAuth("api", api_key), "timeout": _TIMEOUT_S, **route(base_url)}
    with httpx.Client(base_url=base_url, **settings) as http:
        entity, _, name = project.rpartition("/")
        entity = entity or _default_entity(http)
        node = _graphql(http, _PROJECT, entityName=entity, name=name).get("project")
        if node is None:
            creation = _graphql(http, _CREATE_PROJECT, entity=entity, name=name).get("upsertModel") or {}
            node = creation.get("model")
        if node is None:
            raise ProjectUnavailable(f"there is no project {name} of {entity}, and it could not be made")
        return f"{entity}/{node['name']}"


def _default_entity(http: httpx.Client) -> str:
    viewer = _graphql(http, _WHO_AM_I).get("viewer") or {}
    if name := (viewer.get("defaultEntity") or {}).get("name"):
        return str(name)
    raise ProjectUnavailable("the key has no entity of its own: name the project as ENTITY/PROJECT")


def _graphql(http: httpx.Client, query: str, **variables: str) -> dict[str, Json]:
    response = http.post("/graphql", json={"query": query, "variables": variables})
    answer = response.raise_for_status().json()
    if errors := answer.get("errors"):
        raise ProjectUnavailable(str(errors[0].get("message"))[:300])
    return answer.get("data") or {}
