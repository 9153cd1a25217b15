"""The documents of the administration API (ATOM and XML): what `descriptions` has, read from them and written to them.

Leaves asking for documents to `administration`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final
from urllib.parse import unquote, urlsplit
from uuid import UUID
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from peeklock.amqp.types import Int
from peeklock.atom.elements import AUTHORIZATION_RULES, COUNT_DETAILS, FIRST_RULE, MOMENTS, NUMBERS, request_elements
from peeklock.client.descriptions import (
    DEFINITIONS,
    SETTINGS,
    AuthorizationRule,
    Duration,
    Entity,
    FilterKind,
    Kind,
    Rule,
    RuleValue,
)
from peeklock.entities.rules import CORRELATION_FIELDS
from peeklock.entities.settings import Form, Plain

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"


class NotAnAnswer(ValueError):
    """A document that cannot be what was asked for."""


# --- reading


def parse_document(data: bytes) -> Element:
    """The root of an answer. The API has no document types, and with them go entities and all that hides in them."""
    try:
        text = data.decode()
        if "<!DOCTYPE" in text:
            raise NotAnAnswer("it has a document type")
        return ElementTree.fromstring(text)
    except (UnicodeDecodeError, ElementTree.ParseError) as error:
        raise NotAnAnswer(f"it is no XML: {error}") from None


def entries_of(root: Element) -> list[Element]:
    """The entries of a feed, or the one that is the document."""
    return [root] if root.tag == f"{{{ATOM}}}entry" else root.findall(f"{{{ATOM}}}entry")


def description_of(entry: Element) -> tuple[str, str, Element]:
    """The title, the kind of thing (`Queue`, `Rule`, `NamespaceInfo`, …) and its element."""
    content = entry.find(f"{{{ATOM}}}content")
    if content is None or len(content) != 1:
        raise NotAnAnswer("an entry describes nothing")
    (description,) = content
    return entry.findtext(f"{{{ATOM}}}title") or "", _local(description).removesuffix("Description"), description


def read_entity(entry: Element, topic: str | None = None) -> Entity:
    title, kind_name, description = description_of(entry)
    try:
        kind = Kind(kind_name)
    except ValueError:
        raise NotAnAnswer(f"it describes a {kind_name}") from None
    texts = {_local(child): child.text or "" for child in description}
    settings = {
        name: _read_setting(name, setting.form, texts[name])
        for name, setting in SETTINGS[kind].items()
        if texts.get(name)
    }
    runtime: dict[str, int | str] = {}
    details = description.find(f"{{{SERVICE_BUS}}}CountDetails")
    for child in details if details is not None else ():
        if _local(child) in COUNT_DETAILS:
            runtime[_local(child)] = _number(_local(child), child.text or "")
    runtime |= {each: _number(each, texts[each]) for each in NUMBERS if texts.get(each)}
    runtime |= {each: texts[each] for each in MOMENTS if texts.get(each)}
    rules = description.find(f"{{{SERVICE_BUS}}}{AUTHORIZATION_RULES}")
    return Entity(
        kind=kind,
        name=title,
        topic=topic,
        settings=settings,
        authorization_rules=tuple(_read_key(each) for each in rules) if rules is not None else (),
        runtime=runtime,
    )


def read_rule(entry: Element) -> Rule:
    name, kind, description = description_of(entry)
    if kind != "Rule":
        raise NotAnAnswer(f"it describes a {kind}")
    parts = {_local(child): child for child in description}
    test, action = parts.get("Filter"), parts.get("Action")
    kind_name = "" if test is None else _type_of(test)
    try:
        filter_kind = FilterKind(kind_name)
    except ValueError:
        raise NotAnAnswer(f"the rule '{name}' has a filter of an unknown kind '{kind_name}'") from None
    texts = {_local(child): child.text or "" for child in test} if test is not None else {}
    acts = action is not None and _type_of(action) == "SqlRuleAction"
    return Rule(
        name=name,
        filter=filter_kind,
        expression=texts.get("SqlExpression") if filter_kind is FilterKind.SQL else None,
        parameters=_read_values(test, "Parameters"),
        correlation={each: texts[each] for each in CORRELATION_FIELDS if texts.get(each)},
        properties=_read_values(test, "Properties"),
        action=action.findtext(f"{{{SERVICE_BUS}}}SqlExpression") if action is not None and acts else None,
        action_parameters=_read_values(action, "Parameters") if acts else {},
    )


def read_facts(entry: Element) -> dict[str, str]:
    """The elements of a description that hold text only, as of a namespace."""
    return {_local(child): child.text or "" for child in description_of(entry)[2]}


def read_failure(data: bytes) -> str:
    """What an answer that is an error says for people."""
    try:
        root = parse_document(data)
    except NotAnAnswer:
        return ""
    return (next((each.text for each in root.iter() if _local(each) == "Detail"), None) or "").strip()


def _read_setting(name: str, form: Form, text: str) -> Plain:
    if form is Form.FLAG:
        return text.strip().lower() == "true"
    if form is Form.ENTITY:
        return unquote(urlsplit(text).path).strip("/")
    return _number(name, text) if form is Form.COUNT else text


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise NotAnAnswer(f"{name} is no number: '{text}'") from None


def _read_key(element: Element) -> AuthorizationRule:
    texts = {_local(child): child.text or "" for child in element}
    rights = element.find(f"{{{SERVICE_BUS}}}Rights")
    return AuthorizationRule(
        name=texts.get("KeyName", ""),
        rights=tuple(right.text or "" for right in rights) if rights is not None else (),
        primary_key=texts.get("PrimaryKey", ""),
        secondary_key=texts.get("SecondaryKey") or None,
    )


def _read_values(element: Element | None, name: str) -> dict[str, RuleValue]:
    holder = None if element is None else element.find(f"{{{SERVICE_BUS}}}{name}")
    found: dict[str, RuleValue] = {}
    for pair in holder if holder is not None else ():
        parts = {_local(child): child for child in pair}
        if "Key" in parts and "Value" in parts:
            found[parts["Key"].text or ""] = _read_value(_type_of(parts["Value"]), parts["Value"].text or "")
    return found


def _read_value(kind: str, text: str) -> RuleValue:
    reader: Callable[[str], RuleValue] = _READERS.get(kind.rpartition(":")[2], str)
    try:
        return reader(text)
    except ValueError:
        raise NotAnAnswer(f"a value of the type {kind} cannot be read: '{text}'") from None


def _read_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_READERS: Final[Mapping[str, Callable[[str], RuleValue]]] = {
    "string": str,
    "int": Int,
    "long": int,
    "double": float,
    "boolean": lambda text: text.strip().lower() in ("true", "1"),
    "dateTime": _read_moment,
    "duration": Duration,
    "guid": UUID,
}


def _type_of(element: Element) -> str:
    return element.get(f"{{{INSTANCE}}}type", "")


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]


# --- writing


def write_entity(entity: Entity, host: str, first_rule: Rule | None = None) -> bytes:
    """The entry that creates or replaces it; of a new subscription with the rule that it begins with."""
    root = _description(f"{entity.kind}Description")
    for name in request_elements(DEFINITIONS[entity.kind]):
        if name in entity.settings:
            SubElement(root, name).text = _text(SETTINGS[entity.kind][name].form, entity.settings[name], host)
        elif name == AUTHORIZATION_RULES and entity.authorization_rules:
            _write_keys(SubElement(root, name), entity.authorization_rules)
        elif name == FIRST_RULE and first_rule is not None:
            _write_rule(SubElement(root, name), first_rule)
    return _entry(root)


def write_rule(rule: Rule) -> bytes:
    root = _description("RuleDescription")
    _write_rule(root, rule)
    return _entry(root)


def _write_rule(root: Element, rule: Rule) -> None:
    test = SubElement(root, "Filter", {"i:type": rule.filter.value})
    if rule.filter is FilterKind.CORRELATION:
        for name in CORRELATION_FIELDS:
            if name in rule.correlation:
                SubElement(test, name).text = rule.correlation[name]
        _write_values(test, "Properties", rule.properties)
    else:
        always = {FilterKind.TRUE: "1=1", FilterKind.FALSE: "1=0"}
        _write_sql(test, always.get(rule.filter) or rule.expression or "", rule.parameters)
    action = SubElement(root, "Action", {"i:type": "EmptyRuleAction" if rule.action is None else "SqlRuleAction"})
    if rule.action is not None:
        _write_sql(action, rule.action, rule.action_parameters)
    SubElement(root, "Name").text = rule.name


def _write_sql(element: Element, expression: str, parameters: Mapping[str, RuleValue]) -> None:
    SubElement(element, "SqlExpression").text = expression
    SubElement(element, "CompatibilityLevel").text = "20"
    _write_values(element, "Parameters", parameters)


def _write_values(element: Element, name: str, values: Mapping[str, RuleValue]) -> None:
    if not values:
        return
    holder = SubElement(element, name)
    for key, value in values.items():
        pair = SubElement(holder, "KeyValueOfstringanyType")
        SubElement(pair, "Key").text = key
        kind, text = _typed(value)
        namespace = SERIALIZATION if kind in ("duration", "guid") else SCHEMA
        SubElement(pair, "Value", {"i:type": f"d6p1:{kind}", "xmlns:d6p1": namespace}).text = text


def _typed(value: RuleValue) -> tuple[str, str]:
    match value:
        case bool():
            return "boolean", "true" if value else "false"
        case Int():
            return "int", str(value)
        case int():
            return "long", str(value)
        case float():
            return "double", repr(value)
        case datetime():
            return "dateTime", value.astimezone(UTC).isoformat().replace("+00:00", "Z")
        case Duration():
            return "duration", value
        case UUID():
            return "guid", str(value)
    return "string", value


def _write_keys(element: Element, rules: Iterable[AuthorizationRule]) -> None:
    for rule in rules:
        each = SubElement(element, "AuthorizationRule", {"i:type": "SharedAccessAuthorizationRule"})
        SubElement(each, "ClaimType").text = "SharedAccessKey"
        SubElement(each, "ClaimValue").text = "None"
        rights = SubElement(each, "Rights")
        for right in rule.rights:
            SubElement(rights, "AccessRights").text = right
        SubElement(each, "KeyName").text = rule.name
        SubElement(each, "PrimaryKey").text = rule.primary_key
        if rule.secondary_key is not None:
            SubElement(each, "SecondaryKey").text = rule.secondary_key


def _text(form: Form, value: Plain, host: str) -> str:
    if form is Form.FLAG:
        return "true" if value else "false"
    return f"sb://{host}/{value}" if form is Form.ENTITY and value else str(value)


def _description(name: str) -> Element:
    return Element(name, {"xmlns": SERVICE_BUS, "xmlns:i": INSTANCE})


def _entry(description: Element) -> bytes:
    entry = Element("entry", {"xmlns": ATOM})
    content = SubElement(entry, "content", {"type": "application/xml"})
    content.append(description)
    return b'<?xml version="1.0" encoding="utf-8"?>' + ElementTree.tostring(entry)
