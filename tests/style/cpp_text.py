"""Reads C++ text far enough for house rules: strips comments and literals, finds functions and their lengths."""
import re


def strip(text, keep_strings=False):
    """The same text, same lines, with comments (and the insides of literals) blanked out."""
    out = []
    i = 0
    while i < len(text):
        two = text[i:i + 2]
        if two == '//':
            end = text.find('\n', i)
            i = len(text) if end < 0 else end
        elif two == '/*':
            end = text.find('*/', i)
            end = len(text) if end < 0 else end + 2
            out.append('\n' * text.count('\n', i, end))
            i = end
        elif two == 'R"' and not (i > 0 and (text[i - 1].isalnum() or text[i - 1] == '_')):
            i = _raw_string(text, i, out, keep_strings)
        elif text[i] == '"':
            i = _quoted(text, i, '"', out, keep_strings)
        elif text[i] == "'" and not (i > 0 and text[i - 1].isalnum()):  # not a digit separator
            i = _quoted(text, i, "'", out, keep_strings)
        else:
            out.append(text[i])
            i += 1
    return ''.join(out)


def _raw_string(text, i, out, keep):
    head = text.index('(', i)
    closing = ')' + text[i + 2:head] + '"'
    end = text.find(closing, head)
    end = len(text) if end < 0 else end + len(closing)
    out.append(text[i:end] if keep else '""' + '\n' * text.count('\n', i, end))
    return end


def _quoted(text, i, quote, out, keep):
    end = i + 1
    while end < len(text) and text[end] != quote and text[end] != '\n':
        end += 2 if text[end] == '\\' else 1
    end = min(end + 1, len(text))
    out.append(text[i:end] if keep else quote + quote)
    return end


def strip_directives(code):
    """Blanks preprocessor lines (with their continuations): their braces need not match."""
    lines = code.split('\n')
    continued = False
    for number, line in enumerate(lines):
        if continued or line.lstrip().startswith('#'):
            continued = line.endswith('\\')
            lines[number] = ''
    return '\n'.join(lines)


def functions(text):
    """(first line, last line, name) of every function body, lambdas and nested blocks counted with what holds them."""
    code = strip_directives(strip(text))
    found = []
    stack = []  # of (kind, first line, name, head to go on with)
    head = ''
    head_line = line = 1
    for i, char in enumerate(code):
        if char == '\n':
            line += 1
        if char == '{':
            kind = _kind_of_brace(head, code[i - 1] if i else '', stack)
            stack.append((kind, head_line, _name_of(head), head))
            head = ''
        elif char == '}':
            if stack:
                kind, first, name, before = stack.pop()
                if kind == 'function':
                    found.append((first, line, name))
                # `Foo() : a_{1} {` is one head.
                head = before + '{}' if kind == 'initializer' else ''
        elif char == ';':
            head = ''
        else:
            if not head.strip():
                head_line = line
            head += char
    return found


def _kind_of_brace(head, before, stack):
    inside = stack[-1][0] if stack else 'namespace'
    if inside not in ('namespace', 'class'):
        return 'block' if inside != 'initializer' else 'initializer'
    if re.search(r'\bnamespace\b|\bextern\s*""', head):
        return 'namespace'
    if before.isalnum() or before in '_>':
        return 'initializer'
    if re.search(r'\b(class|struct|union|enum)\b', head) and '(' not in re.sub(r'\([^()]*\)\s*(?=\w)', '', head):
        return 'class'
    return 'function' if ')' in head else 'initializer'


def _name_of(head):
    match = re.search(r'([~\w:]+)\s*\(', head)
    return match.group(1) if match else '?'
