"""Monitor a broker: its health, and the message counts of its entities."""

import json
import os
import re
from urllib.request import urlopen

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)
ADDRESS = CONNECTION_STRING.split(";")[0].rpartition("//")[2].rstrip("/")

# The AMQP port also accepts HTTP. If the broker is not healthy, it answers 503 with the reason.
with urlopen(f"http://{ADDRESS}/health") as answer:
    print(json.load(answer)["message"])

# The metrics for Prometheus. Requests from this machine require no token.
with urlopen(f"http://{ADDRESS}/metrics") as answer:
    page = answer.read().decode()
for entity, count in re.findall(r'^peeklock_messages{entity="([^"]+)",kind="queue",state="active"} (\d+)$', page, re.M):
    print(f"{entity} holds {count} messages")
