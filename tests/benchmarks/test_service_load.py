# SPDX-License-Identifier: Apache-2.0
"""The clients of the load on the service get the reply to each request, and lose none."""

import json

from capitals import running

from experiments.benchmarks import service_load
from transformer.config import Config


def address_of(service):
    return "{}:{}".format(*service.address)


def test_every_sentence_is_sent_once_and_has_its_own_reply():
    sentences = [f"w{number} end" for number in range(50)]
    with running() as service:
        replies = service_load.send(address_of(service), sentences, 4)
        service.stop()
        service.thread.join(30)
        [lost] = service_load.send(address_of(service), ["late"], 1)
    assert sorted(reply.sentence for reply in replies) == sorted(sentences)
    assert all((reply.status, reply.text) == (200, reply.sentence.upper()) for reply in replies)
    assert (lost.status, lost.text) == (0, "")


def test_a_constant_rate_loses_no_request(capsys):
    options = service_load.Options(config=Config(), seconds=0.5, per_second=40.0, clients=3)
    with running() as service:
        service_load._soak(address_of(service), ["one", "two"], options)
    assert len(service.translator.sentences) == 20
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert {line["lost"] for line in lines} == {0}
