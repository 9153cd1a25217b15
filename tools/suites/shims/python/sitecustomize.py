"""Python imports this module at its start in the environment of a suite: it sets up certificates and credentials.

It uses the variables that `suites.lane` sets. The suite's files stay unchanged.
"""

from __future__ import annotations

import os

if "SUITES_AUTHORITY" in os.environ:
    # Trust the broker's authority in place of those of the web.
    import certifi

    certifi.where = lambda: os.environ["SUITES_AUTHORITY"]

if "SUITES_IDENTITY" in os.environ:
    # The samples log in as the user of the machine on Azure; a shared key replaces that.
    import azure.identity
    import azure.identity.aio
    from suite_credentials import AsyncSharedKey, SharedKey

    for name in ("DefaultAzureCredential", "EnvironmentCredential"):
        setattr(azure.identity, name, SharedKey)
        setattr(azure.identity.aio, name, AsyncSharedKey)
