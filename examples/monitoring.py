"""Ask a broker how it is: whether it works, and how many messages its entities hold."""

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

# The port for AMQP speaks HTTP too. A broker that does not work answers 503, and says why.
with urlopen(f"http://{ADDRESS}/health") as answer:
    print(json.load(answer)["message"])

# What Prometheus reads; from this machine without a token.
with urlopen(f"http://{ADDRESS}/metrics") as answer:
    page = answer.read().decode()
for entity, count in re.findall(r'^peeklock_messages{entity="([^"]+)",kind="queue",state="active"} (\d+)$', page, re.M):
    print(f"{entity} holds {count} messages")
