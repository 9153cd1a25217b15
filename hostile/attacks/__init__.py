"""The attacks, and the table of all of them: importing this enters them, in this order."""

# ruff: isort: skip_file

from hostile.attacks import before_login as before_login
from hostile.attacks import frames as frames
from hostile.attacks import links as links
from hostile.attacks import transfers as transfers
from hostile.attacks import contents as contents
from hostile.attacks import greed as greed
from hostile.attacks import memory as memory
from hostile.attacks import floods as floods
from hostile.attacks import slowness as slowness
from hostile.attacks import requests as requests
from hostile.attacks import messaging as messaging
from hostile.attacks import documents as documents
from hostile.attacks import tokens as tokens
from hostile.attacks import filters as filters
from hostile.attacks import looking as looking
from hostile.attacks import claims as claims
from hostile.attacks import rights as rights
from hostile.attacks import jms as jms
from hostile.attacks import fullness as fullness

from hostile.attack import ATTACKS as ATTACKS
