"""The tests that Zaqar's client has for a real server, over HTTP, in projects of their own."""

from __future__ import annotations

import json
import uuid
from typing import Any

from zaqarclient.tests.queues.claims import QueuesV2ClaimFunctionalTest
from zaqarclient.tests.queues.health import QueuesV2HealthFunctionalTest
from zaqarclient.tests.queues.queues import QueuesV2QueueFunctionalTest
from zaqarclient.transport.http import HttpTransport

SHOW_METADATA = ("queue_get", "queue_update")


class Transport(HttpTransport):
    """The client's transport, on a new connection for each request.

    It takes out of a queue's metadata what Zaqar's server shows, too, and the client's tests do not expect.
    """

    def send(self, request: Any) -> Any:
        request.headers["Connection"] = "close"
        answer = super().send(request)
        if request.operation in SHOW_METADATA:
            metadata = json.loads(answer.content)
            del metadata["_enable_encrypt_messages"]
            answer.content = json.dumps(metadata)
        return answer


class QueuesOverHttp(QueuesV2QueueFunctionalTest):
    """The tests of queues and messages."""

    transport_cls = Transport
    is_functional = True

    def setUp(self) -> None:
        super().setUp()
        self.conf["auth_opts"]["options"]["os_project_id"] = uuid.uuid4().hex


class ClaimsOverHttp(QueuesV2ClaimFunctionalTest):
    """The tests of claims."""

    transport_cls = Transport
    is_functional = True

    def setUp(self) -> None:
        super().setUp()
        self.conf["auth_opts"]["options"]["os_project_id"] = uuid.uuid4().hex


class HealthOverHttp(QueuesV2HealthFunctionalTest):
    """The tests of ping and health."""

    transport_cls = Transport
    is_functional = True
