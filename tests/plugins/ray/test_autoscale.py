"""How many replicas are wanted for a load."""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import pytest
from infeng_ray.autoscale import Policy, wanted
from infeng_ray.command import counts


@pytest.mark.parametrize(
    ("waiting", "running", "replicas", "target"),
    [
        (0, 0, 1, 1),
        (0, 0, 4, 3),  # one at a time
        (0, 32, 1, 1),
        (3, 32, 1, 2),
        (64, 64, 2, 4),  # two replicas' work waits
        (1000, 64, 2, 4),  # at most twice as many
        (10, 0, 2, 4),
        (0, 64, 4, 3),
        (0, 80, 4, 4),  # three would be full to more than ROOM
        (0, 5, 0, 1),
    ],
)
def test_waiting_requests_want_more_replicas_and_free_places_fewer(waiting, running, replicas, target):
    assert wanted(waiting, running, replicas, 32) == target


def test_the_policy_adds_up_the_replicas_and_leaves_a_change_under_way_alone():
    figures = {"waiting": {"a": 2.0, "b": 1.0}, "running": {"a": 8.0, "b": 8.0}}
    policy = Policy(places=8)
    steady = SimpleNamespace(aggregated_metrics=figures, current_num_replicas=2, target_num_replicas=2)
    assert policy(steady) == (3, {})
    changing = SimpleNamespace(aggregated_metrics=figures, current_num_replicas=2, target_num_replicas=3)
    assert policy(changing) == (3, {})
    silent = SimpleNamespace(aggregated_metrics=None, current_num_replicas=1, target_num_replicas=1)
    assert policy(silent) == (1, {})


@pytest.mark.parametrize("text", ["0", "2:1", "a:b", "1:9999", ":3", "1:2:3"])
def test_counts_of_replicas_are_checked(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is no MIN:MAX"):
        counts(text)


def test_one_number_is_both_counts():
    assert counts("3") == counts("3:3") == (3, 3) and counts("1:8") == (1, 8)
