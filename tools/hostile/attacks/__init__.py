"""All attacks. Importing this package adds them to the table, in this order."""

# ruff: isort: skip_file

from tools.hostile.attacks import before_login as before_login
from tools.hostile.attacks import frames as frames
from tools.hostile.attacks import links as links
from tools.hostile.attacks import transfers as transfers
from tools.hostile.attacks import contents as contents
from tools.hostile.attacks import greed as greed
from tools.hostile.attacks import memory as memory
from tools.hostile.attacks import floods as floods
from tools.hostile.attacks import slowness as slowness
from tools.hostile.attacks import requests as requests
from tools.hostile.attacks import messaging as messaging
from tools.hostile.attacks import documents as documents
from tools.hostile.attacks import tokens as tokens
from tools.hostile.attacks import filters as filters
from tools.hostile.attacks import browsing as browsing
from tools.hostile.attacks import claims as claims
from tools.hostile.attacks import rights as rights
from tools.hostile.attacks import jms as jms
from tools.hostile.attacks import fullness as fullness
from tools.hostile.attacks import encryption as encryption

from tools.hostile.attack import ATTACKS as ATTACKS
