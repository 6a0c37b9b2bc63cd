"""Types of a small API. `python -m scripts.check_dashboard` has the compiler read those of the real one."""

from typing import Any

from learnloop_service.app.http.typescript import client_types

JSON = "application/json"
API: Any = {
    "components": {
        "schemas": {
            "Choice": {"properties": {"name": {"type": "string"}, "config": {"type": "object"}}, "required": ["name"]},
            "Status": {"enum": ["queued", "running"]},
            "Out": {
                "properties": {
                    "status": {"$ref": "#/components/schemas/Status"},
                    "error": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "steps": {"type": "array", "items": {"type": "integer"}},
                    "range": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}]},
                    "links": {"type": "object", "additionalProperties": {"type": "string"}},
                }
            },
        }
    },
    "paths": {
        "/x": {
            "post": {
                "operationId": "start_x",
                "requestBody": {
                    "content": {JSON: {"schema": {"properties": {"choice": {"$ref": "#/components/schemas/Choice"}}}}}
                },
            },
            "get": {"operationId": "get_x"},
        }
    },
}
TYPES = """
export interface Choice {
  "name": string;
  "config"?: Record<string, any>;
}

export interface Out {
  "status": Status;
  "error": string | null;
  "steps": (number)[];
  "range": [number, string];
  "links": Record<string, string>;
}

export interface StartXBody {
  "choice"?: Choice;
}

export type Status = "queued" | "running";
"""


def test_requests_can_leave_fields_out_and_replies_have_all() -> None:
    assert client_types(API).partition("\n")[2] == TYPES
