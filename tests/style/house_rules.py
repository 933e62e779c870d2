#!/usr/bin/env python3
"""The house rules of docs/STYLE.md that a machine can check. usage: house_rules.py ROOT

Prints one line a violation (path:line: rule: what, and what to do) and exits 1 when there is any.
"""
import os
import re
import sys

import cpp_text

FOLDERS = ('crds', 'daemon', 'operator', 'kernels', 'client', 'tools', 'tests', 'scripts', 'docs', 'cmake', 'charts',
           'dashboards', 'alerts', '.ci')
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
COLUMNS_MAX = 120
LONG_COMMENT_COLUMNS = 60  # a class comment of one line is enough when it says this much

ANYTHING = None
# Who may include whom, beside itself. Names without a slash are folders of daemon/.
MAY_INCLUDE = {
    'process': ANYTHING,
    'attach': {'engine', 'policy', 'token', 'block', 'base'},
    'token': {'base'},
    'control': {'engine', 'policy', 'crds/', 'base'},
    'engine': {'policy', 'index', 'tier', 'block', 'base'},
    'policy': {'crds/', 'block', 'base'},
    'tier': {'device', 'cipher', 'block', 'base'},
    'cipher': {'base'},
    'index': {'block', 'base'},
    'device': {'kernels/', 'base'},
    'mover': {'device', 'base'},
    'telemetry': {'base'},
    'config': {'crds/', 'base'},
    'block': {'base'},
    'base': set(),
    'crds/': {'base'},
    'kernels/': {'base'},
    'operator/kube': {'crds/', 'base'},
    'operator/reconcile': {'operator/kube', 'crds/', 'base'},
    'operator/sync': {'operator/reconcile', 'operator/kube', 'crds/', 'base'},
    'operator/process': ANYTHING,
    'client/': {'block', 'base'},
    'tools/': ANYTHING,
    'tests/': ANYTHING,
}
# Single files open to a folder beyond that: the protocol a client speaks, the plain numbers telemetry reads, the words
# those numbers are told apart by and those a configuration may use.
MAY_INCLUDE_FILES = {
    'control': [r'daemon/block/tier_kind\.h'],
    'config': [r'daemon/policy/eviction_names\.h'],
    'client/': [r'daemon/attach/attach\.pb\.h'],
    'telemetry': [r'.*_stats\.h', r'daemon/block/tier_kind\.h', r'daemon/policy/refusal\.h'],
}
# A library with a costly or throwing interface has one home.
LIBRARY_HOMES = {
    'spdlog/': ('daemon/base/log.cc',),
    'rocksdb/': ('daemon/tier/', 'tests/'),
    'prometheus/': ('daemon/telemetry/', 'tests/'),
    'yaml-cpp/': ('crds/', 'daemon/config/', 'tools/', 'tests/'),
    'CLI/': ('daemon/process/', 'operator/process/', 'tools/'),
    'cpprest/': ('operator/kube/',),
    'openssl/': ('daemon/token/', 'daemon/cipher/', 'operator/', 'tests/'),
    'pplx/': ('operator/kube/',),
    'absl/synchronization/': (),
}
LIMITS = ('daemon/base/limits.h', 'daemon/control/stream_limits.h', 'daemon/device/mover_limits.h',
          'operator/kube/limits.h', 'operator/sync/limits.h', 'operator/process/limits.h')
BANNED_NAME = re.compile(r'\b\w*?(?<![A-Z])(Manager|Helper|Utils?|Impl)(?![a-z])\w*')
BANNED_FILE = re.compile(r'(^|[_-])(manager|helpers?|utils?|impl)(?=[_.-]|$)')
BANNED_TEXT = re.compile(r'\b(TODO|FIXME|XXX|HACK)\b')
MACHINE_PATH = re.compile(r'(?<![\w./$}-])/(work|home|root)/[\w.-]|/tmp/(build-|scratch)')


class File:
    """One file of the tree, with the views of it that rules ask for."""

    def __init__(self, path, text):
        self.path = path
        self.text = text
        self.lines = text.split('\n')
        self.name = os.path.basename(path)
        self.is_header = path.endswith(('.h', '.cuh'))
        self.is_cpp = self.is_header or path.endswith(('.cc', '.cu'))
        is_script = path.startswith('scripts/') and '.' not in self.name
        self.is_code = self.is_cpp or is_script or path.endswith(('.py', '.proto', '.sh', '.cmake', 'CMakeLists.txt'))
        self.code = cpp_text.strip(text) if self.is_cpp else text
        self.code_lines = self.code.split('\n')

    def includes(self):
        if not self.is_cpp:
            return
        for number, line in enumerate(self.lines, 1):
            match = re.match(r'\s*#\s*include\s*[<"]([^>"]+)[>"]', line)
            if match:
                yield number, match.group(1)


