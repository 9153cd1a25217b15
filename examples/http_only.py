"""Send and receive messages over HTTP with the standard library only."""

import base64
import hashlib
import hmac
import json
import os
import re
import time
from urllib.parse import quote_plus
from urllib.request import Request, urlopen

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)
parts = dict(part.split("=", 1) for part in CONNECTION_STRING.strip(";").split(";"))
BROKER = re.sub("^sb", "http", parts["Endpoint"]).rstrip("/")


def token(resource: str, seconds: int = 60) -> str:
    """Make a shared access signature: the resource and the expiry time, signed with the key."""
    signed = f"{quote_plus(resource)}\n{int(time.time()) + seconds}"
    digest = hmac.new(parts["SharedAccessKey"].encode(), signed.encode(), hashlib.sha256).digest()
    resource, expiry = signed.split("\n")
    signature = quote_plus(base64.b64encode(digest).decode())
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={parts['SharedAccessKeyName']}"


def ask(method: str, url: str, body: bytes | None = None, **headers: str):
    return urlopen(Request(url, body, {"Authorization": token(f"{BROKER}/queue"), **headers}, method=method))


properties = json.dumps({"Label": "greeting", "TimeToLive": 60})
sent = ask("POST", f"{BROKER}/queue/messages", b"Hello", BrokerProperties=properties, Language='"English"')
print("sent" if sent.status == 201 else "not sent")

with ask("POST", f"{BROKER}/queue/messages/head?timeout=5") as locked:
    label = json.loads(locked.headers["BrokerProperties"])["Label"]
    print(f"received {locked.read().decode()} with the subject {label}, in {json.loads(locked.headers['Language'])}")
ask("DELETE", locked.headers["Location"])
print("completed")
