"""The name of the argument for the resource group."""

RESOURCE_GROUP_PARAM = "resource_group"
