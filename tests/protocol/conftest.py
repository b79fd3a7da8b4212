"""A Mosquitto for the tests of the link."""

import os
from collections.abc import Iterator

import pytest
from tests.fleet import no_sync as no_sync

from sedge_cloud.broker.child import find_mosquitto
from sedge_emulate.broker.brokers import Broker


@pytest.fixture(scope="session")
def shared() -> Iterator[Broker]:
    """A broker that no test may harm."""
    if find_mosquitto() is None and os.environ.get("CI") != "true":
        pytest.skip("Mosquitto is not installed")
    with Broker() as broker:
        yield broker
