# SPDX-License-Identifier: Apache-2.0
"""The service over real sockets: routes, limits, and clients that misbehave."""

import concurrent.futures
import http.client
import json
import shutil
import socket
import ssl
import subprocess
import time

import httpx
import pytest
from capitals import running

from experiments.serving import http_server
from experiments.serving.routes import Limits
from transformer.errors import InputError


@pytest.fixture(scope="module")
def service():
    """A service that is ready."""
    with running(Limits(body_bytes=2000, lines=10, body_seconds=0.4)) as service:
        yield service


def wait_for(condition):
    """Wait until a condition is true."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def wait_for_queue(service, count):
    """Wait until `count` sentences are in the queue."""
    wait_for(lambda: service.engine.batcher.waiting == count)


def refuses_connections(service):
    try:
        socket.create_connection(service.address, timeout=30).close()
    except ConnectionRefusedError:
        return True
    return False


def raw(service, data):
    """Send bytes to the service's socket and return all that it answers."""
    with socket.create_connection(service.address, timeout=30) as connection:
        connection.sendall(data)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


def is_served(service):
    reply = service.client.post("/translate", json={"q": "well"})
    return reply.json()["translatedText"] == "WELL"


# Routes.


def test_a_text_is_translated_line_by_line(service):
    text = "a b\n\n  \nc\u2028d\r\ne"
    reply = service.client.post("/translate", json={"q": text, "source": "en", "target": "de"})
    assert (reply.status_code, reply.json()) == (200, {"translatedText": "A B\n\n\nC\u2028D\nE"})


def test_alternatives_and_scores_are_given_on_request(service):
    fields = {"q": ["a", "b"], "alternatives": 1, "scores": True, "source": "en"}
    expected = {
        "translatedText": ["A", "B"],
        "alternatives": [["A!"], ["B!"]],
        "scores": [[-0.5, -1.5], [-0.5, -1.5]],
    }
    assert service.client.post("/translate", json=fields).json() == expected
    form = fields | {"scores": "true"}
    assert service.client.post("/translate", data=form).json() == expected


def test_deepl_clients_are_answered(service):
    fields = {"text": ["a\nb", "c"], "target_lang": "DE"}
    reply = service.client.post("/v2/translate", json=fields)
    assert [one["text"] for one in reply.json()["translations"]] == ["A\nB", "C"]
    refused = service.client.post("/v2/translate", json={"text": ["a"], "target_lang": "FR"})
    assert refused.status_code == 400
    assert "'FR'" in refused.json()["message"]


def test_the_service_describes_itself(service):
    assert service.client.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    assert service.client.get("/health").json() == {"status": "ok"}
    assert service.client.get("/ready").json() == {"status": "ready"}
    page = service.client.get("/")
    assert page.status_code == 200
    assert "text/html" in page.headers["content-type"]
    assert "English" in page.text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    for reply in (page, service.client.post("/translate", json={"q": "a"})):
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-store"
        assert "server" not in reply.headers


def test_metrics_count_requests_batches_and_compilations():
    with running() as service:
        service.client.post("/translate", json={"q": "a\nb"})
        service.client.post("/translate", json={"q": 5})
        text = service.client.get("/metrics").text
    for line in (
        'transformer_requests_total{route="/translate",status="200"} 1.0',
        'transformer_requests_total{route="/translate",status="400"} 1.0',
        'transformer_request_seconds_count{route="/translate"} 2.0',
        "transformer_accepted_requests_total 1.0",
        "transformer_answered_requests_total 1.0",
        "transformer_sentences_total 2.0",
        "transformer_queue_sentences 0.0",
        "transformer_compilations_total 0.0",
    ):
        assert f"\n{line}\n" in text


# Errors.


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "message"),
    [
        ("POST", "/translate", b"{", 400, "not JSON"),
        ("POST", "/translate", b'{"q": "a\\n' + b"w " * 25 + b'"}', 422, "line 2 has 26 tokens"),
        ("POST", "/translate", b'{"q": "' + b"w\\n" * 11 + b'"}', 400, "11 lines of text"),
        ("POST", "/translate", b'{"q": "' + b"w" * 2000 + b'"}', 413, "2000 bytes"),
        ("POST", "/v2/translate", b"[]", 400, "not a JSON object"),
        ("POST", "/attention", b'{"source": "a", "target": "b"}', 422, "no attention"),
        ("POST", "/nothing", b"{}", 404, "Not Found"),
        ("GET", "/translate", b"", 405, "Method Not Allowed"),
        ("GET", "/..%2f..%2fetc/passwd", b"", 404, "Not Found"),
    ],
)
def test_errors_are_json(service, method, path, content, status, message):
    headers = {"Content-Type": "application/json"}
    reply = service.client.request(method, path, content=content, headers=headers)
    assert reply.status_code == status
    [(name, text)] = reply.json().items()
    assert name == ("message" if path.startswith("/v2") else "error")
    assert message in text
    assert is_served(service)


