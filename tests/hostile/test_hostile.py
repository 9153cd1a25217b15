"""All attacks run, and every check passes; the documentation has all of them; and the checks detect failures."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools.hostile.attack import MIB, Act, Attack, AttackFailed, require
from tools.hostile.attacks import ATTACKS
from tools.hostile.brokers import BROKERS
from tools.hostile.run import attack_each, started
from tools.hostile.small_disk import DISK_MIB, LOW_MIB
from tools.hostile.table import markdown
from tools.hostile.victim import KEY, Victim

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="requires /proc")


def test_the_broker_passes_all_checks_after_all_attacks(tmp_path: Path) -> None:
    results = list(attack_each(tmp_path, ATTACKS.values(), lambda broker, run: None))
    assert len(results) == len(ATTACKS)
    failures = [f"{result.attack.name}: {result.failure}" for result in results if result.failure is not None]
    assert failures == []


def test_the_page_has_the_table_of_attacks() -> None:
    page = (ROOT / "docs" / "hostile.md").read_text()
    assert page.endswith(markdown()), "docs/hostile.md is not what `python -m tools.hostile --list` prints"
    words = " ".join(page.split())
    assert f"a disk of {DISK_MIB} MiB" in words
    assert f"a watermark of {LOW_MIB} MiB" in words


def test_every_attack_has_a_description_an_answer_and_a_log_line() -> None:
    for attack in ATTACKS.values():
        assert attack.description.endswith("."), attack.name
        assert attack.answer, attack.name
        assert attack.log, attack.name
        assert attack.group, attack.name
        assert attack.broker in BROKERS, attack.name


# --- the checks detect failures ---


def made_up(act: Act, log: str = "connection opened") -> Attack:
    return Attack(name="made-up", group="", description="", answer="", log=log, act=act)


def opens(victim: Victim) -> None:
    victim.unauthenticated().close()


def empties_the_kept_queue(victim: Victim) -> None:
    opens(victim)
    victim.drain("kept")


def fails(victim: Victim) -> None:
    opens(victim)
    require(False, "the attack failed")


def test_failed_checks_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.hostile.run.SETTLING_SECONDS", 1.0)
    with started(tmp_path) as run:

        def failure(attack: Attack) -> str:
            (result,) = run.attack_all([attack])
            return result.failure or "none"

        def logs(line: str) -> Attack:
            def act(victim: Victim) -> None:
                opens(victim)
                with run._child.log.open("a") as log:
                    log.write(f"{line}\n")

            return made_up(act)

        assert failure(made_up(opens)) == "none"
        assert "the attack failed" in failure(made_up(fails))
        assert "no log line of the attacker matches" in failure(made_up(opens, log="text of no line"))
        assert "no log line of the attacker matches" in failure(made_up(lambda victim: None))
        for secret in (KEY, "sr=sb%3a%2f%2fx&sig=abc%3d&se=1"):
            assert "a key or a signature" in failure(logs(f"2026-01-01T00:00:00.000Z INFO  peeklock.server {secret}"))
        trace = 'ERROR peeklock.broker an appointment failed exc="Traceback (most recent call last): …"'
        assert "the log has a traceback" in failure(logs(f"2026-01-01T00:00:00.000Z {trace}"))
        forged = "2026-01-01T00:00:00.000Z INFO  peeklock.server forged peer=127.0.0.2"
        assert "that the attacker wrote" in failure(logs(forged))
        assert failure(logs(f'2026-01-01T00:00:00.000Z INFO peeklock.server refused path="/{forged}"')) == "none"
        monkeypatch.setattr("tools.hostile.run.MAX_LINES", 0)
        assert "lines for one attack" in failure(made_up(opens))
        monkeypatch.setattr("tools.hostile.run.MAX_LINES", 200)
        monkeypatch.setattr("tools.hostile.run.MAX_LEFT", -(1 << 40))
        assert "MiB more than before" in failure(made_up(opens))
        monkeypatch.setattr("tools.hostile.run.MAX_LEFT", 1 << 40)
        monkeypatch.setattr(run, "_base", run._base - 200 * MIB)  # as if earlier attacks had left that much
        assert failure(replace(made_up(opens), max_peak=100 * MIB)) == "none"
        monkeypatch.setattr("tools.hostile.run.MAX_PEAK", -(1 << 40))
        assert "MiB more, above" in failure(made_up(opens))
        monkeypatch.setattr("tools.hostile.run.MAX_PEAK", 1 << 40)
        monkeypatch.setattr("tools.hostile.normal_client.RECOVERY_SECONDS", 0)
        monkeypatch.setattr("tools.hostile.normal_client.MAX_SLOWDOWN", 0)
        assert "times the usual" in failure(made_up(opens))
        monkeypatch.setattr("tools.hostile.normal_client.MAX_SLOWDOWN", 1000)
        assert "messages 0 are unchanged" in failure(made_up(empties_the_kept_queue))


def test_a_broker_that_ends_is_detected(tmp_path: Path) -> None:
    failures: list[str | None] = []

    def attack_a_stopped_broker() -> None:
        with started(tmp_path) as run:
            run._child.stop()
            failures.extend(result.failure for result in run.attack_all([made_up(lambda victim: None)]))

    with pytest.raises(AttackFailed, match="the broker has ended"):
        attack_a_stopped_broker()
    assert "the broker has ended" in str(failures)
