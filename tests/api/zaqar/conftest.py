"""The fixture of Zaqar's API."""

from __future__ import annotations

import pytest

from tests.api.api_fixture import ApiFixture
from tests.api.zaqar.zaqar_api import ZaqarApi


@pytest.fixture
def zaqar(api: ApiFixture) -> ZaqarApi:
    """Zaqar's API on an empty store of one shard."""
    return ZaqarApi(api)
