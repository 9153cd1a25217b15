"""The broker that a suite runs on: `peeklock serve` with the ports, keys and entities that suites require."""

from __future__ import annotations

import json
import shutil
import sys
import time
from itertools import combinations
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from peeklock.client import sas_token
from tools.bench.processes import Child
from tools.suites.standard_ports import FURTHER_PORTS, PORT

ROOT: Final = Path(__file__).parents[2]
POLICY, KEY = "RootManageSharedAccessKey", "c3VpdGVzLW9mLW90aGVycy1vbi1wZWVrbG9jay0wMDE="
"""The Go suite requires a key in base64."""
QUEUE, SESSION_QUEUE = "testQueue", "testQueueWithSessions"
"""Names that are fixed in the Go suite."""
TOPIC, SUBSCRIPTION = "topic", "subscription"
SESSION_TOPIC, SESSION_SUBSCRIPTION = "session-topic", "session-subscription"
RULES_TOPIC, RULES_SUBSCRIPTION = "rules-topic", "rules-subscription"
RIGHTS: Final = ("Listen", "Manage", "Send")
_TOKEN_SECONDS: Final = 4 * 3600.0


def rule_of(*rights: str) -> str:
    """Return the name, which is also the key, of the rule with these rights."""
    return "-".join(sorted(each.lower() for each in rights))


def _configuration() -> dict[str, Any]:
    rules = [{"Name": POLICY, "Rights": ["Manage"], "PrimaryKey": KEY}]
    for count in range(1, len(RIGHTS) + 1):
        for rights in combinations(RIGHTS, count):
            rules.append({"Name": rule_of(*rights), "Rights": list(rights), "PrimaryKey": rule_of(*rights)})
    with_session = {"RequiresSession": True}
    namespace = {
        "Name": "suites",
        "AuthorizationRules": rules,
        "Queues": [{"Name": QUEUE}, {"Name": SESSION_QUEUE, "Properties": with_session}],
        "Topics": [
            {"Name": TOPIC, "Subscriptions": [{"Name": SUBSCRIPTION}]},
            {"Name": SESSION_TOPIC, "Subscriptions": [{"Name": SESSION_SUBSCRIPTION, "Properties": with_session}]},
            {"Name": RULES_TOPIC, "Subscriptions": [{"Name": RULES_SUBSCRIPTION}]},
        ],
    }
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}


class Broker:
    """A context manager: a broker that serves on the standard ports of an address."""

    def __init__(self, address: str, folder: Path, profile: str = "standard") -> None:
        self.address = address
        self.folder = folder
        self.profile = profile
        self.authority = folder / "data" / "tls" / "authority.pem"
        self.log = folder / "broker.log"

    def premium(self) -> Broker:
        """Return a second broker, with the premium profile, at another address, and with the same authority."""
        first, second, _, last = self.address.split(".")
        folder = self.folder / "premium"
        shutil.copytree(self.authority.parent, folder / "data" / "tls")
        return Broker(f"{first}.{second}.2.{last}", folder, "premium")

    def __enter__(self) -> Broker:
        config = self.folder / "config.json"
        config.write_text(json.dumps(_configuration()))
        tls, http, _ = FURTHER_PORTS
        command = [sys.executable, "-m", "peeklock", "serve", "--host", self.address, "--port", str(PORT)]
        command += ["--tls-port", str(tls), "--admin-port", str(http), "--config", str(config)]
        command += ["--data", str(self.folder / "data"), "--profile", self.profile]
        self._child = Child(command, log=self.log, environment={"PYTHONPATH": str(ROOT / "src")}, announces=True)
        try:
            self._child.first_line()
        except BaseException:
            self._child.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.stop()

    def connection_string(self, policy: str = POLICY, key: str = KEY) -> str:
        """Return a connection string in the form of a hosted namespace: over TLS."""
        return f"Endpoint=sb://{self.address}/;SharedAccessKeyName={policy};SharedAccessKey={key}"

    def environment(self) -> dict[str, str]:
        """Return the environment variables of all suites."""
        authority = str(self.authority)
        limited = {each: self.connection_string(rule_of(each), rule_of(each)) for each in RIGHTS}
        no_manage = rule_of("Listen", "Send")
        ends = time.time() + _TOKEN_SECONDS
        return {
            # --- certificates and a token ---
            "SUITES_AUTHORITY": authority,
            "SSL_CERT_FILE": authority,
            "SSL_CERT_DIR": str(self.authority.parent),
            "REQUESTS_CA_BUNDLE": authority,
            "SUITES_TOKEN": sas_token(f"sb://{self.address}/", POLICY, KEY, ends),
            "SUITES_TOKEN_ENDS": str(int(ends)),
            # --- azure-servicebus for Python: tests and samples ---
            "SERVICEBUS_ENDPOINT_SUFFIX": "",
            "SERVICEBUS_CONNECTION_STR": self.connection_string(),
            "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": self.address,
            "SERVICEBUS_SAS_POLICY": POLICY,
            "SERVICEBUS_SAS_KEY": KEY,
            "SERVICEBUS_QUEUE_NAME": QUEUE,
            "SERVICEBUS_SESSION_QUEUE_NAME": SESSION_QUEUE,
            "SERVICEBUS_SESSION_QUEUE_SAS_POLICY": POLICY,
            "SERVICEBUS_SESSION_QUEUE_SAS_KEY": KEY,
            "SERVICEBUS_SESSION_ID": "session",
            "SERVICEBUS_TOPIC_NAME": TOPIC,
            "SERVICEBUS_SUBSCRIPTION_NAME": SUBSCRIPTION,
            # --- azservicebus for Rust ---
            "SERVICE_BUS_CONNECTION_STRING": self.connection_string(),
            "SERVICE_BUS_NAMESPACE": self.address,
            "SERVICE_BUS_SAS_KEY_NAME": POLICY,
            "SERVICE_BUS_SAS_KEY": KEY,
            "SERVICE_BUS_QUEUE": QUEUE,
            "SERVICE_BUS_SESSION_QUEUE": SESSION_QUEUE,
            "SERVICE_BUS_TOPIC": TOPIC,
            "SERVICE_BUS_SUBSCRIPTION": SUBSCRIPTION,
            "SERVICE_BUS_SESSION_TOPIC": SESSION_TOPIC,
            "SERVICE_BUS_SESSION_SUBSCRIPTION": SESSION_SUBSCRIPTION,
            "SERVICE_BUS_RULE_FILTER_TEST_TOPIC": RULES_TOPIC,
            "SERVICE_BUS_RULE_FILTER_TEST_SUBSCRIPTION": RULES_SUBSCRIPTION,
            # --- azservicebus for Go ---
            "SERVICEBUS_ENDPOINT": self.address,
            "SERVICEBUS_CONNECTION_STRING": self.connection_string(),
            "SERVICEBUS_CONNECTION_STRING_NO_MANAGE": self.connection_string(no_manage, no_manage),
            "SERVICEBUS_CONNECTION_STRING_SEND_ONLY": limited["Send"],
            "SERVICEBUS_CONNECTION_STRING_LISTEN_ONLY": limited["Listen"],
        }

    def premium_environment(self) -> dict[str, str]:
        """Return the environment variables that name this broker as the second one."""
        return {
            "SERVICEBUS_ENDPOINT_PREMIUM": self.address,
            "SERVICEBUS_CONNECTION_STRING_PREMIUM": self.connection_string(),
        }
