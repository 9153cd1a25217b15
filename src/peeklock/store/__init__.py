"""Message stores: the `Store` protocol, the store in memory and the store on disk."""
