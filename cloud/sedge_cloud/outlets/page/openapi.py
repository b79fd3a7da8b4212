"""Generates the OpenAPI document for the JSON interface from the records themselves."""

from functools import cache

import msgspec

from sedge_cloud.facts.records import DeviceFacts, Fleet, Problem, RunFacts
from sedge_cloud.facts.selection import DeviceSelection
from sedge_protocol import VERSION


@cache
def document() -> dict[str, object]:
    """Return the OpenAPI 3.1 document."""
    (fleet, run, devices, problems), schemas = msgspec.json.schema_components(
        [Fleet, RunFacts, tuple[DeviceFacts, ...], tuple[Problem, ...]],
        ref_template="#/components/schemas/{name}",
    )
    parameter = {"name": "run", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sedge: the facts about a fleet", "version": VERSION},
        "paths": {
            "/api/fleet": _get("All facts", fleet),
            "/api/runs/{run}": {**_get("One run", run), "parameters": [parameter]},
            "/api/devices": {
                **_get("Devices, by id unless sorted", devices),
                "parameters": _parameters(),
            },
            "/api/problems": _get("What is wrong, worst first", problems),
        },
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _parameters() -> list[dict[str, object]]:
    """Return the parameters that select devices."""
    properties = msgspec.json.schema_components([DeviceSelection])[1]["DeviceSelection"][
        "properties"
    ]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]


def _get(text: str, schema: dict[str, object]) -> dict[str, object]:
    content = {"application/json": {"schema": schema}}
    return {
        "get": {"summary": text, "responses": {"200": {"description": text, "content": content}}}
    }
