"""Rules of subscriptions: filters that match messages, and actions that change their copies."""
