"""A JSON schema of the configuration file, for editors and other programs.

It is made from the keys of the file and the settings of entities. It accepts a little more than the reader, which also
checks how keys depend on each other, the length of durations, and SQL.
`peeklock config schema > docs/config.schema.json` writes the copy in the documentation; a test compares the two.
"""

from __future__ import annotations

import json
from typing import Any

from peeklock.entities.authorization import Right
from peeklock.entities.durations import format_duration
from peeklock.entities.rules import FilterKind
from peeklock.entities.settings import LAXEST, PROFILES, Form, Profile, Setting, Status, settings_of
from peeklock.limits.broker import MAX_AUTHORIZATION_RULES, MAX_ENTITY_NAME, MAX_SHORT_NAME, MAX_TEXT
from peeklock.server.config_keys import KEYS, LOG_TARGETS, MAX_COUNT, SETTINGS, Key, Thing, Value
from peeklock.server.config_values import TYPES

DIALECT = "http://json-schema.org/draft-07/schema#"

Schema = dict[str, Any]


def schema(profile: Profile = PROFILES[LAXEST]) -> Schema:
    """Return the schema with the limits of a profile."""
    definitions: Schema = {_NAMES[thing]: _object(thing, profile) for thing in Thing if thing is not Thing.FILE}
    definitions["value"] = _VALUE
    return {"$schema": DIALECT, "title": "Peeklock configuration", **_object(Thing.FILE, profile)} | {
        "definitions": definitions
    }


def format_schema(profile: Profile = PROFILES[LAXEST]) -> str:
    return json.dumps(schema(profile), indent=2, ensure_ascii=False) + "\n"


_NAMES = {thing: thing.name.lower() for thing in Thing}

_LOG_TARGETS = [*LOG_TARGETS, ",".join(LOG_TARGETS), ",".join(reversed(LOG_TARGETS))]
_DURATION_PATTERN = "^P[0-9.DHMSTWY]+$"
_VALUE: Schema = {
    "anyOf": [
        {"type": ["string", "number", "boolean"]},
        *(
            {
                "type": "object",
                "additionalProperties": False,
                "required": [name],
                "properties": {name: {"type": "string", "description": known.rule}},
            }
            for name, known in TYPES.items()
        ),
    ],
}
_VALUES: dict[Value, Schema] = {
    Value.TEXT: {"type": "string"},
    Value.ENTITY_NAME: {"type": "string", "minLength": 1, "maxLength": MAX_ENTITY_NAME},
    Value.SHORT_NAME: {"type": "string", "minLength": 1, "maxLength": MAX_SHORT_NAME},
    Value.RULE_NAME: {"type": "string", "minLength": 1, "maxLength": MAX_SHORT_NAME},
    Value.PROPERTIES: {"type": "object", "additionalProperties": {"$ref": "#/definitions/value"}},
    Value.LOG_TARGETS: {"enum": _LOG_TARGETS},
    Value.FILTER_KIND: {"enum": [kind.value for kind in FilterKind]},
    Value.SQL: {"type": "string", "minLength": 1, "maxLength": MAX_TEXT},
    Value.RIGHT: {"enum": [right.value for right in Right]},
    Value.SECRET: {"type": "string", "minLength": 1, "maxLength": 256},
    Value.FLAG: {"type": "boolean"},
    Value.COUNT: {"type": "integer", "minimum": 0, "maximum": MAX_COUNT},
    Value.FILE: {"type": "string", "minLength": 1},
}


def _object(thing: Thing, profile: Profile) -> Schema:
    keys = KEYS[thing]
    made: Schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {key.name: _member(thing, key, profile) for key in keys},
    }
    required = [key.name for key in keys if key.required]
    if required:
        made["required"] = required
    if thing is Thing.CORRELATION:
        made["minProperties"] = 1
    if thing is Thing.RULE_PROPERTIES:
        made["allOf"] = [
            {
                "if": {"required": ["FilterType"], "properties": {"FilterType": {"const": kind.value}}},
                "then": {"required": [part]},
            }
            for kind, part in ((FilterKind.SQL, "SqlFilter"), (FilterKind.CORRELATION, "CorrelationFilter"))
        ]
    return made


def _member(thing: Thing, key: Key, profile: Profile) -> Schema:
    member: Schema
    if key.holds is Value.SETTINGS:
        settings = settings_of(SETTINGS[thing]).values()
        member = {
            "type": "object",
            "additionalProperties": False,
            "properties": {setting.name: _setting(setting, profile) for setting in settings},
        }
    elif isinstance(key.holds, Thing):
        member = {"$ref": f"#/definitions/{_NAMES[key.holds]}"}
    else:
        member = dict(_VALUES[key.holds])
    if key.many:
        least, most = _numbers(thing, key, profile)
        member = {"type": "array", "items": member}
        if least:
            member["minItems"] = least
        if most is not None:
            member["maxItems"] = most
    if key.note and "$ref" not in member:
        member["description"] = key.note
    return member


def _numbers(thing: Thing, key: Key, profile: Profile) -> tuple[int, int | None]:
    """Return the least and the largest number of elements of a list."""
    match key.holds:
        case Thing.NAMESPACE:
            return 1, 1
        case Thing.QUEUE | Thing.TOPIC:
            return 0, profile.max_entities
        case Thing.SUBSCRIPTION:
            return 0, profile.max_subscriptions
        case Thing.AUTHORIZATION_RULE:
            return (1 if thing is Thing.NAMESPACE else 0), MAX_AUTHORIZATION_RULES
        case Value.RIGHT:
            return 1, None
        case _:
            return 0, None


def _setting(setting: Setting[Any], profile: Profile) -> Schema:
    default = setting.profile_defaults.get(profile.name, setting.default)
    made: Schema = {"description": setting.note}
    match setting.form:
        case Form.FLAG:
            made["type"] = "boolean"
        case Form.COUNT:
            made["type"] = "integer"
            made["minimum"], made["maximum"] = setting.ranges[profile.name]
        case Form.DURATION:
            low, high = map(format_duration, setting.ranges[profile.name])
            made["description"] += f"; from {low} to {high}"
            made["type"] = "string"
            made["pattern"] = _DURATION_PATTERN
            default = format_duration(default)
        case Form.STATUS:
            made["enum"] = [status.value for status in Status]
        case Form.TEXT:
            made["type"] = "string"
            made["maxLength"] = MAX_TEXT
        case Form.ENTITY:
            made["type"] = "string"
            made["maxLength"] = MAX_ENTITY_NAME
    if setting.optional and setting.form is not Form.DURATION:
        made["type"] = [made["type"], "null"]
    return made | ({} if default is None else {"default": default})
