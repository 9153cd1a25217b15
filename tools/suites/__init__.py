"""Run the live test suites of SDKs, unmodified, on Peeklock. The outcomes are in docs/sdk-suites.md."""
