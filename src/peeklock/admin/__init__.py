"""Administration of a namespace over HTTP: the ATOM API that the SDKs' administration clients use."""
