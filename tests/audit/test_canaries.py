"""The canary audit: more than nothing without differential privacy, not more than ε with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedssl
from fedssl.audit.canaries import audit_canaries, largest_bound
from fedssl.evaluation.loaded import LoadedRun, load_run
from fedssl.rundir import RunDir
from tests.audit.conftest import CANARIES
from tests.small import small_run


def loaded(run: fedssl.Run) -> LoadedRun:
    return load_run(RunDir.open(run.path), {})


def test_without_privacy_the_audit_finds_more_than_nothing(plain: fedssl.Run) -> None:
    found = audit_canaries(loaded(plain))
    assert found["accountant"] is None
    assert found["lower_bound"] == pytest.approx(found["largest_bound"])  # the attacker is never wrong
    assert found["lower_bound"] > 1.5
    assert found["estimate_low"] > 10


def test_with_privacy_it_finds_no_more_than_the_accountant(private: fedssl.Run) -> None:
    found = audit_canaries(loaded(private))
    assert found["accountant"] == pytest.approx(private.metrics[-1]["epsilon"])
    assert 0 <= found["lower_bound"] <= found["accountant"]
    assert found["estimate_low"] <= found["accountant"]


def test_missing_noise_is_detected(private: fedssl.Run) -> None:
    """An accountant that assumes noise 100 would claim ε = 0.05: the audit contradicts it."""
    from fedssl.privacy.accountant import epsilon

    found = audit_canaries(loaded(private))
    claimed = epsilon(1.0, 100.0, 3, 1e-5)
    assert found["estimate_low"] > claimed


def test_secure_aggregation_does_not_hide_canaries(out: Path) -> None:
    """The sum is the same, so the model reveals the same."""
    found = audit_canaries(loaded(small_run(out, **CANARIES, **{"privacy.secure": True, "rounds": 1})))
    assert found["lower_bound"] > 1


def test_a_run_without_canaries_says_what_to_set(out: Path) -> None:
    run = small_run(out, rounds=1)
    assert "privacy.canaries=100" in audit_canaries(loaded(run))["why_not"]


def test_too_few_canaries_say_so(out: Path) -> None:
    found = audit_canaries(loaded(small_run(out, rounds=1, **{"privacy.canaries": 12})))
    assert "10 on either side" in found["why_not"]


def test_the_scores_are_those_of_the_coins(plain: fedssl.Run) -> None:
    found = audit_canaries(loaded(plain))
    assert len(found["inside"]) == found["taking_part"]
    assert len(found["inside"]) + len(found["outside"]) == 40
    assert np.mean(found["inside"]) > 5 * abs(np.mean(found["outside"]))
    assert found["largest_bound"] == largest_bound(found["taking_part"], 40 - found["taking_part"], 1e-5)
