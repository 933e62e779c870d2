"""The wheel as it is built from a checkout: it carries its library and what that needs, and finds them."""
import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_serves_without_the_build(tmp_path):
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '-w', tmp_path, ROOT / 'client/python'],
                   check=True)
    (wheel,) = tmp_path.glob('kvartal-*.whl')
    unpacked = tmp_path / 'unpacked'
    zipfile.ZipFile(wheel).extractall(unpacked)
    environment = {key: value for key, value in os.environ.items() if not key.startswith('KVARTAL_')}
    program = 'import kvartal; print(kvartal.__file__, int(kvartal.Client("/nobody").status))'
    said = subprocess.run([sys.executable, '-c', program], check=True, capture_output=True, text=True, cwd=tmp_path,
                          env={**environment, 'PYTHONPATH': str(unpacked)}).stdout
    assert said.split() == [str(unpacked / 'kvartal/__init__.py'), '1']
    needed = subprocess.run(['ldd', unpacked / 'kvartal/libkvartal.so'], check=True, capture_output=True,
                            text=True).stdout
    assert str(unpacked / 'kvartal/libprotobuf-lite.so') in needed
    assert {path.name for path in unpacked.rglob('*.py')} >= {'client.py', 'connector.py', 'scheduler.py', 'worker.py'}
    assert (unpacked / 'kvartal/py.typed').exists()
