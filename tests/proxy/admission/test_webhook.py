"""Notices are believed by their signature."""

import pytest

from proxy.admission.keys import Webhook

# Agora's published example: https://docs.agora.io/cn/Video/signature_verify
BODY = (
    b'{"eventType":10,"noticeId":"4eb720f0-8da7-11e9-a43e-53f411c2761f","notifyMs":1560408533119,'
    b'"payload":{"a":"1","b":2},"productId":1}'
)
OLDER = {"agora-signature": "5a3bb6a6d9fad2ea9ae3fb707a14c9d7f3136df1"}
NEWER = {"agora-signature-v2": "de96da5acf03b0021ac3b4fa2225e7ae6f3533a30d50bb02c08ea4fa748bda24"}
WEBHOOK = Webhook(b"secret", "default")


@pytest.mark.parametrize("headers", [OLDER, NEWER, OLDER | NEWER])
def test_agoras_published_example_is_believed(headers):
    assert WEBHOOK.verify(headers, BODY)


@pytest.mark.parametrize("headers", [OLDER, NEWER, OLDER | NEWER])
def test_another_body_or_secret_is_not(headers):
    assert not WEBHOOK.verify(headers, BODY + b" ")
    assert not Webhook(b"other", "default").verify(headers, BODY)


def test_no_signature_is_none():
    assert not WEBHOOK.verify({}, BODY)


def test_the_secret_is_never_shown():
    assert "secret" not in repr(WEBHOOK)
