"""azure-servicebus for Python: the tests and the samples of its source distribution.

The tests import a package of the SDK's repository that is not on PyPI, and log in with an identity of Azure.
`shims/python` replaces both. It is on the path of a separate virtual environment, which has the SDK from PyPI.
"""

from __future__ import annotations

import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools.suites.fetching import once, run, unpack
from tools.suites.job import Job, read_report
from tools.suites.suite import Suite

VERSION: Final = "7.15.0"
REQUIREMENTS: Final = (
    f"azure-servicebus=={VERSION}",
    "azure-identity==1.27.0",
    "azure-mgmt-resource==23.4.0",
    "azure-mgmt-servicebus==10.0.0",
    "azure-core-tracing-opentelemetry==1.0.0b13",
    "opentelemetry-sdk==1.45.2",
    "aiohttp==3.14.5",
    "pytest==9.2.0",
    "pytest-asyncio==1.5.0",
    "pytest-timeout==2.4.0",
    "python-dotenv==1.2.4",
    "requests==2.34.2",
    "websocket-client==1.9.2",
)
SHIMS: Final = Path(__file__).parent / "shims" / "python"
SHARES: Final = {"tests/test_queues.py": 5, "tests/async_tests/test_queues_async.py": 5}
"""Files with slow tests, and the number of concurrent jobs that each is divided into."""
LONG: Final = {"tests/test_sessions.py": 3, "tests/async_tests/test_sessions_async.py": 3}
SLOW: Final = "tests/test_topic.py"
"""The file with the slowest test."""
LEFT_OUT: Final = ("tests/perf_tests",)
"""Benchmarks without assertions."""
TEST_SECONDS: Final = 900
"""The longest test takes eight minutes: it sends ten messages, and the SDK delays each by up to a minute."""
SAMPLE_SECONDS: Final = 720
"""The longest sample takes eight minutes."""


