#!/usr/bin/env python3
"""Shows that each house rule can fail: a planted violation is found, its innocent neighbour is not."""
import os
import re
import unittest

import cpp_text
import house_rules
from house_rules import File

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LONG_BODY = '  ++x;\n' * 60

# rule: (path, bad text), (path, good text) ...
PLANTED = {
    'include_direction': [
        ('daemon/engine/a.cc', '#include "daemon/attach/session.h"\n', '#include "daemon/tier/tier.h"\n'),
        ('daemon/engine/a.cc', '#include "daemon/device/host_memory.h"\n', '#include "daemon/engine/b.h"\n'),
        ('daemon/policy/a.h', '#include "daemon/engine/cache_engine.h"\n', '#include "crds/quantity.h"\n'),
        ('daemon/base/a.cc', '#include "daemon/block/block_key.h"\n', '#include <vector>\n'),
        ('client/libkvartal/a.cc', '#include "daemon/attach/session.h"\n', '#include "daemon/attach/attach.pb.h"\n'),
        ('daemon/telemetry/a.cc', '#include "daemon/engine/cache_engine.h"\n',
         '#include "daemon/engine/engine_stats.h"\n'),
        ('crds/a.cc', '#include "daemon/policy/policy_table.h"\n', '#include "daemon/base/units.h"\n'),
        ('operator/kube/a.cc', '#include "operator/reconcile/b.h"\n', '#include "crds/quantity.h"\n'),
        ('operator/reconcile/a.cc', '#include "daemon/policy/policy_table.h"\n', '#include "operator/kube/b.h"\n'),
    ],
    'library_home': [('daemon/engine/a.cc', '#include <rocksdb/db.h>\n', '#include <map>\n'),
                     ('daemon/tier/a.cc', '#include "absl/synchronization/mutex.h"\n', '#include <rocksdb/db.h>\n'),
                     ('operator/reconcile/a.cc', '#include <cpprest/json.h>\n', '#include "nlohmann/json.hpp"\n')],
    'file_length': [('tools/a.cc', 'int x;\n' * 501, 'int x;\n' * 500)],
    'function_length': [
        ('tools/a.cc', 'int F() {\n' + LONG_BODY + '}\n', 'int F() {\n' + LONG_BODY[7:14] + '}\n'),
        ('tools/a.cc', 'namespace a {\nclass C {\n void F(int x) const {\n' + LONG_BODY + ' }\n};\n}\n',
         'namespace a {\nclass C {\n int x;\n' + ' int y;\n' * 60 + '};\n}\n'),
        ('tools/a.cc', 'C::C(int x) : a_(x), b_{x} {\n' + LONG_BODY + '}\n',
         'int kTable[] = {\n' + '  1,\n' * 70 + '};\n'),
        ('tests/unit/a_test.cc', 'TEST(A, B) {\n' + LONG_BODY + '}\n',
         '// {\nint F() { return "{"[0] + \'{\'; }\n' + LONG_BODY),
    ],
    'line_length': [('tools/a.py', 'x' * 121 + '\n', 'x' * 120 + '\n')],
    'banned_name': [('daemon/tier/a.cc', 'class SlotManager;\n', 'bool Implements(int managers);\n'),
                    ('daemon/tier/a.cc', 'class TierImpl;\n', 'const char* k = "CacheManager";  // a Manager\n'),
                    ('daemon/tier/a.h', 'int StringUtil();\n', 'double Utilization();\n'),
                    ('daemon/tier/slot_util.h', '', None)],
    'banned_text': [('docs/A.md', 'TODO: more\n', 'mkdtemp("kvXXXXXX"); todos\n')],
    'machine_path': [('docs/A.md', 'see /' 'work/x\n', 'build/home/x and $ROOT/home/y\n'),
                     ('scripts/a', 'cd /home/someone\n', 'cd "$HOME/someone"\n')],
    'pragma_once': [('tools/a.h', 'int x;\n', '#pragma once\nint x;\n')],
    'no_absl_mutex': [('tools/a.cc', 'absl::Mutex mutex;\n', '// absl::Mutex is out\nstd::mutex mutex;\n')],
    'no_using_namespace': [('tools/a.h', 'using namespace std;\n', 'using std::swap;\n')],
    'whitespace': [('tools/a.cc', '\tint x;\n', '  int x;\n'), ('tests/a.sh', '\tx\n', None),
                   ('docs/A.md', 'x \n', 'x\n'), ('docs/A.md', 'x', 'x\n')],
    'class_comment': [
        ('daemon/base/a.h', '#pragma once\nclass A {\n};\n', '// What.\n// Thread.\n#pragma once\nclass A {\n};\n'),
        ('daemon/base/a.h', '// Short.\n#pragma once\nclass A {\n};\n', '// Units.\n#pragma once\nint x;\n'),
    ],
    'namespace_is_folder': [('daemon/tier/a.cc', 'namespace kvartal {\n}\n', 'namespace kvartal::tier {\n}\n'),
                            ('operator/kube/a.cc', 'namespace kvartal {\n}\n', 'namespace kvartal::kube {\n}\n'),
                            ('daemon/block/a.cc', 'namespace kvartal::block {\n}\n', 'namespace kvartal {\n}\n')],
    'no_throw': [('daemon/tier/a.cc', 'throw 1;\n', '// throw x\nint thrown;\nthrow;\n')],
    'no_registered_buffer': [('daemon/device/a.cc', 'io_uring_register_buffers(&ring, parts, 1);\n',
                              'io_uring_prep_readv(sqe, fd, parts, 1, at);\n')],
    'no_sleep': [('tests/unit/a_test.cc', 'std::this_thread::sleep_for(x);\n', 'loop.RunOnce(-1);\n')],
    'metric_name': [('daemon/tier/a.cc', 'Count("kvartal_hits_total");\n', '// "kvartal_hits_total"\nCount(kHits);\n')],
}


