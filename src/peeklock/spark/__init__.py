"""The Spark data source `servicebus`. Installing `peeklock[spark]` also installs its dependencies."""