def _prepare(folder: Path) -> None:
    with once(folder, "\n".join([sys.version, *REQUIREMENTS])) as needed:
        if not needed:
            return
        venv.create(folder / "venv", with_pip=True)
        pip = [str(folder / "venv" / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run([*pip, "install", *REQUIREMENTS], folder)
        fetch = ["download", "--no-deps", "--no-binary", "azure-servicebus", f"azure-servicebus=={VERSION}"]
        run([*pip, *fetch], folder)
        (archive,) = folder.glob("azure_servicebus-*.tar.gz")
        unpack(archive, folder)
        archive.unlink()
        # The path is that of the SDK's repository: some tests read neighbouring folders, and are skipped without them.
        _source(folder).parent.mkdir(parents=True)
        (folder / f"azure_servicebus-{VERSION}").rename(_source(folder))
        # The tests use the package that was installed, as users do.
        (_source(folder) / "azure").rename(folder / "azure-of-the-source")


def _source(folder: Path) -> Path:
    return folder / "sdk" / "servicebus" / "azure-servicebus"


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(SHIMS), "PYTHONDONTWRITEBYTECODE": "1"}


def pytest_job(folder: Path, name: str, tests: Sequence[str], seconds: float, share: tuple[int, int] = (0, 1)) -> Job:
    """Make the job that runs some of the tests: files, or single tests as pytest names them."""
    command = [str(folder / "venv" / "bin" / "python"), "-m", "pytest", "-q", "-p", "suite_reporter"]
    command += ["-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--rootdir", str(_source(folder))]
    command += ["--timeout", str(TEST_SECONDS), *tests]
    return Job(
        name=name,
        command=command,
        folder=_source(folder),
        output=folder / "output" / name.replace("/", "."),
        seconds=seconds,
        environment={**_environment(), "SUITES_SHARE": f"{share[0]}/{share[1]}"},
    )


def _jobs(folder: Path) -> list[Job]:
    source = _source(folder)
    files = sorted(str(each.relative_to(source)) for each in (source / "tests").rglob("test_*.py"))
    jobs = []
    for file in files:
        if file.startswith(LEFT_OUT):
            continue
        shares = {**SHARES, **LONG}.get(file, 1)
        for share in range(shares):
            name = file if shares == 1 else f"{file} {share + 1} of {shares}"
            jobs.append(pytest_job(folder, name, [file], 3600, (share, shares)))
    return sorted(
        jobs, key=lambda job: not job.name.startswith(tuple({**SHARES, **LONG, SLOW: 1}))
    )  # the longest first


def _samples(folder: Path) -> list[Job]:
    source = _source(folder)
    jobs = []
    for kind in ("sync_samples", "async_samples"):
        name = f"samples/{kind}"
        command = [str(folder / "venv" / "bin" / "python"), str(SHIMS / "suite_samples.py"), name, str(SAMPLE_SECONDS)]
        jobs.append(
            Job(
                name=name,
                command=command,
                folder=source,
                output=folder / "output" / kind,
                seconds=3600,
                environment={**_environment(), "SUITES_IDENTITY": "shared key"},
            )
        )
    return jobs


_QUEUES: Final = "tests/test_queues.py::TestServiceBusQueue::test_queue"
_ASYNC_QUEUES: Final = "tests/async_tests/test_queues_async.py::TestServiceBusQueueAsync::test"
_LISTS: Final = "tests/test_list_sessions.py::TestServiceBusListSessions::test_list"
_TOPICS: Final = "tests/test_topic.py::TestServiceBusTopics::test_topic_by"
QUICK: Final = (
    "tests/mgmt_tests/test_mgmt_namespaces.py",
    "tests/mgmt_tests/test_mgmt_subscriptions.py",
    "tests/mgmt_tests/async/test_mgmt_subscriptions_async.py",
    "tests/mgmt_tests/test_topic_filter_counts_live.py",
    f"{_TOPICS}_servicebus_client_send_basic",
    f"{_TOPICS}_sas_token_credential_send_basic",
    f"{_LISTS}_queue_sessions_empty",
    f"{_LISTS}_queue_sessions_with_active_messages",
    f"{_LISTS}_subscription_sessions_with_active_messages",
    f"{_QUEUES}_by_servicebus_client_browse_empty_messages",
    f"{_QUEUES}_by_servicebus_client_browse_messages_client",
    f"{_QUEUES}_by_servicebus_client_fail_send_messages",
    f"{_QUEUES}_by_servicebus_client_session_fail",
    f"{_QUEUES}_receive_handler_peek_check_uniq_corr_id",
    f"{_QUEUES}_by_queue_client_peek_auto_increment",
    f"{_QUEUES}_message_amqp_over_websocket",
    f"{_QUEUES}_message_batch_large",
    f"{_QUEUES}_message_connection_closed",
    f"{_ASYNC_QUEUES}_async_queue_by_servicebus_client_browse_messages_client",
    f"{_ASYNC_QUEUES}_async_queue_by_servicebus_client_session_fail",
    f"{_ASYNC_QUEUES}_async_queue_receive_handler_peek_check_uniq_corr_id",
    f"{_ASYNC_QUEUES}_queue_async_by_queue_client_peek_and_receive",
    f"{_ASYNC_QUEUES}_queue_message_amqp_over_websocket",
    f"{_ASYNC_QUEUES}_state_scheduled_async",
)
"""Tests that take seconds and do not depend on timing: `make test` runs them."""

_PACKAGE: Final = "azure-servicebus"

TESTS: Final = Suite(
    name="python",
    title="Python: live tests",
    package=_PACKAGE,
    version=VERSION,
    source="the source distribution on PyPI",
    folder=f"python-{VERSION}",
    tools=(),
    prepare=_prepare,
    jobs=_jobs,
    read=read_report,
)
SAMPLES: Final = Suite(
    name="python-samples",
    title="Python: samples",
    package=_PACKAGE,
    version=VERSION,
    source="the source distribution on PyPI",
    folder=f"python-{VERSION}",
    tools=(),
    prepare=_prepare,
    jobs=_samples,
    read=read_report,
)
