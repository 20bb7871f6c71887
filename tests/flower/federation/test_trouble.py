"""What a client says when the link cannot be reached or refuses it."""

import datetime
import re
from email.utils import format_datetime

import pytest

pytest.importorskip("httpx", reason="httpx is not installed; it comes with flwr")

import httpx

from fedstale.flower.federation.client.fleet import refusal, unreachable

NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


def answer(status, ahead=None):
    """A response of a link, whose clock this machine is `ahead` of."""
    link = NOW - datetime.timedelta(seconds=ahead or 0)
    return httpx.Response(status, headers={} if ahead is None else {"date": format_datetime(link, usegmt=True)})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((401, 20), "is 20 s ahead of the link's: set it"),
        ((401, -400), "is 400 s behind the link's: set it"),
        ((401, 2), "private key is not the one"),
        ((401, -290), "private key is not the one"),
        ((401, None), "private key is not the one"),
        ((412, None), "federation up` on the server registers"),
    ],
)
def test_a_refusal_names_its_remedy(given, sentence, monkeypatch):
    monkeypatch.setattr("fedstale.flower.federation.client.fleet._now", lambda: NOW)
    assert re.search(sentence, refusal(answer(*given)))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate in chain"), "keys/ca.pem"),
        (httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] IP address mismatch"), "init --names a.org"),
        (httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER]"), "does not use TLS"),
        (httpx.RemoteProtocolError("Server disconnected"), "cannot be reached (Server disconnected); trying again"),
        (httpx.ConnectError("Connection refused"), "a.org:9100 cannot be reached (Connection refused)"),
        (httpx.ReadTimeout(""), "cannot be reached (ReadTimeout)"),
    ],
)
def test_a_link_that_cannot_be_reached_is_named_with_the_reason(error, sentence):
    assert sentence in unreachable("a.org:9100", error)
