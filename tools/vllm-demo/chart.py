"""Draws what the demo showed: one point a request, its height the time to its first token. Plain SVG, no library."""
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 900, 420, 60, 50, 50
COLOURS = ('#c0392b', '#1f6fb2')  # apart also for colour-blind eyes, and told apart by shape


def _point(x, y, kind):
    if kind == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="none" stroke="{COLOURS[0]}" stroke-width="2"/>'
    return f'<path d="M{x:.1f} {y:.1f}m-4.5 0l4.5 -5l4.5 5l-4.5 5z" fill="{COLOURS[1]}"/>'


def _line(x1, x2, y1, y2, colour):
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x, y, text, anchor='middle', size=13):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def write_chart(path, modes):
    """modes: name -> tenant -> turns, in the order they were asked; the same requests in each."""
    tenants = list(next(iter(modes.values())))
    count = sum(len(turns) for turns in next(iter(modes.values())).values())
    top_s = max(turn.ttft_s for mode in modes.values() for turns in mode.values() for turn in turns) * 1.05
    step, height = (WIDTH - LEFT - 20) / count, HEIGHT - TOP - BOTTOM

    def y_of(seconds):
        return TOP + height * (1 - seconds / top_s)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             _text(LEFT, 22, 'Time to the first token of each request, in seconds', 'start', 15)]
    for i in range(6):
        seconds = top_s * i / 5
        parts += [_line(LEFT, WIDTH - 20, y_of(seconds), y_of(seconds), '#ddd'),
                  _text(LEFT - 8, y_of(seconds) + 4, f'{seconds:.1f}', 'end', 12)]
    for kind, (name, mode) in enumerate(modes.items()):
        parts += [_point(WIDTH - 260 + 130 * kind, 18, kind), _text(WIDTH - 250 + 130 * kind, 22, name, 'start')]
        x = LEFT + step / 2
        for turns in mode.values():
            for turn in turns:
                parts.append(_point(x, y_of(turn.ttft_s), kind))
                x += step
    x = LEFT
    for tenant in tenants:
        turns = next(iter(modes.values()))[tenant]
        for number in sorted({turn.number for turn in turns}):
            width = step * sum(turn.number == number for turn in turns)
            parts += [_line(x, x, TOP, TOP + height, '#bbb'),
                      _text(x + width / 2, TOP + height + 17, f'turn {number + 1}', size=11)]
            x += width
        parts.append(_text(x - step * len(turns) / 2, HEIGHT - 12, f'tenant {tenant}'))
    with open(path, 'w') as file:
        file.write('\n'.join([*parts, '</svg>\n']))