def folder_of(path):
    parts = path.split('/')
    if parts[0] == 'daemon':
        return parts[1] if len(parts) > 2 else None
    if parts[0] == 'operator':
        return '/'.join(parts[:2]) if len(parts) > 2 else None
    return parts[0] + '/' if parts[0] + '/' in MAY_INCLUDE else None


def matches(file, regex, lines, message):
    return [(number, message.format(match.group(0))) for number, line in enumerate(lines, 1)
            for match in [regex.search(line)] if match]


# --- rules: each takes a file and returns (line, message) pairs

def include_direction(file):
    mine = folder_of(file.path)
    allowed = MAY_INCLUDE.get(mine, ANYTHING)
    if allowed is ANYTHING:
        return []
    bad = []
    for number, included in file.includes():
        theirs = folder_of(included)
        if theirs is None or theirs == mine or theirs in allowed:
            continue
        if any(re.fullmatch(pattern, included) for pattern in MAY_INCLUDE_FILES.get(mine, [])):
            continue
        bad.append((number, f'{mine.rstrip("/")} may not include {included}; it may include '
                    f'{" ".join(sorted(name.rstrip("/") for name in allowed)) or "nothing else"}'))
    return bad


def library_home(file):
    return [(number, f'<{included}> belongs in {" or ".join(homes) or "no file of ours (use daemon/base/mutex.h)"}')
            for number, included in file.includes() for library, homes in LIBRARY_HOMES.items()
            if included.startswith(library) and not file.path.startswith(homes or ('-',))]


def file_length(file):
    lines = len(file.lines) - 1
    too_long = file.is_code and lines > FILE_LINES_MAX
    return [(lines, f'{lines} lines; at most {FILE_LINES_MAX}: split it')] if too_long else []


def function_length(file):
    if not file.is_cpp:
        return []
    return [(first, f'{name} has {last - first + 1} lines; at most {FUNCTION_LINES_MAX}: name its steps')
            for first, last, name in cpp_text.functions(file.text) if last - first + 1 > FUNCTION_LINES_MAX]


def line_length(file):
    return [(number, f'{len(line)} columns; at most {COLUMNS_MAX}') for number, line in enumerate(file.lines, 1)
            if file.is_code and len(line) > COLUMNS_MAX]


def banned_name(file):
    bad = matches(file, BANNED_NAME, file.code_lines, '{} says nothing: name what it does') if file.is_cpp else []
    stem = BANNED_FILE.search(file.name)
    return bad + ([(1, f'file name {file.name}: name what it holds')] if stem else [])


def banned_text(file):
    return matches(file, BANNED_TEXT, file.lines, '{}: finish it, or say in docs/SCOPE.md that it is missing')


def machine_path(file):
    return matches(file, MACHINE_PATH, file.lines, '{}...: a path of one machine; take it relative or from the caller')


def pragma_once(file):
    return [(1, 'a header starts with #pragma once')] if file.is_header and '#pragma once' not in file.text \
        and not re.search(r'#ifndef KVARTAL\w*_H_', file.text) else []


def no_absl_mutex(file):
    return matches(file, re.compile(r'\babsl::(Mutex\w*|CondVar)\b'), file.code_lines,
                   '{}: thread sanitizers misread it; use daemon/base/mutex.h') if file.is_cpp else []


def no_using_namespace(file):
    return matches(file, re.compile(r'\busing\s+namespace\b'), file.code_lines,
                   '{} in a header reaches everyone who includes it') if file.is_header else []


def whitespace(file):
    bad = []
    for number, line in enumerate(file.lines, 1):
        if '\t' in line and file.name not in ('Makefile', 'go.mod') and not file.name.endswith('.go'):
            bad.append((number, 'a tab; use spaces'))
        if line != line.rstrip():
            bad.append((number, 'trailing blanks'))
    if file.text and not file.text.endswith('\n'):
        bad.append((len(file.lines), 'the last line does not end'))
    return bad


def class_comment(file):
    if not (file.is_header and file.path.startswith(('daemon/', 'operator/'))):
        return []
    block = []
    for line in file.lines:
        if not line.startswith('//'):
            break
        block.append(line)
    has_class = re.search(r'^(class|struct) \w+[^;]*{', file.code, re.M)
    enough = len(block) >= 2 or (block and (not has_class or len(block[0]) >= LONG_COMMENT_COLUMNS))
    return [] if enough else [(1, 'starts with a comment: what it is / threading / invariants')]


def namespace_is_folder(file):
    parts = file.path.split('/')
    if not (file.is_cpp and parts[0] in ('daemon', 'operator')) or file.name.endswith('_main.cc'):
        return []
    wanted = 'kvartal' if parts[1] in ('base', 'block') else f'kvartal::{parts[1]}'
    found = re.findall(r'^namespace (kvartal[\w:]*)', file.code, re.M)
    return [] if wanted in found or not found else [(1, f'lives in namespace {wanted}, as its folder says')]