def test_work_is_refused_until_everything_is_compiled():
    with running(ready=False) as service:
        assert service.client.get("/health").status_code == 200
        for reply in (
            service.client.get("/ready"),
            service.client.post("/translate", json={"q": "a"}),
            service.client.post("/attention", json={"source": "a", "target": "b"}),
        ):
            assert reply.status_code == 503
            assert int(reply.headers["retry-after"]) > 0
        service.engine.ready.set()
        assert service.client.post("/translate", json={"q": "a"}).status_code == 200


def test_a_full_queue_is_503_with_retry_after():
    with running(capacity=3) as service, concurrent.futures.ThreadPoolExecutor(2) as threads:
        service.translator.hold()
        first = threads.submit(service.client.post, "/translate", json={"q": "first"})
        assert service.translator.entered.wait(30)
        kept = threads.submit(service.client.post, "/translate", json={"q": "a\nb"})
        wait_for_queue(service, 2)
        refused = service.client.post("/translate", json={"q": "c\nd"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert "2 sentences are waiting" in refused.json()["error"]
        service.translator.may_go.set()
        assert first.result().json()["translatedText"] == "FIRST"
        assert kept.result().json()["translatedText"] == "A\nB"


def test_a_request_that_takes_too_long_is_504_and_leaves_the_queue():
    with running(Limits(seconds=0.3)) as service:
        service.translator.hold()
        assert service.client.post("/translate", json={"q": "first"}).status_code == 504
        late = service.client.post("/translate", json={"q": "late"})
        assert late.status_code == 504
        assert "0.3 seconds" in late.json()["error"]
        service.translator.may_go.set()
        assert service.client.post("/translate", json={"q": "next"}).status_code == 200
    assert service.translator.sentences == ["first", "next"]


def test_an_error_of_the_model_is_500_for_its_own_request_and_shows_no_details(service, caplog):
    reply = service.client.post("/translate", json={"q": "explode"})
    assert reply.status_code == 500
    assert reply.json() == {"error": "internal error; the log of the service describes it"}
    assert "as asked" in caplog.text
    assert service.client.post("/translate", json={"q": "a"}).status_code == 200


# Clients that misbehave. Each test ends with a client that is answered all the same.


def test_a_client_that_sends_its_body_slowly_gets_408(service):
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n"
    answer = raw(service, head + b'{"q": ')
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"].startswith("the body did not arr")
    assert is_served(service)


def test_a_huge_body_is_413_whether_its_length_is_announced_or_not(service):
    def chunks():
        for _ in range(100):
            yield b" " * 10_000

    announced = service.client.post("/translate", content=b"a" * 1_000_000)
    unannounced = service.client.post("/translate", content=chunks())
    for reply in (announced, unannounced):
        assert reply.status_code == 413
        assert "2000 bytes" in reply.json()["error"]
    assert is_served(service)


def test_an_endless_body_is_cut_off(service, monkeypatch):
    monkeypatch.setattr("experiments.serving.routes._DRAINED_BYTES", 50_000)
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n"
    with socket.create_connection(service.address, timeout=30) as endless:
        endless.sendall(head)
        with pytest.raises(OSError, match="reset|Broken pipe"):
            for _ in range(10_000):
                endless.sendall(b"x" * 65536)
    assert is_served(service)


def test_what_is_not_http_is_refused(service):
    assert raw(service, b"GET\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert is_served(service)


def test_the_sentences_of_a_client_that_disconnects_are_not_translated():
    with running() as service, concurrent.futures.ThreadPoolExecutor(2) as threads:
        service.translator.hold()
        first = threads.submit(service.client.post, "/translate", json={"q": "first"})
        assert service.translator.entered.wait(30)
        gone = http.client.HTTPConnection(*service.address)
        gone.request("POST", "/translate", json.dumps({"q": "gone"}))
        wait_for_queue(service, 1)
        gone.close()
        kept = threads.submit(service.client.post, "/translate", json={"q": "kept"})
        closed = {"route": "/translate", "status": "499"}
        wait_for(lambda: service.metrics.value("transformer_requests_total", **closed))
        service.translator.may_go.set()
        assert kept.result().json()["translatedText"] == "KEPT"
        assert first.result().status_code == 200
    assert service.translator.sentences == ["first", "kept"]


# Concurrency, shutdown, secrets.


def test_concurrent_clients_get_their_own_answers(service):
    def call(number):
        with httpx.Client(base_url=service.url, timeout=60) as client:
            return [
                client.post("/translate", json={"q": f"w{number} r{n}"}).json()["translatedText"]
                for n in range(10)
            ]

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for number, answers in enumerate(threads.map(call, range(8))):
            assert answers == [f"W{number} R{n}" for n in range(10)]


def test_a_shutdown_answers_every_accepted_request_and_takes_no_more():
    with running() as service, concurrent.futures.ThreadPoolExecutor(9) as threads:
        service.translator.hold()

        def call(number):
            with httpx.Client(base_url=service.url, timeout=60) as client:
                return client.post("/translate", json={"q": f"s{number}"})

        first = threads.submit(call, 0)
        assert service.translator.entered.wait(30)
        others = [threads.submit(call, number) for number in range(1, 9)]
        wait_for_queue(service, 8)
        service.stop()
        wait_for(lambda: refuses_connections(service))
        service.translator.may_go.set()
        replies = [future.result(30) for future in (first, *others)]
        assert [one.json()["translatedText"] for one in replies] == [f"S{n}" for n in range(9)]


@pytest.fixture(scope="module")
def guarded():
    """A service with a token."""
    with running(token="secret") as service:
        yield service


@pytest.mark.parametrize(
    ("headers", "fields", "status"),
    [
        ({}, {}, 401),
        ({"Authorization": "Bearer secret"}, {}, 200),
        ({"Authorization": "DeepL-Auth-Key secret"}, {}, 200),
        ({}, {"api_key": "secret"}, 200),
        ({}, {"api_key": 5}, 401),
        ({"Authorization": "Bearer wrong"}, {}, 403),
        ({"Authorization": "Basic secret"}, {}, 401),
        ({"Authorization": "Bearer \u00e4".encode("latin-1")}, {}, 403),
    ],
)
def test_a_token_is_required(guarded, headers, fields, status):
    reply = guarded.client.post("/translate", json={"q": "a", **fields}, headers=headers)
    assert reply.status_code == status
    if status == 401:
        assert reply.headers["www-authenticate"] == "Bearer"


def test_the_page_and_the_probes_need_no_token(guarded):
    for path, status in (("/", 200), ("/health", 200), ("/ready", 200), ("/metrics", 401)):
        assert guarded.client.get(path).status_code == status
    assert guarded.client.get("/languages").status_code == 401
    assert guarded.client.post("/v2/translate", content=b"x").status_code == 401


def test_texts_are_logged_only_on_request(service, caplog):
    caplog.set_level("DEBUG")
    service.client.post("/translate", json={"q": "confidential"})
    service.client.post("/translate", json={"confidential": 5})
    assert "confidential" not in caplog.text.lower()
    with running(logs_text=True) as talkative:
        talkative.client.post("/translate", json={"q": "public"})
    assert "'public',) -> ['PUBLIC']" in caplog.text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Certificate and key of this machine, and a context that trusts them."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl")
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "ec"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", files[0], "-keyout", files[1]),
        ],
        check=True,
        capture_output=True,
    )
    return *map(str, files), ssl.create_default_context(cafile=files[0])


def test_tls_files_make_the_service_https(certificate):
    with running(certificate=certificate) as service:
        assert service.url.startswith("https")
        assert service.client.post("/translate", json={"q": "a"}).status_code == 200


def test_tls_files_that_do_not_fit_are_refused_before_the_service_starts(certificate, tmp_path):
    public, private, _ = certificate
    absent = str(tmp_path / "absent.pem")
    for files, message in (
        ((public, None), "needs both"),
        ((None, private), "needs both"),
        ((private, public), "belong together"),
        ((absent, private), "No such file"),
    ):
        with pytest.raises(InputError, match=message):
            http_server.check_certificate(*files)


def test_a_port_in_use_is_refused_by_name(service):
    with pytest.raises(InputError, match=f"--port={service.address[1]} cannot be listened on"):
        http_server.listen("127.0.0.1", service.address[1])
