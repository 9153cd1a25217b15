"""Rules of subscriptions: which messages they take, and what they change in them."""
