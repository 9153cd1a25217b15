"""Under which name a test gets its resource group."""

RESOURCE_GROUP_PARAM = "resource_group"
