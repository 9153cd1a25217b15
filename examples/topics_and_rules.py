"""Send to a topic: each subscription gets a copy of the messages that its rules match.

Makes the topic, its subscriptions and their rules itself (see administration.py), and deletes them again.
"""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)
AUTHORITY = os.environ.get("PEEKLOCK_CA_FILE", "peeklock-data/tls/authority.pem")

LARGE = SqlRuleFilter("amount >= 1000 AND sys.Label = 'order'")
URGENT = SqlRuleAction("SET priority = 'high'; REMOVE note")

with (
    ServiceBusAdministrationClient.from_connection_string(CONNECTION_STRING, connection_verify=AUTHORITY) as admin,
    ServiceBusClient.from_connection_string(CONNECTION_STRING) as client,
):
    admin.create_topic("orders")
    # A new subscription has the rule $Default, which matches every message. Delete it to have only other rules.
    admin.create_subscription("orders", "everything")
    for name, rule, matches, action in (
        ("europe", "from-europe", CorrelationRuleFilter(properties={"region": "eu"}), None),
        ("large", "large", LARGE, URGENT),
    ):
        admin.create_subscription("orders", name)
        admin.create_rule("orders", name, rule, filter=matches, action=action)
        admin.delete_rule("orders", name, "$Default")

    with client.get_topic_sender("orders") as sender:
        for body, amount, region in (("a lamp", 40, "eu"), ("a house", 250_000, "us"), ("a car", 20_000, "eu")):
            properties = {"amount": amount, "region": region, "note": "sent by the shop"}
            sender.send_messages(ServiceBusMessage(body, subject="order", application_properties=properties))

    for name in ("everything", "europe", "large"):
        with client.get_subscription_receiver("orders", name, max_wait_time=1) as receiver:
            for message in receiver:
                properties = {name.decode(): value for name, value in message.application_properties.items()}
                rule = properties.get("RuleName", b"").decode()  # only after an action
                print(f"{name} got {message}" + (f", made {properties['priority'].decode()} by {rule}" if rule else ""))
                receiver.complete_message(message)

    admin.delete_topic("orders")
