"""kvartal.Client that attaches by the token of a pod, against a real daemon."""
import base64
import json
import subprocess
import time

import pytest
from conftest import PATIENT_MS, chain, store
from daemon import Daemon

import kvartal
from kvartal import Status

ISSUER = 'https://kubernetes.default.svc'


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b'=').decode()


class Issuer:
    """Signs as an API server does, by a key that openssl makes."""

    def __init__(self, folder):
        self.key = folder / 'key.pem'
        subprocess.run(['openssl', 'genrsa', '-out', str(self.key), '2048'], check=True, capture_output=True)
        modulus = subprocess.run(['openssl', 'rsa', '-in', str(self.key), '-noout', '-modulus'], check=True,
                                 capture_output=True, text=True).stdout.strip().split('=')[1]
        self.jwks = json.dumps({'keys': [{'kty': 'RSA', 'kid': 'k', 'n': encoded(bytes.fromhex(modulus)),
                                          'e': encoded(b'\x01\x00\x01')}]})

    def token(self, account: str, lifetime_s: int) -> str:
        now = int(time.time())
        claims = {'iss': ISSUER, 'aud': ['kvartal'], 'exp': now + lifetime_s, 'nbf': now - 10,
                  'sub': f'system:serviceaccount:test:{account}',
                  'kubernetes.io': {'namespace': 'test', 'serviceaccount': {'name': account},
                                    'node': {'name': 'node-1'}, 'pod': {'name': 'chat-0', 'uid': 'uid-of-chat-0'}}}
        text = encoded(b'{"alg":"RS256","kid":"k"}') + '.' + encoded(json.dumps(claims).encode())
        signature = subprocess.run(['openssl', 'dgst', '-sha256', '-sign', str(self.key)], input=text.encode(),
                                   check=True, capture_output=True).stdout
        return text + '.' + encoded(signature)


@pytest.fixture
def issuer(tmp_path):
    return Issuer(tmp_path)


@pytest.fixture
def node(issuer):
    with Daemon() as daemon:
        (daemon.folder / 'jwks.json').write_text(issuer.jwks)
        with open(daemon.folder / 'kvartald.yaml', 'a') as config:
            config.write('attestUid: false\n'
                         f'kubernetes: {{nodeName: node-1, issuer: "{ISSUER}", jwksFile: jwks.json}}\n')
        policy = daemon.folder / 'policy/tenants.yaml'
        policy.write_text(policy.read_text().replace('{socket: red}', '{socket: red}, {serviceAccountName: vllm}'))
        yield daemon.start()


def socket_of(daemon):
    return str(daemon.folder / 'run/kvartal.sock')


def test_a_pod_is_its_tenant_by_option_and_by_environment(node, issuer, tmp_path, namespace, monkeypatch):
    token = tmp_path / 'token'
    token.write_text(issuer.token('vllm', 600) + '\n')
    by_option = kvartal.Client(socket_of(node), token_file=str(token), deadline_ms=PATIENT_MS)
    assert by_option.tenant == 'test/red', by_option.error
    assert store(by_option, namespace, chain(4)) == 4
    monkeypatch.setenv('KVARTAL_TOKEN_FILE', str(token))
    by_environment = kvartal.Client(socket_of(node), deadline_ms=PATIENT_MS)
    assert by_environment.lookup(namespace, chain(4), deadline_ms=PATIENT_MS).matched == 4


def test_without_a_good_token_everything_is_a_miss(node, issuer, tmp_path, namespace):
    token = tmp_path / 'token'
    token.write_text(issuer.token('stranger', 600))
    for client in (kvartal.Client(socket_of(node), deadline_ms=PATIENT_MS),
                   kvartal.Client(socket_of(node), token_file=str(token), deadline_ms=PATIENT_MS)):
        assert client.status == Status.DENIED and not client.connected
        assert client.lookup(namespace, chain(2)).matched == 0


def test_a_token_is_renewed_while_the_program_works(node, issuer, tmp_path, namespace):
    token = tmp_path / 'token'
    token.write_text(issuer.token('vllm', 3))
    client = kvartal.Client(socket_of(node), token_file=str(token), deadline_ms=PATIENT_MS)
    assert store(client, namespace, chain(4)) == 4
    until, renewed = time.monotonic() + 5, time.monotonic()
    while time.monotonic() < until:
        if time.monotonic() > renewed + 1:
            renewed = time.monotonic()
            (tmp_path / 'token.new').write_text(issuer.token('vllm', 3))
            (tmp_path / 'token.new').replace(token)
        with client.lookup(namespace, chain(4), deadline_ms=PATIENT_MS) as lease:
            assert lease.matched == 4, client.error
    assert node.ctl('sessions').count('k8s-token') == 1