def no_throw(file):
    # A file that wraps a throwing library may speak its language; it lets nothing out.
    wraps = any(included.startswith(('yaml-cpp/', 'CLI/', 'cpprest/')) for _, included in file.includes())
    return matches(file, re.compile(r'\bthrow\b(?!;)'), file.code_lines, '{}: failures are absl::Status') \
        if file.is_cpp and not wraps and not file.path.startswith('tests/') else []


def no_sleep(file):
    # The client library has a thread of its own behind a real socket: its tests may pause between two polls of it.
    if file.path.startswith('tests/unit/client/'):
        return []
    return matches(file, re.compile(r'\b(sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\('), file.code_lines,
                   '{}...: a unit test waits for an event, never for time') \
        if file.is_cpp and file.path.startswith(('tests/unit/', 'tests/contract/', 'tests/support/')) else []


def metric_name(file):
    if not (file.is_cpp and file.path.startswith('daemon/')) or file.name == 'metric_names.h':
        return []
    return matches(file, re.compile(r'"kvartal_[a-z0-9_]+"'), cpp_text.strip(file.text, keep_strings=True).split('\n'),
                   '{}: metric names live in daemon/telemetry/metric_names.h')


def no_registered_buffer(file):
    # Memory that is pinned for good survives a punch, and the daemon would read what nobody else sees (decision 0016).
    return matches(file, re.compile(r'\b(io_uring_register_buffers\w*|IORING_OP_(?:READ|WRITE)_FIXED|'
                                    r'io_uring_prep_(?:read|write)_fixed)\b'), file.code_lines,
                   '{}: registered memory outlives a punched hole; transfers pin what they need, while they need it') \
        if file.is_cpp and not file.path.startswith('tests/') else []


FILE_RULES = {rule.__name__: rule for rule in (
    include_direction, library_home, file_length, function_length, line_length, banned_name, banned_text, machine_path,
    pragma_once, no_absl_mutex, no_using_namespace, whitespace, class_comment, namespace_is_folder, no_throw, no_sleep,
    metric_name, no_registered_buffer)}


# --- rules over the whole tree: take all files, return (path, line, message)

def unused_limit(files):
    all_limits = [file for file in files if file.path in LIMITS]
    used = set()
    for file in files:
        if file.is_cpp and file not in all_limits and not file.path.startswith('tests/'):
            used.update(re.findall(r'\bk[A-Z]\w+', file.code))
    return [(limits.path, number, f'{name} bounds nothing: use it or remove it')
            for limits in all_limits for number, line in enumerate(limits.code_lines, 1)
            for name in re.findall(r'\bconstexpr\s+\w+\s+(k\w+)', line) if name not in used]


TREE_RULES = {'unused_limit': unused_limit}


def check(files):
    """All violations as (path, line, rule, message), in order."""
    found = []
    for file in files:
        # These files must name what they ban.
        own = file.path.startswith('tests/style/')
        for name, rule in FILE_RULES.items():
            if not (own and name in ('banned_text', 'banned_name', 'machine_path')):
                found += [(file.path, line, name, message) for line, message in rule(file)]
    for name, rule in TREE_RULES.items():
        found += [(path, line, name, message) for path, line, message in rule(files)]
    return sorted(found)


def read_tree(root):
    files = []
    for folder in FOLDERS + ('',):
        for at, folders, names in os.walk(os.path.join(root, folder)):
            # Beside the named folders only the files at the top are ours; data and corpora are not text we wrote.
            folders[:] = sorted(name for name in folders if folder and name not in ('__pycache__', 'data', 'corpus'))
            for name in sorted(set(names) - {'.git'}):  # a file where the checkout is a worktree
                path = os.path.relpath(os.path.join(at, name), root)
                try:
                    with open(os.path.join(root, path), encoding='utf-8') as opened:
                        files.append(File(path, opened.read()))
                except UnicodeDecodeError:
                    continue
    return files


def main():
    if len(sys.argv) != 2 or not os.path.isdir(os.path.join(sys.argv[1], 'daemon')):
        print('usage: house_rules.py ROOT   (the folder that holds daemon/)', file=sys.stderr)
        return 2
    files = read_tree(sys.argv[1])
    found = check(files)
    for path, line, rule, message in found:
        print(f'{path}:{line}: {rule}: {message}')
    print(f'house_rules: {len(files)} files, {len(FILE_RULES) + len(TREE_RULES)} rules, {len(found)} violations')
    return 1 if found or not files else 0


if __name__ == '__main__':
    sys.exit(main())
