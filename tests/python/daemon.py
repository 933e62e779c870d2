"""A real kvartald of this build in a folder of its own, for tests: the Python twin of tests/support/daemon_process."""
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

PATIENT_MS = 20_000  # a deadline that only a bug reaches
_PATIENCE_S = 60  # only a broken daemon takes this long

_TENANT = '''---
apiVersion: kvartal.dev/v1alpha1
kind: TenantKVPolicy
metadata: {{namespace: test, name: {name}}}
spec:
  subjects: [{{socket: {name}}}]
  pools: [{{poolRef: local, perNode: {{dram: {{limit: {dram}}}{nvme}}}}}]
'''


def program(name: str) -> str:
    """A program of the build under test."""
    return os.path.join(os.environ['KVARTAL_BIN_DIR'], name)


class Daemon:
    """Started, stopped and killed by the test that owns it; one door and one tenant test/NAME for each name."""

    def __init__(self, tenants=('red',), dram='256Mi', tenant_dram='256Mi', nvme=''):
        self.folder = Path(tempfile.mkdtemp(prefix='kvartal-test-'))
        self.process = None
        (self.folder / 'policy').mkdir()
        limit = f', nvme: {{limit: {nvme}}}' if nvme else ''
        (self.folder / 'policy/tenants.yaml').write_text(
            ''.join(_TENANT.format(name=name, dram=tenant_dram, nvme=limit) for name in tenants))
        config = f'runDir: run\npolicyDir: policy\ndram: {{size: {dram}}}\ndoors:\n'
        config += ''.join(f'- {{name: {name}}}\n' for name in tenants)
        if nvme:
            config += f'nvme: [{{path: nvme.dat, size: {nvme}}}]\n'
        (self.folder / 'kvartald.yaml').write_text(config)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self):
        """Starts it, also after its end, and waits until it serves."""
        with open(self.folder / 'log', 'a') as log:
            self.process = subprocess.Popen([program('kvartald'), '--config', str(self.folder / 'kvartald.yaml')],
                                            stdout=subprocess.PIPE, stderr=log)
        readable, _, _ = select.select([self.process.stdout], [], [], _PATIENCE_S)
        if not readable or not self.process.stdout.readline().startswith(b'ready'):
            raise RuntimeError(f'kvartald did not start: {(self.folder / "log").read_text()}')
        return self

    def kill(self):
        """kill -9, and wait. Nothing happens when it does not run."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self.process = None

    def freeze(self):
        """It stays, and says nothing."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        """It goes on."""
        self.process.send_signal(signal.SIGCONT)

    def door(self, name='red'):
        """The socket of tenant test/NAME."""
        return str(self.folder / f'run/{name}.sock')

    def leases(self):
        """How many leases its sessions hold together."""
        sessions = json.loads(self.ctl('--output', 'json', 'sessions')).get('sessions', [])
        return sum(int(session.get('leases', 0)) for session in sessions)

    def ctl(self, *arguments):
        """What kvartalctl prints."""
        return subprocess.run([program('kvartalctl'), '--socket', str(self.folder / 'run/admin.sock'), *arguments],
                              check=True, capture_output=True, text=True).stdout
