"""The SDKs: their versions, and how their programs are built and started."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchains import SHORT_LIVED_JAVA, go_program, java_classpath, npm_packages, toolchain

FOLDER = Path(__file__).parents[1]
PASSWORD = "changeit"
"""The password of the trust store for Java, which contains no secret."""


@dataclass(frozen=True)
class Command:
    """The command that starts a program."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Sdk:
    title: str
    package: str
    version: Callable[[], str]
    tools: tuple[str, ...]
    """Programs that must be installed."""
    prepare: Callable[[Path], Command]
    """Fetches and builds the program, which trusts the authority in that file."""


def _python(program: str) -> Callable[[Path], Command]:
    return lambda authority: Command((sys.executable, str(FOLDER / "python" / program)), {})


def _javascript(authority: Path) -> Command:
    node = toolchain("node")
    npm_packages(FOLDER / "js")
    return Command((node, str(FOLDER / "js" / "run.mjs")), {"NODE_EXTRA_CA_CERTS": str(authority)})


def _java(authority: Path) -> Command:
    store = trust_store(authority)
    options = (
        *SHORT_LIVED_JAVA,
        "-Xshare:auto",
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
    )
    return Command((toolchain("java"), *options, "-cp", java_classpath(FOLDER / "java"), "Run"), {})


def _go(authority: Path) -> Command:
    return Command((str(go_program(FOLDER / "go")),), {"SSL_CERT_FILE": str(authority)})


def trust_store(authority: Path) -> Path:
    """Return a trust store for Java that contains the authority."""
    store = authority.parent / "trusted.p12"
    if not store.exists():
        command = [toolchain("keytool"), "-importcert", "-noprompt", "-alias", "peeklock", "-file", str(authority)]
        command += ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", PASSWORD]
        subprocess.run(command, check=True, capture_output=True)
    return store


def _python_version() -> str:
    return importlib.metadata.version("azure-servicebus")


def _javascript_version() -> str:
    version: str = json.loads((FOLDER / "js" / "package.json").read_text())["dependencies"]["@azure/service-bus"]
    return version


def _java_version() -> str:
    pom = (FOLDER / "java" / "pom.xml").read_text()
    return _found(r"<artifactId>azure-messaging-servicebus</artifactId>\s*<version>(.+)</version>", pom)


def _go_version() -> str:
    return _found(r"azservicebus v(\S+)", (FOLDER / "go" / "go.mod").read_text())


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, f"{pattern} is not there"
    return match[1]


SDKS: Mapping[str, Sdk] = {
    "python": Sdk("Python", "azure-servicebus", _python_version, (), _python("blocking.py")),
    "python-aio": Sdk("Python aio", "azure-servicebus", _python_version, (), _python("asynchronous.py")),
    "javascript": Sdk("JavaScript", "@azure/service-bus", _javascript_version, ("node", "npm"), _javascript),
    "java": Sdk("Java", "azure-messaging-servicebus", _java_version, ("java", "javac", "keytool", "mvn"), _java),
    "go": Sdk("Go", "azservicebus", _go_version, ("go",), _go),
}
