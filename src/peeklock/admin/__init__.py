"""Administering a namespace over HTTP: the ATOM/XML interface that the SDKs' administration clients speak."""
