"""The live test suites of official and other SDKs, unmodified, on a broker of ours; the results: docs/sdk-suites.md."""
