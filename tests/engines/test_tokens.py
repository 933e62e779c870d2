"""With the cache or without it, an engine says the same; what one engine stored another finds."""
import pytest
from daemon import Daemon
from engine import BLOCK, HITS, Engine, connector, equal_tokens, same_tokens, usable


@pytest.fixture(scope='module')
def prompts(tokens):
    """By name. `turn` grows by what the engine answers."""
    return {'single': tokens[:330], 'short': tokens[2000:2050], 'long': tokens[1000:3200],
            'shared a': tokens[400:720] + tokens[3000:3100], 'shared b': tokens[400:720] + tokens[3500:3590],
            'turn': tokens[4000:4200]}


@pytest.fixture(scope='module')
def reference(prompts, logs):
    """An engine without a connector: cold answers, and those with its own prefix cache warm."""
    with Engine(logs / 'reference.log') as engine:
        engine.one(prompts['short'][:40])
        cold, warm = {}, {}
        for name, prompt in prompts.items():
            engine.forget()
            cold[name] = engine.one(prompt)
            warm[name] = engine.one(prompt)
            assert warm[name]['cached'] == usable(prompt)
        return cold, warm


@pytest.fixture(scope='module')
def daemon():
    with Daemon(dram='2Gi', tenant_dram='2Gi') as running:
        yield running.start()


@pytest.fixture(scope='module')
def first(daemon, logs, reference, prompts):
    """An engine that has stored every prompt."""
    with Engine(logs / 'first.log', connector(daemon.door())) as engine:
        engine.stored = {name: engine.one(prompt) for name, prompt in prompts.items()}
        yield engine


def test_attached_with_one_line_and_one_digest(first):
    said = [line for line in first.log().splitlines() if 'Kvartal:' in line]
    assert len(said) == 2 and 'digest' in said[0] and 'attached as tenant test/red' in said[1], said


def test_storing_changes_no_token(first, reference):
    for name, answer in reference[0].items():
        same = same_tokens if name == 'shared b' else equal_tokens  # which found the head of the one before
        assert same(first.stored[name], answer), name


def test_what_is_loaded_gives_the_tokens_of_a_cold_run_and_the_logprobs_of_a_local_hit(first, reference, prompts):
    cold, warm = reference
    for name, prompt in prompts.items():
        first.forget()
        before = first.metric(HITS)
        answer = first.one(prompt)
        assert first.metric(HITS) - before == answer['cached'] == usable(prompt), name
        assert same_tokens(answer, cold[name]), name
        assert equal_tokens(answer, warm[name]) and answer['logprobs'] == warm[name]['logprobs'], name


def test_a_shared_prefix_is_loaded_and_the_rest_computed(first, reference, prompts, tokens):
    first.forget()
    prompt = tokens[400:720] + tokens[3700:3790]
    before = first.metric(HITS)
    answer = first.one(prompt)
    assert first.metric(HITS) - before == 320
    assert same_tokens(answer, first.cold(prompt))


def test_a_local_hit_is_continued_by_a_load(first, prompts):
    first.forget()
    before = first.metric(HITS)
    first.one(prompts['long'][:650])
    first.one(prompts['long'])
    assert first.metric(HITS) - before == usable(prompts['long'])


def test_turns_of_a_conversation_find_what_was_generated(first, tokens, prompts):
    prompt = list(prompts['turn'])
    for turn in range(3):
        answer = first.one(prompt, tokens=70)
        assert same_tokens(answer, first.cold(prompt, tokens=70)), turn
        known = (len(prompt) + 69) // 32 * 32  # the last token was chosen, and not computed
        prompt += answer['tokens'] + tokens[5000 + 50 * turn:5030 + 50 * turn]
        first.forget()
        before = first.metric(HITS)
        first.one(prompt)
        assert first.metric(HITS) - before == known, turn


def test_requests_that_run_together_load_together(first, reference, prompts):
    first.forget()
    before = first.metric(HITS)
    answers = first.generate(*prompts.values())
    assert first.metric(HITS) - before == sum(usable(prompt) for prompt in prompts.values())
    for name, answer in zip(prompts, answers):
        assert same_tokens(answer, reference[0][name]), name


def test_the_counters_say_what_happened(first):
    first.one([1, 2, 3])  # counts travel with a step
    assert first.metric('vllm:kvartal_loaded_blocks') * BLOCK == first.metric(HITS) > 0
    assert first.metric('vllm:kvartal_failed_blocks') == first.metric('vllm:kvartal_uncached') == 0
    assert first.metric('vllm:kvartal_lookups') > first.metric('vllm:kvartal_lookups_unanswered') == 0
    assert first.metric('vllm:kvartal_stored_blocks') > 0


def test_aborted_requests_leave_nothing_behind(first, prompts, daemon, reference):
    for steps in (0, 1, 2, 3):
        first.forget()
        first.ask({'abort': [prompts['long'], prompts['single']], 'steps': steps})
        assert same_tokens(first.one(prompts['single']), reference[0]['single']), steps
    first.forget()  # fails while a block is held
    assert daemon.leases() == 0


def test_a_salt_divides(first, prompts):
    first.forget()
    before = first.metric(HITS)
    first.one(prompts['single'], salt='x')
    assert first.metric(HITS) == before, 'another salt is another prompt'
    first.forget()
    first.one(prompts['single'], salt='x')
    assert first.metric(HITS) - before == usable(prompts['single'])


def test_after_a_reset_of_the_connector_nothing_old_is_found(first, prompts, reference):
    first.forget(connector=True)
    before = first.metric(HITS)
    assert equal_tokens(first.one(prompts['single']), reference[0]['single'])
    assert first.metric(HITS) == before


def test_another_engine_in_processes_of_its_own_finds_what_the_first_stored(first, daemon, logs, reference, prompts):
    cold, warm = reference
    with Engine(logs / 'second.log', connector(daemon.door()), processes=True) as second:
        for name, prompt in prompts.items():
            before = second.metric(HITS)
            answer = second.one(prompt)
            if not name.startswith('shared'):
                assert second.metric(HITS) - before == usable(prompt), name
            assert same_tokens(answer, cold[name]), name
            assert equal_tokens(answer, warm[name]) and answer['logprobs'] == warm[name]['logprobs'], name
