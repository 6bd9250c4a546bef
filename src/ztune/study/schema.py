"""The JSON Schema of study files, for editors: ``python -m ztune.study.schema > docs/study.schema.json``."""

from __future__ import annotations

from typing import Any

from ztune import output
from ztune.onhost.properties import PROPERTIES
from ztune.onhost.tunables import TUNABLES
from ztune.onhost.words import OBJECTIVES, ROLES
from ztune.study.study import Study

_SIZE = {"type": ["integer", "string"], "description": "Bytes, or text such as 8K, 64M, 7.5G."}


def study_schema() -> dict[str, Any]:
    """Return the schema of a study file as TOML reads it: sizes as text, properties beside name and roles."""
    schema = Study.model_json_schema(by_alias=True, mode="validation")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "ztune study"
    definitions = schema["$defs"]
    for entry in (schema, *definitions.values()):  # the docstrings' further lines are for programmers
        if "description" in entry:
            entry["description"] = entry["description"].split("\n")[0].replace("``", "`")
    dataset = definitions["Dataset"]
    dataset["properties"].pop("properties")
    dataset["properties"]["roles"]["items"] = {"enum": list(ROLES)}
    for name, known in PROPERTIES.items():
        dataset["properties"][name] = {
            "type": ["string", "integer"],
            "default": known.default,
            "description": f"{known.doc} Values: {known.values}.",
        }
    layout = definitions["Layout"]
    layout["properties"]["arc"] = {
        **_SIZE,
        "default": "64M",
        "description": layout["properties"]["arc"]["description"],
    }
    layout["properties"]["tunables"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"type": ["integer", "string"], "description": f"{known.doc} Default: {_default(name)}."}
            for name, known in TUNABLES.items()
        },
        "description": layout["properties"]["tunables"]["description"],
    }
    layout["properties"]["database"]["additionalProperties"] = {"type": ["string", "integer", "number"]}
    for name in ("Vdev", "HddProfile", "FlashProfile"):
        size = definitions[name]["properties"]["size"]
        definitions[name]["properties"]["size"] = {**_SIZE, "description": size["description"]}
    age = definitions["Age"]["properties"]
    for name in ("fill", "rewrites", "snapshots"):
        age[name]["type"] = ["integer", "string"]
    age["write"] = {**_SIZE, "description": age["write"]["description"]}
    layout["properties"]["age"]["anyOf"].append({"type": "string"})
    volume = definitions["Dataset"]["properties"]["volume"]
    definitions["Dataset"]["properties"]["volume"] = {**_SIZE, "description": volume["description"]}
    definitions["Objective"]["properties"]["minimise"]["items"] = {"enum": list(OBJECTIVES)}
    assert isinstance(schema, dict)
    return schema


def _default(name: str) -> str:
    known = TUNABLES[name]
    return "from the machine's memory" if known.default is None else known.text(known.default)


if __name__ == "__main__":
    output.print_json(study_schema())