def rules_broken(path, text):
    return {rule for _, _, rule, _ in house_rules.check([File(path, text)])}


class HouseRulesTest(unittest.TestCase):
    def test_each_rule_finds_its_planted_violation_only(self):
        self.assertEqual(set(PLANTED), set(house_rules.FILE_RULES), 'every rule has a planted violation')
        for rule, plants in PLANTED.items():
            for path, bad, good in plants:
                with self.subTest(rule=rule, path=path, bad=bad[:60]):
                    self.assertIn(rule, rules_broken(path, bad))
                    if good is not None:
                        self.assertNotIn(rule, rules_broken(path, good))

    def test_a_limit_nobody_uses_is_found(self):
        limits = File('daemon/base/limits.h', 'inline constexpr size_t kQueueMax = 3;\nstatic_assert(kQueueMax > 1);\n')
        elsewhere = [File('tests/a.cc', 'kQueueMax'), File('daemon/b.cc', '// kQueueMax')]
        unused = house_rules.unused_limit([limits] + elsewhere)
        self.assertEqual([line for _, line, _ in unused], [1])
        self.assertEqual(house_rules.unused_limit([limits, File('daemon/b.cc', 'return kQueueMax;')]), [])

    def test_a_violation_planted_in_the_real_tree_is_found(self):
        files = house_rules.read_tree(ROOT)
        self.assertGreater(sum(file.is_cpp for file in files), 50)
        self.assertIn('daemon/base/limits.h', {file.path for file in files})
        planted = File('daemon/index/planted.cc', '#include "daemon/engine/cache_engine.h"\n')
        found = [(line, rule) for path, line, rule, _ in house_rules.check(files + [planted]) if path == planted.path]
        self.assertEqual(found, [(1, 'include_direction')])

    def test_the_table_is_that_of_the_document(self):
        with open(os.path.join(ROOT, 'docs/STYLE.md'), encoding='utf-8') as text:
            rows = re.findall(r'^  \| (`.*) \| (.*) \|$', text.read(), re.M)
        known = {folder.rstrip('/'): folder for folder in house_rules.MAY_INCLUDE}
        told = {}
        for folders, may in rows:
            words = re.sub(r'\(.*?\)|,? and the words .*|`.*?`', '', may).split(',')
            allowed = {known[word.strip()] for word in words if word.strip() in known}
            for folder in re.findall('`(.*?)`', folders):
                told[known[folder.removeprefix('daemon/')]] = None if may == 'anything' else allowed
        expected = {folder: may for folder, may in house_rules.MAY_INCLUDE.items() if folder != 'base'}
        self.assertEqual(told, expected)

    def test_every_folder_of_the_daemon_is_in_the_table(self):
        folders = {house_rules.folder_of(file.path) for file in house_rules.read_tree(ROOT)
                   if file.is_cpp and file.path.startswith('daemon/')}
        self.assertGreater(len(folders), 8)
        self.assertLessEqual(folders, set(house_rules.MAY_INCLUDE))


class CppTextTest(unittest.TestCase):
    def test_strip_keeps_lines_and_drops_comments_and_literals(self):
        text = 'a /* b\n c */ "d//e" // f\nR"x(g\n)"h)x" 1\'000 \'\\\'\' i\n'
        stripped = cpp_text.strip(text)
        self.assertEqual(stripped.count('\n'), text.count('\n'))
        for gone in 'bcdefgh':
            self.assertNotIn(gone, stripped)
        self.assertIn("1'000", stripped)
        self.assertIn('i', stripped)

    def test_functions_are_found_with_their_lines(self):
        text = ('#define M(x) do { x; \\\n } while (0)\nnamespace a {\nstruct S { int x{1}; };\nint F(int y) {\n'
                '  auto z = [&] {\n    return y; };\n  if (y) { return z(); }\n  return 0;\n}\n'
                'C::C() : a_{1}, b_(2) {\n}\n'
                'std::array<int, 2> k = {1, 2};\nvoid G() {}\n}\n')
        self.assertEqual(cpp_text.functions(text), [(5, 10, 'F'), (11, 12, 'C::C'), (14, 14, 'G')])


if __name__ == '__main__':
    unittest.main()
