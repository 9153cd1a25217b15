"""azure-servicebus 0.21 for Python, which speaks HTTP only, unmodified: administration and messages.

Run by its own Python with a port and the broker's authority. Prints what it got as one JSON document.
"""

import json
import sys
from datetime import datetime

import requests
from azure.servicebus import Message, Queue, Rule, ServiceBusService, Topic

port, authority = sys.argv[1:]
session = requests.Session()
session.verify = authority
session.trust_env = False
service = ServiceBusService(
    "localhost",
    host_base=f":{port}",
    shared_access_key_name="RootManageSharedAccessKey",
    shared_access_key_value="SAS_KEY_VALUE",
    request_session=session,
)
got = {}

queue = Queue()
queue.max_delivery_count = 5
service.create_queue("Orders/New", queue)
service.create_topic("News", Topic())
service.create_subscription("News", "Mine")
service.delete_rule("News", "Mine", "$Default")
rule = Rule()
rule.filter_type = "SqlFilter"
rule.filter_expression = "number > 3"
service.create_rule("News", "Mine", "Large", rule)
got["queues"] = sorted(each.name for each in service.list_queues())
got["topics"] = [each.name for each in service.list_topics()]
got["subscriptions"] = [each.name for each in service.list_subscriptions("News")]
got["rules"] = [each.name for each in service.list_rules("News", "Mine")]
got["queue"] = [service.get_queue("Orders/New").name, service.get_queue("Orders/New").max_delivery_count]
got["subscription"] = service.get_subscription("News", "Mine").name

properties = {"text": 'say "hi"', "number": 5, "ratio": 1.5, "flag": True, "moment": datetime(2020, 7, 5, 11, 12, 13)}
service.send_queue_message(
    "Orders/New", Message(b"one", custom_properties=properties, broker_properties={"Label": "l"})
)
locked = service.receive_queue_message("Orders/New", peek_lock=True, timeout=10)
got["body"], got["label"] = locked.body.decode(), locked.broker_properties["Label"]
got["properties"] = locked.custom_properties == properties
locked.renew_lock()
locked.unlock()
locked = service.receive_queue_message("Orders/New", peek_lock=True, timeout=10)
got["count"] = locked.broker_properties["DeliveryCount"]
locked.delete()
got["empty"] = service.receive_queue_message("Orders/New", peek_lock=False, timeout=0).body

batch = [Message(b"first", broker_properties={"TimeToLiveTimeSpan": "0.00:00:40"}), Message(b"second")]
service.send_queue_message_batch("Orders/New", batch)
got["batch"] = [service.receive_queue_message("Orders/New", peek_lock=False).body.decode() for _ in batch]

for number in (1, 5):
    service.send_topic_message("News", Message(b"%d" % number, custom_properties={"number": number}))
copy = service.receive_subscription_message("News", "Mine", peek_lock=True, timeout=10)
got["copy"] = copy.body.decode()
copy.delete()
service.delete_queue("Orders/New")
service.delete_topic("News")
print(json.dumps(got))
