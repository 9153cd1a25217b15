"""`testing` for asyncio."""

from devtools_testutils.testing import recorded_by_proxy as recorded_by_proxy_async

__all__ = ["recorded_by_proxy_async"]
