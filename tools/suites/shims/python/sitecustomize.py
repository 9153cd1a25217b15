"""Python starts with this in the environment of a suite: certificates and credentials of the broker that is tested.

Knows the variables that `suites.lane` sets. The suite's files stay as they are.
"""

from __future__ import annotations

import os

if "SUITES_AUTHORITY" in os.environ:
    # The certificate of the broker's authority, in place of those of the web.
    import certifi

    certifi.where = lambda: os.environ["SUITES_AUTHORITY"]

if "SUITES_IDENTITY" in os.environ:
    # The samples log in with what the machine's user is on Azure. Here that is a shared key.
    import azure.identity
    import azure.identity.aio
    from suite_credentials import AsyncSharedKey, SharedKey

    azure.identity.DefaultAzureCredential = SharedKey
    azure.identity.aio.DefaultAzureCredential = AsyncSharedKey
